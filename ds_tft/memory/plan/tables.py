"""The plan and its alternatives as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from ds_tft.config.batch import BatchSizes
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.alternatives import Alternative
from ds_tft.memory.plan.memory_plan import MemoryPlan


def plan_table(plan: MemoryPlan, budget_bytes: int, *, plain: bool) -> Table:
    """Returns what the memory of a configuration is made of.

    Args:
        plan: The prediction.
        budget_bytes: What there is.
        plain: Draw for plain text rather than a terminal.
    """
    table = _table(f"Memory of one process on the {plan.device.upper()}", plain)
    table.add_column("what")
    table.add_column("predicted", justify="right")
    for name, count in _rows(plan):
        table.add_row(name, format_bytes(count))
    verdict = "fits" if plan.peak_bytes <= budget_bytes else "does not fit"
    table.add_row(f"peak, {verdict} {format_bytes(budget_bytes)}", format_bytes(plan.peak_bytes))
    return table


def alternatives_table(
    alternatives: Sequence[Alternative], batch: BatchSizes, budget_bytes: int, *, plain: bool
) -> Table:
    """Returns one line for each alternative.

    Args:
        alternatives: The predictions.
        batch: Sizes of an update as asked for.
        budget_bytes: What there is.
        plain: Draw for plain text rather than a terminal.
    """
    table = _table(f"Within {format_bytes(budget_bytes)}, at {batch.global_batch} windows per update", plain)
    table.add_column("settings")
    table.add_column(f"peak at micro-batch {batch.micro_batch}", justify="right")
    table.add_column("fits")
    table.add_column("largest micro-batch", justify="right")
    table.add_column("cost")
    for each in alternatives:
        table.add_row(
            each.change.name,
            "too large to plan" if each.plan is None else format_bytes(each.plan.peak_bytes),
            "yes" if each.plan is not None and each.plan.peak_bytes <= budget_bytes else "no",
            "none" if each.largest is None else str(each.largest.batch.micro_batch),
            each.change.cost,
        )
    return table


def _rows(plan: MemoryPlan) -> list[tuple[str, int]]:
    """Names and bytes, the parts before the peaks."""
    states = plan.states
    rows = [
        ("states: weights", states.weights),
        ("states: optimizer, fp32 weights", states.optimizer),
        ("states: other", states.other),
        ("gradients at the end of backward", plan.gradients),
        ("DeepSpeed's buckets, in backward", plan.bucket),
        ("kept for backward", plan.kept),
        ("workspace of streaming, at most", plan.workspace),
        ("inputs", plan.inputs),
        *((f"peak of live tensors: {phase}", peak) for phase, peak in plan.phase_peaks.items()),
    ]
    if plan.host_bytes:
        rows += [
            ("in host memory: inputs of blocks", plan.host_kept),
            ("in host memory: optimizer", plan.host_optimizer),
        ]
    if plan.extras is not None:
        rows += [
            ("estimate: CUDA context", plan.extras.context),
            ("estimate: workspaces of cuBLAS, cuDNN", plan.extras.libraries),
            ("estimate: fragmentation", plan.extras.fragmentation),
        ]
    return rows


def _table(title: str, plain: bool) -> Table:
    """An empty table."""
    style = box.MARKDOWN if plain else box.SIMPLE_HEAD
    return Table(title=title, title_justify="left", box=style, show_edge=plain, pad_edge=plain)
