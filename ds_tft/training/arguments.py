"""The flags of `launch/train.py`, as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """What the command line said. `None` and empty mean: not given."""

    parquet: str
    targets: tuple[str, ...] = ()
    config: str | None = None
    deepspeed_config: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    use_gradient_checkpointing: bool = False
    use_int8: bool = False
    output_dir: str | None = None
    resume: str | None = None
    seed: int | None = None
    overrides: tuple[str, ...] = ()
