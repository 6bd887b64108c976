"""Which modules of a folded model have weights to quantise, and along which dimension.

Letters: V variables, Vr real ones, I input size, H hidden size, O output size, N categories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.folded import CollapsedLinear, FoldedSelection, StackedLinear


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A module that can be quantised."""

    name: str
    kind: str
    """What the coverage table calls it."""
    module: nn.Module
    summed: Mapping[str, int]
    """Its weights, and the dimension that each is summed over in its product, or is one row of in a look-up."""
    num_steps: int
    """Groups of inputs with a range of their own; 0 where nothing is multiplied."""
    step_per_input: bool = False
    """The groups are the inputs of one sum."""

    @property
    def num_weights(self) -> int:
        """Values of all its weights."""
        return sum(getattr(self.module, name).numel() for name in self.summed)


def find_sites(model: nn.Module) -> tuple[Site, ...]:
    """Returns the modules that can be quantised, in the model's order.

    Args:
        model: In the folded form.
    """
    sites = (_site(name, module) for name, module in model.named_modules())
    return tuple(site for site in sites if site is not None and site.summed)


def _site(name: str, module: nn.Module) -> Site | None:
    """Describes a module; `None` where it has no weights of its own to quantise."""
    if isinstance(module, nn.Linear):
        kind = _linear_kind(name)
        return Site(name=name, kind=kind, module=module, summed={"weight": 1}, num_steps=1)
    if isinstance(module, nn.LSTM):
        weights = {one: 1 for one, _ in module.named_parameters() if one.startswith("weight")}
        return Site(name=name, kind="LSTM", module=module, summed=weights, num_steps=1)
    if isinstance(module, StackedLinear):
        return Site(
            name=name,
            kind="variable networks",
            module=module,
            summed={"weight": 1},
            num_steps=len(module.weight),
        )
    if isinstance(module, CollapsedLinear):
        return _collapsed_site(name, module)
    if isinstance(module, VariableEmbedding):
        summed = {} if module.table is None else {"table": 1}
        return Site(name=name, kind="category tables", module=module, summed=summed, num_steps=0)
    if isinstance(module, FoldedSelection):
        summed = {} if module.hidden_table is None else {"hidden_table": 1}
        return Site(name=name, kind="category tables", module=module, summed=summed, num_steps=0)
    return None


def _collapsed_site(name: str, module: CollapsedLinear) -> Site:
    """Describes a layer of raw variables: a product (Vr, O) and a table (N, O)."""
    num_reals = len(module.weight)
    summed = {"weight": 0} if num_reals else {}
    if module.table is not None:
        summed["table"] = 1
    return Site(
        name=name,
        kind="selection weights",
        module=module,
        summed=summed,
        num_steps=num_reals,
        step_per_input=True,
    )


def _linear_kind(name: str) -> str:
    """Says what a linear layer belongs to."""
    if ".weights." in name:
        return "selection weights"
    return "attention projections" if name.startswith("attention.") else "linear layers"
