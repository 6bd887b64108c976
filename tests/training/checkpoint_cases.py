"""Checkpoints with made-up content."""

from __future__ import annotations

from pathlib import Path

from ds_tft.training.checkpoint_files import finish_draft, start_draft


def make_checkpoint(folder: Path, step: int, keep: int = 99) -> Path:
    """Writes a whole one of two files."""
    draft = start_draft(folder, f"step-{step}")
    (draft / "model.pt").write_bytes(f"model of step {step}".encode())
    (draft / "states.pt").write_bytes(f"states of step {step}".encode())
    return finish_draft(folder, f"step-{step}", keep)
