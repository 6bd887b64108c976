import pickle
import signal
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_tables import make_table

from ds_tft.config.batch import BatchSizes
from ds_tft.config.run import SplitSettings, WindowSettings
from ds_tft.data.batches import BatchBuilder, Loader
from ds_tft.data.sampler import EpochPlan, evaluation_batches
from ds_tft.data.scaling import TargetScaler, transform_targets
from ds_tft.data.schema import TimeKind
from ds_tft.data.split import split_bounds
from ds_tft.data.windows import WindowIndex, find_windows

L, K = 6, 3
WINDOW = WindowSettings(encoder_length=L, horizon=K, min_encoder_length=2)


def scaler_of(anchor="none", transform="none", num_targets=1):
    names = tuple(f"y{o}" for o in range(num_targets))
    zeros, ones = ((0.0,) * num_targets,), ((1.0,) * num_targets,)
    return TargetScaler(names=names, transform=transform, anchor=anchor, center=zeros, scale=ones)


def builder_of(table, **target):
    return BatchBuilder(table, WINDOW, scaler_of(num_targets=table.targets.shape[1], **target))


def index_of(*windows):
    origins, lengths = np.array(windows).T
    return WindowIndex(origins.astype(np.int64), lengths.astype(np.int32))


def tensors(batch):
    return [*batch.inputs, *batch[1:]]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def two_targets(table):
    """The same table with the second target ten times the first."""
    both = np.concatenate([table.targets, 10 * table.targets], axis=1)
    shape = (len(table.series_keys), 2)
    return replace(table, targets=both, history=both, center=np.zeros(shape), scale=np.ones(shape))


def test_a_window_reads_its_own_rows():
    table = two_targets(make_table((30, 30)))
    index = index_of((20, 6), (45, 3))
    batch = builder_of(table).build(index, np.array([0, 1]))
    inputs = batch.inputs
    assert inputs.encoder_lengths.tolist() == [6, 3]
    assert inputs.static_reals.tolist() == [[100.0], [101.0]]
    assert inputs.static_categories.tolist() == [[1], [2]]
    for b, (t, n) in enumerate([(20, 6), (45, 3)]):
        rows = np.arange(t - n + 1, t + 1)
        ahead = np.arange(t + 1, t + K + 1)
        observed = np.stack([rows, 10 * rows, rows + 0.25, rows + 0.5], axis=1)
        assert inputs.observed_reals[b, :n].tolist() == observed.tolist()
        assert (inputs.observed_reals[b, n:] == 0).all()
        assert inputs.observed_categories[b, :n, 0].tolist() == (rows % 7).tolist()
        assert (inputs.observed_categories[b, n:] == 0).all()
        index_of_time = np.concatenate([np.arange(-n + 1, 1), np.zeros(L - n), np.arange(1, K + 1)]) / L
        assert inputs.known_reals[b, :, 0].numpy() == pytest.approx(index_of_time, abs=1e-7)
        known = np.concatenate([-rows - 0.25, np.zeros(L - n), -ahead - 0.25])
        assert inputs.known_reals[b, :, 1].tolist() == known.tolist()
        codes = np.concatenate([rows % 5, np.zeros(L - n), ahead % 5])
        assert inputs.known_categories[b, :, 0].tolist() == codes.tolist()
        assert batch.labels[b].tolist() == np.stack([ahead, 10 * ahead], axis=1).tolist()
    assert (batch.weights == 1).all()
    assert batch.windows.tolist() == [0, 1]
    kinds = [inputs.static_categories, inputs.observed_categories, inputs.known_categories]
    assert {tensor.dtype for tensor in kinds} == {torch.int64}
    assert {t.dtype for t in (*inputs[::2][:3], batch.labels, batch.weights)} == {torch.float32}


def test_full_and_padded_paths_agree():
    builder = builder_of(make_table((60,)))
    index = index_of((20, 6), (33, 6), (10, 2))
    fast = builder.build(index, np.array([0, 1]))
    slow = builder.build(index, np.array([0, 1, 2]))
    assert all(torch.equal(a, b[:2]) for a, b in zip(tensors(fast), tensors(slow), strict=True))


