import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ds_tft.config.run import TargetScaling, WindowSettings
from ds_tft.data.scaling import RealScaler, TargetScaler, transform_targets
from ds_tft.errors import DataError

WINDOW = WindowSettings(encoder_length=6, horizon=2)


def fit_reals(values, series=None, train=None, kind="standard", per_series=False, num_series=1):
    series = np.zeros(len(values), dtype=np.int32) if series is None else series
    train = np.ones(len(values), dtype=bool) if train is None else train
    names = tuple(f"x{v}" for v in range(values.shape[1]))
    return RealScaler.fit(
        values, series, train, names=names, kind=kind, per_series=per_series, num_series=num_series
    )


def fit_target(targets, series=None, train=None, segments=None, num_series=1, **scaling):
    n = len(targets)
    return TargetScaler.fit(
        targets,
        targets,
        np.zeros(n, dtype=np.int32) if series is None else series,
        np.ones(n, dtype=bool) if train is None else train,
        np.array([[0, 0, n]]) if segments is None else segments,
        names=tuple(f"y{o}" for o in range(targets.shape[1])),
        settings=TargetScaling(**({"transform": "none", "anchor": "none"} | scaling)),
        window=WINDOW,
        num_series=num_series,
    )


def test_only_training_rows_count():
    values = np.concatenate([np.random.default_rng(0).normal(3, 2, (500, 2)), np.full((100, 2), 1e9)])
    train = np.arange(600) < 500
    scaler = fit_reals(values, train=train)
    scaled, clipped = scaler.transform(values, np.zeros(600, dtype=int), clip=10.0)
    assert scaled.dtype == np.float32
    assert scaled[:500].mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert scaled[:500].std(axis=0) == pytest.approx([1, 1], rel=1e-6)
    assert (scaled[500:] == 10).all()
    assert clipped == {"x0": 100, "x1": 100}


def test_large_offset_stays_a_signal():
    noise = np.random.default_rng(1).standard_normal((200_000, 1))
    stored = (1e6 + 0.5 * noise).astype(np.float32).astype(np.float64)
    scaler = fit_reals(stored)
    scaled, _ = scaler.transform(stored, np.zeros(len(stored), dtype=int), clip=None)
    assert scaler.scale[0][0] == pytest.approx(0.5, rel=0.01)
    assert np.corrcoef(scaled[:, 0], noise[:, 0])[0, 1] > 0.99
    assert scaled.std() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("kind", ["standard", "robust"])
def test_constant_columns_are_centred_and_named(kind):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(300, 4))
    values[:200, 1] = 7.3
    values[:200, 2] = 7.3 + 1e-14 * rng.standard_normal(200)
    values[:200, 3] = np.nan
    train = np.arange(300) < 200
    scaler = fit_reals(values, train=train, kind=kind)
    scaled, _ = scaler.transform(values, np.zeros(300, dtype=int), clip=10.0)
    assert scaler.constant_columns == ("x1", "x2")
    assert scaler.empty_columns == ("x3",)
    assert np.abs(scaled[:200, 1:]).max() < 1e-6
    assert np.abs(scaled).max() <= 10
    assert scaled[200:, 1] == pytest.approx(values[200:, 1] - 7.3, abs=1e-6)


def test_missing_becomes_the_centre():
    values = np.array([[1.0], [np.nan], [3.0]])
    scaled, clipped = fit_reals(values).transform(values, np.zeros(3, dtype=int), clip=None)
    assert scaled[:, 0].tolist() == [-1, 0, 1]
    assert clipped == {}


def test_without_clip_the_result_still_fits_float32():
    scaler = fit_reals(np.array([[0.0], [1.0]]))
    scaled, clipped = scaler.transform(np.array([[1e300], [np.inf]]), np.zeros(2, dtype=int), clip=None)
    assert np.isfinite(scaled).all()
    assert clipped == {"x0": 2}


def test_per_series_with_unseen_and_short_series():
    rng = np.random.default_rng(3)
    series = np.repeat([0, 1, 2], [100, 100, 3])
    values = rng.normal(np.array([0.0, 1000.0, 500.0])[series], 1.0)[:, None]
    scaler = fit_reals(values, series, per_series=True, num_series=3)
    scaled, _ = scaler.transform(values, series, clip=None)
    for s in (0, 1):
        assert scaled[series == s].mean() == pytest.approx(0, abs=1e-6)
        assert scaled[series == s].std() == pytest.approx(1, rel=1e-6)
    assert scaler.fallback_series == 1
    assert scaler.center[2] == scaler.center[3] == pytest.approx((values.mean(),))
    unseen, _ = scaler.transform(values, np.full(203, -1), clip=None)
    overall = (values - values.mean()) / values.std()
    assert unseen == pytest.approx(overall, rel=1e-5, abs=1e-6)


def test_kind_none_changes_nothing():
    values = np.random.default_rng(4).normal(5, 3, (20, 2))
    scaled, _ = fit_reals(values, kind="none").transform(values, np.zeros(20, dtype=int), clip=None)
    assert (scaled == values.astype(np.float32)).all()


