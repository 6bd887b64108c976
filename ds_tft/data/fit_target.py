"""How the target is scaled: as the settings say, or, where they say `auto`, as the training rows suggest.

Letters: N rows, S series, O targets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import RunSettings, TargetScaling
from ds_tft.data.assemble import columns
from ds_tft.data.raw import CleanRows
from ds_tft.data.scaling import Anchor, TargetScaler

TOLERATED = 1.2
"""An anchor in the window is taken even where labels vary this much more around it than around the centre: it
follows the series when its level moves on after the training period, and the centre does not."""

_CANDIDATES: tuple[Anchor, ...] = ("last", "mean")


def fit_target(
    clean: CleanRows, settings: RunSettings, train: NDArray[np.bool_], names: tuple[str, ...], has_bars: bool
) -> tuple[TargetScaler, str]:
    """Fits the target's scaler on the training rows.

    Args:
        clean: Cleaned rows.
        settings: The run JSON.
        train: (N,) True for training rows.
        names: O target columns.
        has_bars: Whether the targets are prices of bars, forecast by their change from the last value.

    Returns:
        The scaler, and a line about what `auto` came to.

    Raises:
        DataError: A target has no training value, or one outside the domain of the transform.
    """
    target = settings.scaling.target
    transform = ("log" if has_bars else "none") if target.transform == "auto" else target.transform

    def fit(anchor: Anchor) -> TargetScaler:
        settled = target.model_copy(update={"transform": transform, "anchor": anchor})
        return _fit(clean, settings, settled, train, names)

    if target.anchor != "auto":
        scaler, reason = fit(target.anchor), "given"
    elif has_bars:
        scaler, reason = fit("last"), "bars are forecast from their last value"
    else:
        scaler, reason = _choose({anchor: fit(anchor) for anchor in ("none", *_CANDIDATES)})
    return scaler, f"target: transform {transform}, anchor {scaler.anchor} ({reason})"


def _choose(fitted: dict[Anchor, TargetScaler]) -> tuple[TargetScaler, str]:
    """Takes the anchor around which training labels vary least, preferring those in the window."""
    base = np.array(fitted["none"].scale)
    spread = {
        anchor: float(np.exp(np.mean(np.log(np.array(fitted[anchor].scale) / base))))
        for anchor in _CANDIDATES
    }
    best = min(_CANDIDATES, key=spread.__getitem__)
    figures = ", ".join(f"{share:.2f} around {anchor}" for anchor, share in spread.items())
    reason = f"training labels vary, against 1 around the centre: {figures}"
    return fitted[best if spread[best] <= TOLERATED else "none"], reason


def _fit(
    clean: CleanRows,
    settings: RunSettings,
    target: TargetScaling,
    train: NDArray[np.bool_],
    names: tuple[str, ...],
) -> TargetScaler:
    """Fits with everything settled."""
    assert target.transform != "auto"
    transform = TargetScaler(names=names, transform=target.transform, anchor="none", center=(), scale=())
    return TargetScaler.fit(
        transform.forward(columns(clean.raw.rows, names)),
        transform.forward(columns(clean.rows, names)),
        clean.rows.series,
        train,
        clean.rows.segments,
        names=names,
        settings=target,
        window=settings.window,
        num_series=len(clean.raw.ids.keys),
    )