def test_no_variables_at_all_in_a_group():
    empty = np.empty((30, 0), dtype=np.int32)
    table = make_table(
        (30,),
        num_observed=0,
        num_known=0,
        observed_categories=empty,
        known_categories=empty,
        static_reals=np.empty((1, 0), dtype=np.float32),
        static_categories=np.empty((1, 0), dtype=np.int32),
    )
    inputs = builder_of(table).build(index_of((20, 6)), np.array([0])).inputs
    assert [tuple(tensor.shape) for tensor in inputs] == [
        (1, 0), (1, 0), (1, L, 1), (1, L, 0), (1, L + K, 1), (1, L + K, 0), (1,)
    ]  # fmt: skip


def test_missing_labels_and_row_weights():
    targets = np.arange(30.0)[:, None]
    targets[22] = np.nan
    synthetic = np.arange(30) == 26
    table = make_table((30,), targets=targets, weights=np.arange(30, dtype=np.float32), synthetic=synthetic)
    batch = builder_of(table).build(index_of((20, 6), (24, 6)), np.array([0, 1, -1]))
    assert batch.weights[..., 0].tolist() == [[21, 0, 23], [25, 0, 27], [0, 0, 0]]
    assert batch.labels[:2, :, 0].tolist() == [[21, 0, 23], [25, 0, 27]]
    assert batch.windows.tolist() == [0, 1, -1]
    assert all(torch.isfinite(tensor).all() for tensor in tensors(batch))


@pytest.mark.parametrize("anchor", ["none", "last", "mean"])
def test_labels_and_history_share_their_units(anchor):
    rng = np.random.default_rng(0)
    targets = 1e6 + rng.standard_normal((40, 1))
    table = make_table(
        (20, 20), targets=targets, center=np.array([[5.0], [1e6]]), scale=np.array([[2.0], [4.0]])
    )
    batch = builder_of(table, anchor=anchor).build(index_of((10, 6), (32, 4)), np.array([0, 1]))
    for b, (t, n) in enumerate([(10, 6), (32, 4)]):
        rows = targets[t - n + 1 : t + 1, 0]
        measured_from = {"none": [5.0, 1e6][b], "last": rows[-1], "mean": rows.mean()}[anchor]
        scale = [2.0, 4.0][b]
        labels = (targets[t + 1 : t + K + 1, 0] - measured_from) / scale
        assert batch.labels[b, :, 0].numpy() == pytest.approx(labels, rel=1e-6)
        history = (rows - measured_from) / scale
        assert batch.inputs.observed_reals[b, :n, 0].numpy() == pytest.approx(history, rel=1e-6, abs=1e-9)
        assert (batch.inputs.observed_reals[b, n:] == 0).all()


@pytest.mark.parametrize("anchor", ["none", "last", "mean"])
@pytest.mark.parametrize("transform", ["none", "log", "log1p"])
def test_labels_come_back_in_original_units(anchor, transform):
    rng = np.random.default_rng(1)
    raw = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (300, 2)), axis=0)) * np.array([1.0, 1e5])
    targets = transform_targets(raw, transform, ("y0", "y1"))
    center = np.stack([targets[:150].mean(0), targets[150:].mean(0)])
    table = make_table((150, 150), targets=targets, center=center, scale=np.full((2, 2), targets.std()))
    builder = builder_of(table, anchor=anchor, transform=transform)
    index = index_of((20, 6), (140, 2), (290, 5))
    windows = np.array([2, 0, -1, 1])
    batch = builder.build(index, windows)
    prediction = batch.labels.numpy()[..., None].repeat(3, axis=-1)
    original = builder.to_original_units(prediction, index, windows)
    assert original.dtype == np.float64
    for place, t in [(0, 290), (1, 20), (3, 140)]:
        expected = raw[t + 1 : t + K + 1, :, None].repeat(3, axis=-1)
        assert original[place] == pytest.approx(expected, rel=1e-6)
    assert np.isnan(original[2]).all()


def test_no_training_batch_holds_a_label_from_the_cutoff_on():
    table = make_table((200,))
    bounds = split_bounds(table.times, SplitSettings(train=0.6, validation=0.2), TimeKind.INDEX)
    index, _ = find_windows(table, WINDOW, bounds)
    builder = builder_of(table)
    cutoff, test_cutoff = 120, 160
    seen = {}
    for split, windows in index.items():
        batches = Loader(builder, windows).batches(evaluation_batches(len(windows), 16))
        labels = [batch.labels[batch.weights > 0] for batch in batches]
        seen[split] = torch.cat(labels)
    assert seen["train"].max() == cutoff - 1
    assert (seen["validation"].min(), seen["validation"].max()) == (cutoff, test_cutoff - 1)
    assert seen["test"].min() == test_cutoff


