"""AdamW with 8-bit states, of bitsandbytes: makes it, tries it, and counts what its states take.

Its two moments are kept as one byte per parameter each, with a scale for every block of 256 parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.optimizer_sections import OptimizerAdamW8bit
from ds_tft.errors import ConfigError
from ds_tft.memory.dry_running import is_dry_run
from ds_tft.memory.meter import optimizer_tensors, tensor_bytes
from ds_tft.memory.trace.failure import first_line

ADAMW_8BIT = "AdamW8bit"
"""`optimizer.type`, and the name of the class."""
BLOCK = 256
"""Parameters that share the scale of a moment."""
PIECE = 1024 * BLOCK
"""Parameters of a large tensor that are updated at a time on a CPU."""
MOST_BYTES = 2.3
"""Per parameter; two bytes and two fp32 scales per block are 2.03."""
TRIED = 4 * BLOCK
UpdateStep = Callable[[dict[str, Any], Tensor, int, int], None]


def check_adamw_8bit(settings: DeepSpeedSettings, device: torch.device) -> None:
    """Refuses 8-bit Adam where it cannot be carried out; any other optimizer passes.

    Args:
        settings: The DeepSpeed JSON.
        device: Where training runs.

    Raises:
        ConfigError: bitsandbytes is missing, or does not work on the device.
    """
    if isinstance(settings.optimizer, OptimizerAdamW8bit):
        _try_update(device)


def make_adamw_8bit(params: Mapping[str, Any], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the optimizer.

    Args:
        params: The section `optimizer.params`.
        parameters: What it updates, on the device.

    Raises:
        ConfigError: bitsandbytes is missing, or does not work on the device.
    """
    parameters = list(parameters)
    if not is_dry_run():
        _try_update(parameters[0].device)
    return _new_optimizer(parameters, params)


def has_8bit_optimizer(engine: Any) -> bool:
    """Says whether an engine's optimizer is 8-bit Adam."""
    return type(getattr(engine.optimizer, "optimizer", engine.optimizer)).__name__ == ADAMW_8BIT


def check_8bit(engine: Any) -> str | None:
    """Makes sure that the states are 8-bit, and says what they take.

    Args:
        engine: A DeepSpeed engine, after an update.

    Returns:
        A line for the log; `None` with another optimizer, or as long as there are no states.

    Raises:
        ConfigError: They are not, or no tensor is large enough for it.
    """
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    if type(optimizer).__name__ != ADAMW_8BIT or not optimizer.state:
        return None
    smallest = optimizer.args.min_8bit_size
    sizes = [parameter.numel() for parameter in optimizer.state]
    if max(sizes) < smallest:
        raise ConfigError(
            f"optimizer.params.min_8bit_size: {smallest} elements are more than any tensor has, got {max(sizes)} "
            "in the largest, so that no state is 8-bit; lower it, or use AdamW"
        )
    for parameter, state in optimizer.state.items():
        rate = tensor_bytes(_own_tensors(state)) / parameter.numel()
        if parameter.numel() >= smallest and rate > MOST_BYTES:
            raise ConfigError(
                f"optimizer.params.min_8bit_size: {smallest} elements make states 8-bit, got {rate:.2f} bytes per "
                f"parameter in a tensor of {parameter.numel()}; resume with the value of the first start, or "
                "start a new run"
            )
    return _line(tensor_bytes(optimizer_tensors(optimizer)), sizes, smallest)


def _line(state_bytes: int, sizes: Sequence[int], smallest: int) -> str:
    """Says what the states take, and what part of the parameters is left out of it."""
    total, left_out = sum(sizes), sum(size for size in sizes if size < smallest)
    line = f"optimizer: 8-bit Adam, {state_bytes / total:.2f} bytes per parameter of states"
    if not left_out:
        return line
    return (
        f"{line}; {100 * left_out / total:.2g} % of the parameters have fp32 states, in tensors below min_8bit_size "
        f"{smallest}"
    )


