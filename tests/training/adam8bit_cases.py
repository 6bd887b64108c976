"""Engines with 8-bit Adam around a small network, and a run of two processes that is left and resumed.

As a script it is one of the processes: `adam8bit_cases.py FOLDER STAGE`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ds_tft.training.environment import prepare_environment

if __name__ == "__main__":
    place = prepare_environment()

import torch
import torch.distributed
from torch import Tensor, nn

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings
from ds_tft.training.adam8bit import check_8bit
from ds_tft.training.checkpoint import load_checkpoint, save_checkpoint
from ds_tft.training.engine import build_engine, choose_device, start_process_group
from ds_tft.training.state import TrainingState

ADAM8BIT = 'deepspeed.optimizer={"type":"AdamW8bit","params":{"lr":0.01}}'
ADAMW = 'deepspeed.optimizer={"type":"AdamW","params":{"lr":0.01,"torch_adam":true}}'
BF16 = "deepspeed.bf16.enabled=true"
WINDOWS = 8
STEPS = 6


def stage(number: int) -> str:
    """An argument of `--set`."""
    return f"deepspeed.zero_optimization.stage={number}"


def smallest(elements: int) -> str:
    """An argument of `--set`, after that of the optimizer."""
    return f"deepspeed.optimizer.params.min_8bit_size={elements}"


class Network(nn.Module):
    """Learns whether the sum of its inputs is positive; one tensor is large, the other three are small."""

    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.second = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        wanted = torch.sign(x.sum(dim=-1, keepdim=True))
        return (self.second(torch.tanh(self.first(x))) - wanted).square().mean()


def make_engine(*overrides: str, width: int = 300, world_size: int = 1) -> Any:
    """An engine with the given settings; the weights are the same each time."""
    settings, _ = read_deepspeed_settings(None, overrides)
    batch = resolve_batch(settings, world_size, WINDOWS * world_size)
    torch.manual_seed(0)
    model = Network(width)
    count = sum(parameter.numel() for parameter in model.parameters())
    return build_engine(model, engine_config(settings, batch, 100, count))


def update(engine: Any, step: int) -> float:
    """One update from windows that depend on the step and the process; returns its loss."""
    generator = torch.Generator().manual_seed(1000 * step + torch.distributed.get_rank())
    x = torch.randn(WINDOWS, 64, generator=generator)
    loss = engine(x.to(next(engine.module.parameters()).dtype))
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def losses_of(engine: Any, first: int = 0, count: int = STEPS) -> list[float]:
    """Losses of updates in a row."""
    return [update(engine, step) for step in range(first, first + count)]


def base_of(engine: Any) -> torch.optim.Optimizer:
    """The optimizer within DeepSpeed's."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def states_of(engine: Any) -> list[dict[str, Any]]:
    """Copies of the states, in the order of the parameters."""
    optimizer = base_of(engine)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
        for state in (optimizer.state[parameter] for parameter in parameters)
    ]


def equal_states(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether states are the same to the last bit, types included."""
    return len(first) == len(second) and all(
        one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
        for one, other in zip(first, second, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def leave_and_resume(folder: Path, *overrides: str, world_size: int = 1) -> None:
    """Asserts that a run that is left goes on as if it had not been."""
    straight = make_engine(*overrides, world_size=world_size)
    losses_of(straight)
    save_checkpoint(straight, folder, TrainingState(step=STEPS), keep=1)
    saved = states_of(straight)
    expected = losses_of(straight, STEPS)

    resumed = make_engine(*overrides, world_size=world_size)
    load_checkpoint(resumed, folder / "checkpoints" / f"step-{STEPS}", folder, print)
    assert equal_states(states_of(resumed), saved)
    assert losses_of(resumed, STEPS) == expected
    assert check_8bit(resumed) == check_8bit(straight)
    assert equal_states(states_of(resumed), states_of(straight))
    ends = zip(straight.module.parameters(), resumed.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in ends)


def _run_process(folder: Path, number: int) -> None:
    """What each of two processes does."""
    start_process_group(choose_device(place))
    leave_and_resume(folder, ADAM8BIT, stage(number), world_size=place.world_size)
    engine = make_engine(ADAM8BIT, stage(number), world_size=place.world_size)
    losses_of(engine)
    sums = torch.stack([parameter.detach().double().sum() for parameter in engine.module.parameters()])
    gathered = [torch.empty_like(sums) for _ in range(place.world_size)]
    torch.distributed.all_gather(gathered, sums)
    assert torch.equal(*gathered), "both processes have the same weights"
    elements = sum(parameter.numel() for parameter in base_of(engine).state)
    print(f"process {place.rank}: {elements} elements, {check_8bit(engine)}")


if __name__ == "__main__":
    _run_process(Path(sys.argv[1]), int(sys.argv[2]))
