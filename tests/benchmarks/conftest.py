"""The benchmarks are scripts: their folder is put on the path, as python does for a script."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
