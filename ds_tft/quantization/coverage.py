"""Which modules are quantised, and what of a model is not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from torch import nn

from ds_tft.config.int8 import Int8Plan, unmatched
from ds_tft.quantization.attach import Covered, Quantisation
from ds_tft.quantization.sites import Site, find_sites


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverageRow:
    """One line of the table."""

    name: str
    """Kind of modules, one module, or a kind of what stays in floating point."""
    modules: int
    parameters: int
    ranges: int | None
    """Ranges of inputs; `None` where inputs, or the parameters too, stay in floating point."""
    reason: str = ""
    """Why it is not quantised; empty where it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What is quantised and what is not."""

    rows: tuple[CoverageRow, ...]

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(row.parameters for row in self.rows)

    @property
    def quantised(self) -> int:
        """Parameters that are INT8."""
        return sum(row.parameters for row in self.rows if not row.reason)

    @property
    def share(self) -> float:
        """Share of the parameters that is INT8."""
        return self.quantised / max(1, self.parameters)

    def table(self) -> Table:
        """Returns it for the console."""
        title = f"INT8 coverage: {self.quantised:,} of {self.parameters:,} parameters, {self.share:.1%}"
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        for column in ("modules", "parameters", "share", "weights", "inputs", "ranges"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("why not", no_wrap=True)
        for row in self.rows:
            table.add_row(
                row.name,
                f"{row.modules:,}" if row.modules else "",
                f"{row.parameters:,}",
                f"{row.parameters / max(1, self.parameters):.1%}",
                _type(not row.reason),
                "" if row.reason else _type(row.ranges is not None),
                "" if row.ranges is None else f"{row.ranges:,}",
                row.reason,
            )
        return table


def cover(plan: Int8Plan, model: nn.Module) -> Covered:
    """Finds the modules that the settings name.

    Args:
        plan: The settings.
        model: In the folded form.

    Raises:
        ConfigError: A pattern matches nothing.
    """
    sites = find_sites(model)
    multiplied = [site.name for site in sites if site.num_steps]
    unmatched(plan, [site.name for site in sites], multiplied)
    weights = frozenset(site.name for site in sites if any(rule.matches(site.name) for rule in plan.weights))
    inputs = frozenset(
        name
        for name in multiplied
        if name in weights and any(rule.matches(name) for rule in plan.activations)
    )
    return Covered(weights=weights, inputs=inputs)


def describe_coverage(model: nn.Module, quantisation: Quantisation, *, verbose: bool = False) -> Coverage:
    """Counts what is quantised.

    Args:
        model: With floating-point weights still.
        quantisation: What is attached to it.
        verbose: Name every module instead of the kinds.
    """
    sites = [site for site in quantisation.sites if site.name in quantisation.quantisers]
    left = [site for site in quantisation.sites if site.name not in quantisation.quantisers]
    groups = {site.name: [site] for site in sites} if verbose else _by_kind(sites)
    rows = [_row(name, group, quantisation) for name, group in groups.items()]
    if left:
        rows.append(
            CoverageRow(
                name="other weights",
                modules=len(left),
                parameters=sum(site.num_weights for site in left),
                ranges=None,
                reason="no pattern names them",
            )
        )
    return Coverage(rows=(*rows, *_rest(model, quantisation.sites)))


def _by_kind(sites: Sequence[Site]) -> dict[str, list[Site]]:
    """Groups modules by kind, in the order of the model."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(site.kind, []).append(site)
    return groups


def _row(name: str, sites: Sequence[Site], quantisation: Quantisation) -> CoverageRow:
    """Counts one group of quantised modules."""
    return CoverageRow(
        name=name,
        modules=len(sites),
        parameters=sum(site.num_weights for site in sites),
        ranges=sum(quantisation.quantisers[site.name].num_steps for site in sites) or None,
    )


def _rest(model: nn.Module, sites: Sequence[Site]) -> Iterator[CoverageRow]:
    """Counts what has no matrix product and no look-up."""
    weights = {f"{site.name}.{name}" for site in sites for name in site.summed}
    counts = {"biases": 0, "layer norms": 0, "lines of real variables": 0}
    for name, parameter in model.named_parameters():
        if name not in weights:
            counts[_float_kind(name)] += parameter.numel()
    reasons = {
        "biases": "only added",
        "layer norms": "one factor each",
        "lines of real variables": "one input each",
    }
    for kind, count in counts.items():
        if count:
            yield CoverageRow(name=kind, modules=0, parameters=count, ranges=None, reason=reasons[kind])


def _float_kind(name: str) -> str:
    """Says what a parameter without a product is."""
    parts = name.split(".")
    if parts[-1].startswith("norm_") or "norm" in parts:
        return "layer norms"
    if parts[-1] == "hidden_lines" or parts[-2].endswith("_embedding"):
        return "lines of real variables"
    return "biases"


def _type(quantised: bool) -> str:
    """Names the type of numbers."""
    return "int8" if quantised else "fp32"