def _own_tensors(state: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yields what the state of one parameter holds, without the tables of values that all share."""
    yield from (
        value for name, value in state.items() if isinstance(value, Tensor) and not name.startswith("qmap")
    )


def _try_update(device: torch.device) -> None:
    """Carries out one small update, since what bitsandbytes can do depends on its version and the device."""
    parameter = nn.Parameter(torch.ones(TRIED, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = _new_optimizer([parameter], {"lr": 0.5, "weight_decay": 0.0, "min_8bit_size": TRIED})
    try:
        optimizer.step()
        moved = float((1 - parameter.detach()).mean())
    except Exception as error:  # versions before 0.50 fail on a CPU, each in another way
        raise _cannot(device, first_line(error)) from None
    if optimizer.state[parameter]["state1"].dtype != torch.uint8 or not 0.4 < moved < 0.6:
        raise _cannot(device, f"an update of {moved:.3g} where 0.5 is right")


def _cannot(device: torch.device, what: str) -> ConfigError:
    """Says that bitsandbytes does not work here."""
    import bitsandbytes

    return ConfigError(
        f"optimizer.type: bitsandbytes {bitsandbytes.__version__} cannot update {ADAMW_8BIT} on this "
        f"{device.type.upper()}, got {what!r}; pip install --upgrade 'ds_tft[adam8bit]', or use AdamW"
    )


def _new_optimizer(parameters: list[nn.Parameter], params: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Makes the optimizer of bitsandbytes, with an update in pieces on a CPU."""
    try:
        with _only_errors():
            import bitsandbytes
    except ImportError as error:
        raise ConfigError(
            f"optimizer.type: {ADAMW_8BIT} needs bitsandbytes, got {first_line(error)!r}; "
            "pip install 'ds_tft[adam8bit]', or use AdamW"
        ) from None
    optimizer: Any = bitsandbytes.optim.AdamW8bit(parameters, **params)
    optimizer.update_step = partial(_update_in_pieces, optimizer, optimizer.update_step)
    made: torch.optim.Optimizer = optimizer
    return made


def _update_in_pieces(
    optimizer: torch.optim.Optimizer,
    update: UpdateStep,
    group: dict[str, Any],
    parameter: Tensor,
    group_index: int,
    index: int,
) -> None:
    """Stands in for `update_step` of bitsandbytes, for one parameter.

    On a CPU that unpacks both moments, 20 bytes per parameter, which with ZeRO are the whole model. In
    pieces of whole blocks the result is the same to the last bit. On a GPU nothing is unpacked.
    """
    state = optimizer.state[parameter]
    whole = parameter.numel() <= PIECE or not parameter.is_contiguous()
    if parameter.device.type != "cpu" or whole or state["state1"].dtype != torch.uint8:
        update(group, parameter, group_index, index)
        return
    step = state["step"]
    for start in range(0, parameter.numel(), PIECE):
        piece, part = _piece(parameter, state, start)
        optimizer.state[piece] = part | {"step": step}
        update(group, piece, group_index, index)
        state["step"] = optimizer.state.pop(piece)["step"]


def _piece(parameter: Tensor, state: Mapping[str, Any], start: int) -> tuple[Tensor, dict[str, Any]]:
    """Returns views of `PIECE` elements of a parameter, with their gradient, and of their state."""
    assert parameter.grad is not None
    elements = slice(start, start + PIECE)
    blocks = slice(start // BLOCK, (start + PIECE) // BLOCK)
    piece = parameter.detach().view(-1)[elements]
    piece.grad = parameter.grad.reshape(-1)[elements]
    part = dict(state)
    for name in ("state1", "state2"):
        part[name] = state[name].view(-1)[elements]
    for name in ("absmax1", "absmax2"):
        part[name] = state[name][blocks]
    return piece, part


@contextmanager
def _only_errors() -> Iterator[None]:
    """Hides what bitsandbytes warns of when it is imported: products in 4 bits, which nothing here uses."""
    logger = logging.getLogger("bitsandbytes")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
