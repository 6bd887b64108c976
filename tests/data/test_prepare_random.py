"""What must hold of any data under any policies: files with holes, gaps, repeats and late series, by seed."""

import numpy as np
import pyarrow as pa
from datasets import ROLES, bars, panel, prepare

from ds_tft.data.batches import BatchBuilder
from ds_tft.errors import UserError

SEEDS = 30


def random_columns(rng, seed):
    """Columns of a damaged panel, or of damaged bars."""
    num_series, rows = int(rng.integers(1, 5)), int(rng.integers(30, 90))
    make = panel if rng.random() < 0.7 else bars
    columns, total = make(num_series, rows, seed), num_series * rows
    row = np.arange(total) % rows
    for name in set(columns) - {"store", "day", "symbol", "time", "weight"}:
        if rng.random() < 0.4:
            hole = rng.random(total) < rng.choice([0.02, 0.3])
            values = np.array(columns[name], dtype=object)
            values[hole] = None
            columns[name] = values.tolist()
    keep = rng.random(total) > rng.choice([0.0, 0.02, 0.2])
    if rng.random() < 0.3:
        keep &= (np.arange(total) >= rows) | (row > 0.8 * rows)  # the first series comes late
    if rng.random() < 0.3:
        target = "sales" if make is panel else "close"
        values = np.array(columns[target], dtype=object)
        values[row >= rows - int(rng.integers(1, 15))] = None  # room to forecast
        columns[target] = values.tolist()
    order = np.flatnonzero(keep)
    if rng.random() < 0.3:
        order = np.concatenate([order, rng.choice(order, 3)])
    if rng.random() < 0.5:
        rng.shuffle(order)
    table = pa.table(columns).take(pa.array(order))
    return {name: table[name] for name in table.column_names}


def random_sections(rng, columns):
    """Settings for them."""
    data = dict(ROLES) if "sales" in columns else {"features": "ohlcv", "series": "symbol", "time": "time"}
    data |= {
        "missing": str(rng.choice(["fill", "drop"])),
        "gaps": str(rng.choice(["fill", "tolerate", "split", "auto"])),
        "duplicates": str(rng.choice(["first", "last"])),
        "max_gap_steps": int(rng.integers(0, 6)),
    }
    if "sales" in columns and rng.random() < 0.5:
        data |= (
            {"weight": "weight"}
            if rng.random() < 0.5
            else {"target": ["sales", "visits"], "observed_reals": []}
        )
    kinds = ["standard", "robust", "none"]
    target = {
        "kind": str(rng.choice(kinds)),
        "per_series": bool(rng.random() < 0.5),
        "anchor": str(rng.choice(["none", "last", "mean", "auto"])),
    }
    return {
        "data": data,
        "scaling": {
            "reals": str(rng.choice(kinds)),
            "per_series": bool(rng.random() < 0.5),
            "target": target,
        },
        "window": {
            "encoder_length": int(rng.integers(1, 20)),
            "horizon": int(rng.integers(1, 6)),
            "stride": int(rng.integers(1, 4)),
        },
        "split": {
            "train": float(rng.choice([0.5, 0.7])),
            "validation": float(rng.choice([0.0, 0.2])),
            "embargo_steps": int(rng.integers(0, 4)),
        },
    }


def check_table(table):
    for name in ("observed_reals", "known_reals", "static_reals", "weights", "center", "scale"):
        assert np.isfinite(getattr(table, name)).all(), name
    assert (table.scale > 0).all()


def check_windows(data, split, index):
    """Windows lie within a segment and their labels within the period of the split."""
    table, horizon = data.table, data.preprocessor.window.horizon
    first, last = index.origins - index.lengths + 1, index.origins + horizon
    segment = table.segments[np.searchsorted(table.segments[:, 1], index.origins, side="right") - 1]
    assert (table.series_of_row[first] == table.series_of_row[last]).all()
    assert ((first >= segment[:, 1]) & (last < segment[:, 2])).all()
    start, end = data.bounds.period(split)
    assert ((table.times[index.origins + 1] >= start) & (table.times[last] < end)).all()
    unusable = np.append(0, np.cumsum(~table.usable))
    assert (unusable[last + 1] == unusable[first]).all()


def check_batch(data, split, index):
    """Inputs and labels are finite, what is put in is no label, and labels become the targets again."""
    table, scaler = data.table, data.preprocessor.target_scaler
    builder, every = BatchBuilder(table, data.preprocessor.window, scaler), np.arange(len(index))
    batch = builder.build(index, every)
    for tensor in (*batch.inputs, batch.labels, batch.weights):
        assert tensor.float().isfinite().all()
    rows = index.origins[:, None] + np.arange(1, data.preprocessor.window.horizon + 1)  # (n, K)
    weights = batch.weights.numpy()
    known = weights > 0
    assert not known[table.synthetic[rows]].any()
    np.testing.assert_allclose(
        builder.window_weights(index), weights.astype(float).sum(axis=(1, 2)), rtol=1e-5, atol=1e-6
    )
    assert known.any(axis=(1, 2)).all(), "no window without a label"
    original = builder.to_original_units(batch.labels.numpy()[..., None], index, every)[..., 0]
    np.testing.assert_allclose(
        original[known], scaler.inverse(table.targets[rows])[known], rtol=1e-4, atol=1e-3
    )
    if split == "train":
        assert data.train_rows[rows][known.any(axis=-1)].all()


def check_seed(folder, seed):
    """Checks one file; returns whether there was anything to train on."""
    rng = np.random.default_rng(seed)
    columns = random_columns(rng, seed)
    try:
        data = prepare(folder, columns, **random_sections(rng, columns))
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return False
    check_table(data.table)
    for split, index in data.windows.items():
        if len(index):
            check_windows(data, split, index)
            check_batch(data, split, index)
    return True


def test_any_file_gives_sound_data_or_one_line(tmp_path):
    used = 0
    for seed in range(SEEDS):
        try:
            used += check_seed(tmp_path, seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert used > SEEDS / 2, "or this would prove little"
