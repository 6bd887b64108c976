"""What a number was measured on: printed above every table, since it means nothing without."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import torch


def machine_lines(packages: Sequence[str] = ("torch", "deepspeed", "numpy", "pyarrow")) -> list[str]:
    """Describes the hardware, the versions, the day and how busy the machine is."""
    memory = psutil.virtual_memory().total / 2**30
    device = "no GPU"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        device = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return [
        f"machine: {_processor()}, {os.cpu_count()} cores, {memory:.1f} GiB memory, {device}",
        f"versions: Python {platform.python_version()}, {versions}",
        f"date: {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f} at the start, "
        f"{torch.get_num_threads()} torch threads",
    ]


def _processor() -> str:
    """Name of the processor, where the system tells."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in _lines(info) if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(path: Path) -> list[str]:
    """Lines of a file, none where there is no such file."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