def test_rows_beyond_one_chunk():
    values = np.arange(40_000.0)[:, None]
    scaled, _ = fit_reals(values).transform(values, np.zeros(40_000, dtype=int), clip=None)
    assert (np.diff(scaled[:, 0]) > 0).all()


def test_no_columns():
    scaler = fit_reals(np.empty((5, 0)))
    scaled, clipped = scaler.transform(np.empty((5, 0)), np.zeros(5, dtype=int), clip=1.0)
    assert scaled.shape == (5, 0)
    assert clipped == {}
    assert RealScaler.model_validate_json(scaler.model_dump_json()) == scaler


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-200, 1e200, allow_subnormal=False), min_size=2, max_size=6))
def test_json_round_trip_is_exact(numbers):
    column = tuple((x,) for x in numbers)
    scaler = RealScaler(names=("a",), center=column, scale=column)
    assert RealScaler.model_validate_json(scaler.model_dump_json()) == scaler
    target = TargetScaler(
        names=("a",), transform="log", anchor="mean", center=((numbers[0],),), scale=((numbers[1],),)
    )
    assert TargetScaler.model_validate_json(target.model_dump_json()) == target


@pytest.mark.parametrize(
    ("transform", "bad", "match"),
    [
        (
            "log",
            [2.0, 0.0, -3.0],
            r"target 'b': transform 'log' needs values above 0, got 2 of 3 .* first 0; .*'log1p' or 'none'",
        ),
        ("log1p", [2.0, -1.0, 0.0], r"target 'b': .*'log1p' needs values above -1, got 1 of 3 .* first -1;"),
    ],
)
def test_transform_outside_its_domain(transform, bad, match):
    targets = np.array([[1.0, 2.0, np.nan], bad]).T
    with pytest.raises(DataError, match=match):
        transform_targets(targets, transform, ("a", "b"))


@pytest.mark.parametrize("transform", ["none", "log", "log1p"])
def test_inverse_undoes_forward(transform):
    values = np.exp(np.random.default_rng(5).normal(0, 5, (1000, 2)))
    values[3, 1] = np.nan
    scaler = fit_target(transform_targets(values, transform, ("y0", "y1")), transform=transform)
    assert scaler.inverse(scaler.forward(values)) == pytest.approx(values, rel=1e-12, nan_ok=True)


def test_target_per_series_and_unseen():
    rng = np.random.default_rng(6)
    series = np.repeat([0, 1], 50)
    targets = rng.normal(np.array([10.0, 1000.0])[series], np.array([1.0, 5.0])[series])[:, None]
    segments = np.array([[0, 0, 50], [1, 50, 100]])
    scaler = fit_target(targets, series, segments=segments, num_series=2)
    center, scale = scaler.of_series(np.array([1, 0, -1]))
    expected = [targets[50:], targets[:50], targets]
    assert center[:, 0] == pytest.approx([part.mean() for part in expected])
    assert scale[:, 0] == pytest.approx([part.std() for part in expected])


def test_target_over_all_series():
    targets = np.arange(20.0)[:, None]
    scaler = fit_target(targets, series=np.repeat([0, 1], 10), num_series=2, per_series=False)
    center, scale = scaler.of_series(np.array([0, 1, -1]))
    assert (center == targets.mean()).all()
    assert scale == pytest.approx(np.full((3, 1), targets.std()))


def test_anchored_scale_is_that_of_changes_within_training_rows():
    rng = np.random.default_rng(7)
    targets = (1e4 + np.cumsum(rng.standard_normal(400)))[:, None]
    targets[300:] *= 100
    train = np.arange(400) < 300
    scaler = fit_target(targets, train=train, anchor="last")
    y = targets[:300, 0]
    changes = np.concatenate([y[k:] - y[:-k] for k in (1, 2)])
    assert scaler.of_series(np.array([0]))[1] == pytest.approx(np.sqrt(np.mean(changes**2)), rel=1e-9)


def test_constant_target_is_named():
    scaler = fit_target(np.full((30, 1), 4.0), anchor="mean")
    assert scaler.constant_columns == ("y0",)
    assert scaler.scale == ((1.0,), (1.0,))


def test_kind_none_leaves_the_target():
    scaler = fit_target(np.arange(30.0)[:, None], anchor="last", kind="none")
    assert (scaler.center, scaler.scale) == (((0.0,),), ((1.0,),))


def test_target_without_training_values():
    targets = np.where(np.arange(30) < 20, np.nan, 1.0)[:, None]
    with pytest.raises(DataError, match=r"target 'y0': no value in the training period, got 20 rows"):
        fit_target(targets, train=np.arange(30) < 20)


@pytest.mark.parametrize(
    ("center", "scale", "match"),
    [
        (((1.0,),), ((0.0,),), "scale must be above 0"),
        (((1.0,),), ((-1.0,),), "scale must be above 0"),
        (((1.0, 2.0),), ((1.0,),), "as many rows of 1 numbers"),
        (((1.0,),), ((1.0,), (1.0,)), "as many rows of 1 numbers"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(center, scale, match):
    with pytest.raises(ValidationError, match=match):
        RealScaler(names=("a",), center=center, scale=scale)
    with pytest.raises(ValidationError, match=match):
        TargetScaler(names=("a",), transform="none", anchor="last", center=center, scale=scale)
