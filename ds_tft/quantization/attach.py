"""Quantises a folded model from outside: no wrapper, no parameter renamed.

Each covered module gets another `forward` and a child `int8` (`layer.py`). `Quantisation` is the handle: it switches
fake quantisation on and off, and turns the weights into stored codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ds_tft.errors import ConfigError, suggestion
from ds_tft.memory.quantiser import CHILD
from ds_tft.memory.streaming import is_streamed
from ds_tft.model.fold import is_folded
from ds_tft.model.folded import CollapsedLinear, FoldedSelection
from ds_tft.quantization.codes import weight_codes, weight_scale
from ds_tft.quantization.forwards import collapsed_forward, linear_forward, lstm_forward
from ds_tft.quantization.integer_linear import stored_form
from ds_tft.quantization.layer import LayerQuantiser, Switch
from ds_tft.quantization.sites import Site, find_sites

FORWARDS: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {nn.Linear: linear_forward, CollapsedLinear: collapsed_forward, nn.LSTM: lstm_forward}
)
"""What runs each kind of module. The others are run by streaming, which asks the child."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """Names of the modules that are quantised."""

    weights: frozenset[str]
    inputs: frozenset[str]
    """Those whose inputs are quantised too; a part of `weights`."""

    @staticmethod
    def all_of(model: nn.Module) -> Covered:
        """Covers everything that can be."""
        names = frozenset(site.name for site in find_sites(model))
        return Covered(weights=names, inputs=names)


class Quantisation:
    """The quantised modules of one model, by name, in its order.

    Args:
        switch: What is quantised at the moment; shared with the modules.
        sites: All modules that can be quantised.
        quantisers: The children of those that are.
    """

    def __init__(
        self, switch: Switch, sites: tuple[Site, ...], quantisers: dict[str, LayerQuantiser]
    ) -> None:
        self.switch = switch
        self.sites = sites
        self.quantisers = quantisers
        self._is_stored = False

    def turn(self, *, weights: bool, inputs: bool) -> None:
        """Switches fake quantisation.

        Raises:
            ConfigError: The weights are stored as codes.
        """
        self._check_floating()
        self.switch.weights, self.switch.inputs = weights, inputs

    @torch.no_grad()
    def store(self) -> None:
        """Replaces the weights by their codes, for good: the model can forecast and no longer learn.

        Raises:
            ConfigError: They are stored already, or are not in float32.
        """
        self._check_floating()
        sites = [site for site in self.sites if site.name in self.quantisers]
        for site in sites:
            _check_float32(site)
        for site in sites:
            _store(site, self.quantisers[site.name])
        self.turn(weights=True, inputs=True)
        self._is_stored = True

    def _check_floating(self) -> None:
        """Refuses what needs weights in floating point."""
        if self._is_stored:
            raise ConfigError(
                f"int8: the weights are stored for good, got {len(self.quantisers)} modules of codes; "
                "build the folded model again to switch or store it"
            )


def attach_quantisation(model: nn.Module, covered: Covered) -> Quantisation:
    """Makes modules of a model quantisable; nothing is quantised until it is switched on.

    Args:
        model: In the folded form, streaming.
        covered: Which modules.

    Raises:
        ConfigError: The model is not in that form, is quantised already, or has no module of a name.
    """
    if not is_folded(model):
        raise ConfigError(
            f"int8: runs in the folded form, got a {type(model).__name__} that is not in it; fold it first"
        )
    sites = find_sites(model)
    if any(CHILD in site.module._modules for site in sites):
        raise ConfigError(
            f"int8: the model is quantised already, got a {type(model).__name__} with '{CHILD}' modules; attach once"
        )
    plain = [name for name, module in model.named_modules() if _is_plain_selection(module)]
    if plain:
        raise ConfigError(
            f"int8: runs in the streaming form, got '{plain[0]}' that does not stream; stream it first"
        )
    _check_names(covered, [site.name for site in sites])
    switch = Switch()
    chosen = [site for site in sites if site.name in covered.weights]
    return Quantisation(switch, sites, {site.name: _attach(site, switch, covered) for site in chosen})


def _check_names(covered: Covered, names: Sequence[str]) -> None:
    """Refuses names that are not those of modules to quantise."""
    for name in sorted(covered.weights | covered.inputs):
        if name not in names:
            raise ConfigError(
                f"int8: the model has no such module to quantise, got '{name}'; {suggestion(name, names)}"
            )
        if name not in covered.weights:
            raise ConfigError(
                f"int8: inputs are quantised where weights are, got '{name}' for its inputs alone; "
                "quantise its weights too"
            )


def _is_plain_selection(module: nn.Module) -> bool:
    """Whether a module is a variable selection that does not stream."""
    return isinstance(module, FoldedSelection) and not is_streamed(module)


def _attach(site: Site, switch: Switch, covered: Covered) -> LayerQuantiser:
    """Gives one module its child, and where it runs by itself its forward."""
    module = site.module
    quantiser = LayerQuantiser(
        switch,
        site.summed,
        site.num_steps if site.name in covered.inputs else 0,
        device=_device(site),
        step_per_input=site.step_per_input,
    )
    module.add_module(CHILD, quantiser)
    forward = FORWARDS.get(type(module))
    if forward is not None:
        module.forward = partial(forward, module, quantiser)
    return quantiser


def _device(site: Site) -> torch.device:
    """Where a module is."""
    device: torch.device = getattr(site.module, next(iter(site.summed))).device
    return device


def _check_float32(site: Site) -> None:
    """Refuses weights whose codes would not be those of training."""
    for name in site.summed:
        dtype = getattr(site.module, name).dtype
        if dtype != torch.float32:
            raise ConfigError(
                f"int8: weights are stored from float32, got '{site.name}.{name}' in {dtype}; "
                "convert the model with .float() first"
            )


def _store(site: Site, quantiser: LayerQuantiser) -> None:
    """Replaces the weights of one module."""
    for name, dim in site.summed.items():
        weight = getattr(site.module, name)
        if quantiser.step_per_input and name == "weight" and quantiser.num_steps:
            scale, codes = stored_form(weight.t() * quantiser.input_step, quantiser.steps)
            codes = codes.t().contiguous()
        else:
            scale = weight_scale(weight, dim)
            codes = weight_codes(weight, scale).to(torch.int8)
        del site.module._parameters[name]
        site.module.register_buffer(name, codes)
        quantiser.store(name, scale)
