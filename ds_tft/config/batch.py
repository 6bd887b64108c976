"""How many windows go into a forward and into an update."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError

DEFAULT_GLOBAL_BATCH = 32
GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Sizes of one optimizer update: `global_batch = micro_batch * accumulation * world_size`, in windows."""

    global_batch: int
    micro_batch: int
    accumulation: int
    world_size: int
    notes: tuple[str, ...] = ()
    """One line for each value of the JSON that a flag replaced."""
    chosen: bool = False
    """Whether the micro-batch was chosen for the memory there is, rather than given."""

    def halved(self) -> BatchSizes:
        """Returns half the micro-batch and twice the accumulation: the update stays what it is."""
        assert self.micro_batch % 2 == 0, "an odd micro-batch has no half"
        return replace(
            self, micro_batch=self.micro_batch // 2, accumulation=2 * self.accumulation, chosen=True
        )

    def __str__(self) -> str:
        return (
            f"{self.global_batch} windows per update = micro-batch {self.micro_batch} "
            f"x accumulation {self.accumulation} x {_processes(self.world_size)}"
        )


def resolve_batch(settings: DeepSpeedSettings, world_size: int, batch_size_flag: int | None) -> BatchSizes:
    """Completes the three batch sizes from those that are given.

    Args:
        settings: The DeepSpeed JSON. Any one or two of its three sizes determine the rest: accumulation is 1
            where it is not given and does not follow; with none given an update is 32 windows.
        world_size: Number of processes.
        batch_size_flag: `--batch-size`, windows per update over all processes. Replaces `train_batch_size`;
            the micro-batch of the JSON stays and accumulation follows; without one, accumulation stays.

    Returns:
        The sizes, equal on all processes.

    Raises:
        ConfigError: The sizes given contradict each other or do not divide.
    """
    total = _given(settings.train_batch_size)
    micro = _given(settings.train_micro_batch_size_per_gpu)
    accumulation = _given(settings.gradient_accumulation_steps)
    if batch_size_flag is not None:
        return _from_flag(batch_size_flag, total, micro, accumulation, world_size)
    if total and micro and accumulation:
        _check_product(total, micro, accumulation, world_size)
    if not total and micro:
        accumulation = accumulation or 1
        total = micro * accumulation * world_size
    source = GLOBAL if total else "the default batch size"
    total = total or DEFAULT_GLOBAL_BATCH
    return _complete(source, total, micro, accumulation, world_size)


def check_fills(sizes: BatchSizes, windows: int) -> None:
    """Refuses an update whose places would mostly be empty: they take time and memory, and teach nothing.

    Args:
        sizes: The resolved sizes.
        windows: Training windows of an epoch.

    Raises:
        ConfigError: An update has more than twice as many places, and more than the default.
    """
    if sizes.global_batch > max(2 * windows, DEFAULT_GLOBAL_BATCH):
        raise ConfigError(
            f"--batch-size ({GLOBAL}): an epoch has {windows} windows, got {sizes.global_batch} per update; "
            f"give at most {windows}"
        )


def _from_flag(
    flag: int, total: int | None, micro: int | None, accumulation: int | None, world_size: int
) -> BatchSizes:
    """Sizes when the flag says how many windows an update has."""
    if flag < 1:
        raise ConfigError(f"--batch-size: expected 1 or more, got {flag}; give windows per update")
    kept = None if micro else accumulation
    sizes = _complete("--batch-size", flag, micro, kept, world_size)
    replaced = ((GLOBAL, total, flag), (ACCUMULATION, accumulation, sizes.accumulation))
    notes = tuple(
        f"{name}: {before} (DeepSpeed JSON) -> {after} (--batch-size)"
        for name, before, after in replaced
        if before not in (None, after)
    )
    return BatchSizes(
        global_batch=flag,
        micro_batch=sizes.micro_batch,
        accumulation=sizes.accumulation,
        world_size=world_size,
        notes=notes,
    )


def _complete(
    source: str, total: int, micro: int | None, accumulation: int | None, world_size: int
) -> BatchSizes:
    """Derives the micro-batch or the accumulation from the size of an update."""
    name, part = (MICRO, micro) if micro else (ACCUMULATION, accumulation or 1)
    step = part * world_size
    if total % step:
        factors = f"{name} {part} x {_processes(world_size)}" if part > 1 else _processes(world_size)
        raise ConfigError(f"{source}: {total} is not a multiple of {factors}; {_multiples(total, step)}")
    derived = total // step
    return BatchSizes(
        global_batch=total,
        micro_batch=micro or derived,
        accumulation=derived if micro else part,
        world_size=world_size,
    )


def _check_product(total: int, micro: int, accumulation: int, world_size: int) -> None:
    """Refuses three sizes that contradict each other."""
    product = micro * accumulation * world_size
    if total == product:
        return
    fitting, rest = divmod(total, micro * accumulation)
    fits = "" if rest else f", and would fit {_processes(fitting)}"
    raise ConfigError(
        f"{GLOBAL}: {total} is not {MICRO} {micro} x {ACCUMULATION} {accumulation} x {_processes(world_size)}"
        f" = {product}{fits}; remove one of the three, or write {GLOBAL} {product}"
    )


def _multiples(total: int, step: int) -> str:
    """Advises the nearest sizes that divide."""
    below = total // step * step
    return f"use {below} or {below + step}" if below else f"use {step}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _given(size: int | str) -> int | None:
    """A size, or `None` where it says `auto`."""
    return size if isinstance(size, int) else None
