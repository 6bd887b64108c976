"""The predicted memory of one training process."""

from __future__ import annotations

from dataclasses import dataclass

from ds_tft.config.batch import BatchSizes
from ds_tft.formatting import format_bytes

PHASES = ("build", "forward", "backward", "optimizer")
"""Building the engine, and the three parts of an update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatesPlan:
    """Bytes that stay from update to update."""

    weights: int
    """The model's own, or DeepSpeed's flat copy that they are views of."""
    optimizer: int
    """Moments, fp32 masters and what else the optimizer holds."""
    other: int
    """Whatever else DeepSpeed keeps."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.optimizer + self.other


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaExtras:
    """Bytes on a GPU beside tensors: estimates, which depend on driver, card and library versions."""

    context: int
    """CUDA's own and the code of the kernels."""
    libraries: int
    """Workspaces of cuBLAS and cuDNN."""
    fragmentation: int
    """Freed memory that the allocator cannot hand out again."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.context + self.libraries + self.fragmentation


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """What one process of a training run takes, in bytes, on its device unless said otherwise.

    On a CPU the device's memory is the host's: what is offloaded is part of the peak.
    """

    device: str
    """`cpu` or `cuda`."""
    batch: BatchSizes
    states: StatesPlan
    gradients: int
    """At the end of backward, with DeepSpeed's buckets."""
    kept: int
    """From the end of forward until backward."""
    workspace: int
    """Buffers of streaming, while a variable selection runs; 0 without streaming."""
    bucket: int
    """DeepSpeed's buffers to reduce gradients in, part of backward's peak."""
    inputs: int
    """Micro-batches on the device."""
    phase_peaks: dict[str, int]
    """Most bytes of live tensors in each of `PHASES`, states included."""
    host_kept: int
    """Inputs of recomputed blocks in host memory (`cpu_checkpointing`)."""
    host_optimizer: int
    """Optimizer state in host memory (`offload_optimizer`)."""
    extras: CudaExtras | None = None
    """`None` on a CPU."""

    @property
    def tensor_peak(self) -> int:
        """Most bytes of live tensors at one time."""
        return max(self.phase_peaks.values())

    @property
    def peak_bytes(self) -> int:
        """What must fit on the device: tensors at their peak and, on CUDA, the estimates beside them."""
        return self.tensor_peak + (0 if self.extras is None else self.extras.total)

    @property
    def host_bytes(self) -> int:
        """What is offloaded to host memory."""
        return self.host_kept + self.host_optimizer

    def lines(self) -> list[str]:
        """Says it for the log."""
        size, states = format_bytes, self.states
        peaks = ", ".join(f"{phase} {size(peak)}" for phase, peak in self.phase_peaks.items())
        lines = [
            f"memory plan: peak {size(self.peak_bytes)} on the {self.device.upper()} at {self.batch}",
            f"memory plan: states {size(states.total)} (weights {size(states.weights)}, optimizer "
            f"{size(states.optimizer)}, other {size(states.other)}), gradients {size(self.gradients)}, "
            f"buckets {size(self.bucket)}",
            f"memory plan: kept for backward {size(self.kept)}, streaming workspace up to "
            f"{size(self.workspace)}, inputs {size(self.inputs)}",
            f"memory plan: live tensors at most: {peaks}",
        ]
        if self.host_bytes:
            lines.append(
                f"memory plan: in host memory {size(self.host_bytes)} (inputs of blocks "
                f"{size(self.host_kept)}, optimizer {size(self.host_optimizer)})"
            )
        if self.extras is not None:
            lines.append(
                f"memory plan: estimates beside tensors: CUDA context {size(self.extras.context)}, libraries "
                f"{size(self.extras.libraries)}, fragmentation {size(self.extras.fragmentation)}"
            )
        return lines