@pytest.mark.parametrize("batch", [1, 3, 4, 10])
def test_evaluation_does_not_depend_on_the_batch(batch):
    builder = builder_of(make_table((40,)))
    index = index_of(*[(t, 6) for t in range(10, 20)])
    batches = list(Loader(builder, index).batches(evaluation_batches(10, batch)))
    assert {len(b.windows) for b in batches} == {batch}
    windows = torch.cat([b.windows for b in batches])
    assert windows[windows >= 0].tolist() == list(range(10))
    total = sum(float((b.labels * b.weights).sum()) for b in batches)
    assert total == sum(t + k for t in range(10, 20) for k in (1, 2, 3))
    assert sum(float(b.weights.sum()) for b in batches) == 10 * K


def training_loader(**options):
    table = make_table((80, 80))
    index = index_of(*[(t, min(6, t + 1)) for t in range(1, 70)], *[(t, 6) for t in range(90, 150)])
    return Loader(builder_of(table), index, **options), EpochPlan(
        num_windows=len(index), global_batch=8, seed=3
    )


def test_two_ranks_see_what_one_rank_sees():
    loader, plan = training_loader()
    one = list(
        loader.batches(
            plan.micro_batches(1, BatchSizes(global_batch=8, micro_batch=8, accumulation=1, world_size=1), 0)
        )
    )
    sizes = BatchSizes(global_batch=8, micro_batch=2, accumulation=2, world_size=2)
    parts = [list(loader.batches(plan.micro_batches(1, sizes, rank))) for rank in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == 2 * len(one)
    for update, whole in enumerate(one):
        pieces = [parts[rank][2 * update + m] for m in (0, 1) for rank in (0, 1)]
        joined = [torch.cat(same) for same in zip(*map(tensors, pieces), strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(joined, tensors(whole), strict=True))


@pytest.fixture
def one_minute():
    """Ends a test whose workers hang."""

    def give_up(number, frame):
        raise TimeoutError("no batch within 60 s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_from_any_position_whatever_the_workers(workers, tmp_path, one_minute):
    # Workers start after Arrow has started its threads.
    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "x.parquet", row_group_size=100)
    assert pq.read_table(tmp_path / "x.parquet", use_threads=True).num_rows == 1000
    loader, plan = training_loader()
    windows = plan.micro_batches(
        0, BatchSizes(global_batch=8, micro_batch=8, accumulation=1, world_size=1), 0
    )
    straight = list(loader.batches(windows))
    resumed = list(training_loader(workers=workers)[0].batches(windows, start=5))
    assert len(resumed) == len(straight) - 5
    assert all(equal(a, b) for a, b in zip(resumed, straight[5:], strict=True))


def test_loading_leaves_the_random_state_alone():
    loader, plan = training_loader()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    next(
        loader.batches(
            plan.micro_batches(0, BatchSizes(global_batch=8, micro_batch=8, accumulation=1, world_size=1), 0)
        )
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_holds_plain_arrays_and_no_windows():
    loader, _ = training_loader()
    blob = pickle.dumps(loader)
    assert b"pyarrow" not in blob
    longer = replace(
        loader.builder, window=WindowSettings(encoder_length=2 * L, horizon=K, min_encoder_length=2)
    )
    assert len(pickle.dumps(replace(loader, builder=longer))) == pytest.approx(len(blob), rel=0.01)
    assert {field.name for field in fields(loader.builder)} == {"table", "window", "target"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU needs pinned memory")
def test_pinned_batches_are_the_same():
    loader, plan = training_loader(pin_memory=True)
    windows = plan.micro_batches(
        0, BatchSizes(global_batch=8, micro_batch=8, accumulation=1, world_size=1), 0
    )
    batch = next(loader.batches(windows))
    assert batch.inputs.observed_reals.is_pinned()
    assert equal(batch, next(training_loader()[0].batches(windows)))


def test_batch_to_another_type():
    batch = builder_of(make_table((30,))).build(index_of((20, 6)), np.array([0]))
    moved = batch.to(torch.device("cpu"), torch.bfloat16)
    assert moved.inputs.observed_reals.dtype == torch.bfloat16
    assert moved.inputs.known_categories.dtype == torch.int64
    assert moved.labels.dtype == moved.weights.dtype == torch.float32
    assert torch.equal(moved.windows, batch.windows)
