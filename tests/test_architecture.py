"""The walls of the package, kept by reading its imports."""

import ast
from pathlib import Path

import pytest

import ds_tft

PACKAGE = Path(ds_tft.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT_DEEPSPEED = {"training/engine.py", "memory/checkpoint_path.py"}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_walls(path):
    where = path.relative_to(PACKAGE).as_posix()
    for module in imported_modules(path):
        top = module.split(".")[0]
        if top == "deepspeed":
            assert where in MAY_IMPORT_DEEPSPEED, f"{where} imports {module}"
        assert top != "launch", f"{where} imports {module}"
        if where.startswith("model/") and top == "ds_tft":
            assert module.startswith(("ds_tft.model", "ds_tft.errors")), f"{where} imports {module}"
        if where.startswith("config/"):
            assert top not in {"torch", "numpy"}, f"{where} imports {module}: settings load without them"
        if where.startswith("data/") and where != "data/batches.py":
            assert top != "torch", f"{where} imports {module}"
