"""What is recomputed, said in words, and counts of what has been."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_seconds
from ds_tft.memory.compression import CompressionCounts, Int8Compression
from ds_tft.memory.offload import HostOffload, OffloadTraffic
from ds_tft.memory.recomputed_block import BlockCounts, RecomputeState


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeReport:
    """The blocks that are recomputed; it counts until `reset`, as a rule from step to step."""

    blocks: tuple[str, ...]
    state: RecomputeState

    def line(self) -> str:
        """Says what is recomputed, and by what, in one line for the log."""
        text = f"recompute: {', '.join(self.blocks)}; by {self.state.path.value}"
        return text if self.state.store is None else f"{text}; {self.state.store.line()}"

    def step_line(self) -> str:
        """Says in one line what was done since the last reset."""
        text = f"recompute: {self.recomputes()} blocks ran again"
        return text if self.state.store is None else f"{text}; {self.state.store.step_line()}"

    def scalars(self) -> dict[str, float]:
        """Returns the same by tag, for TensorBoard and the metrics file."""
        scalars = {"recompute/blocks_run_again": float(self.recomputes())}
        return scalars if self.state.store is None else scalars | self.state.store.scalars()

    def recomputes(self, block: str | None = None) -> int:
        """Returns how many times blocks, or one of them, ran again since the last reset."""
        counts = self.state.counts
        return sum(counts[name].recomputes for name in ([block] if block else self.blocks))

    def traffic(self) -> OffloadTraffic | None:
        """Returns what was moved to host memory since the last reset; `None` without offload."""
        store = self.state.store
        return store.traffic if isinstance(store, HostOffload) else None

    def compressed(self) -> CompressionCounts | None:
        """Returns what was kept as INT8 since the last reset; `None` without compression."""
        store = self.state.store
        return store.counts if isinstance(store, Int8Compression) else None

    def reset(self) -> None:
        """Starts all counts anew."""
        self.state.counts.update({name: BlockCounts() for name in self.blocks})
        if self.state.store is not None:
            self.state.store.reset()

    def profile_lines(self) -> list[str]:
        """Returns a line for each block with its times since the last reset; empty without `profile`."""
        if not self.state.profile:
            return []
        return [
            f"recompute: {name}: forward {format_seconds(count.forward_seconds)} in {count.forwards} runs, "
            f"again {format_seconds(count.recompute_seconds)} in {count.recomputes} runs"
            for name, count in self.state.counts.items()
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets the blocks run plainly, for `torch.autograd.grad` in training mode."""
        self.state.paused = True
        try:
            yield
        finally:
            self.state.paused = False

    def check_effect(self) -> None:
        """Makes sure, after a step of training, that every block ran again and what takes inputs took some.

        Raises:
            ConfigError: Names what had no effect.
        """
        for name in self.blocks:
            if not self.recomputes(name):
                forwards = self.state.counts[name].forwards
                raise ConfigError(
                    f"ds_tft.recompute: '{name}' was not run again in backward, got {forwards} forwards of it "
                    "in training; remove it"
                )
        if self.state.store is not None:
            self.state.store.check_effect()
