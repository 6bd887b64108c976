import numpy as np
import pytest

from ds_tft.config.batch import BatchSizes
from ds_tft.data.sampler import EpochPlan, evaluation_batches


def test_every_window_once_then_padding():
    plan = EpochPlan(num_windows=103, global_batch=10, seed=1)
    updates = plan.updates(0)
    assert updates.shape == (plan.updates_per_epoch, 10) == (11, 10)
    assert sorted(updates.ravel()[:103].tolist()) == list(range(103))
    assert (updates.ravel()[103:] == -1).all()


def test_a_function_of_seed_and_epoch():
    plan = EpochPlan(num_windows=1000, global_batch=32, seed=1)
    again = EpochPlan(num_windows=1000, global_batch=32, seed=1)
    other = EpochPlan(num_windows=1000, global_batch=32, seed=2)
    assert (plan.updates(3) == again.updates(3)).all()
    assert (plan.updates(3) != plan.updates(4)).any()
    assert (plan.updates(3) != other.updates(3)).any()


def test_windows_are_drawn_without_replacement():
    plan = EpochPlan(num_windows=1000, global_batch=30, windows_per_epoch=100, seed=0)
    drawn = [plan.updates(epoch).ravel() for epoch in (0, 1)]
    used = [set(d[d >= 0].tolist()) for d in drawn]
    assert [len(u) for u in used] == [100, 100]
    assert used[0] != used[1]
    assert plan.updates_per_epoch == 4
    assert plan.lines() == ["epoch: 100 of 1000 windows in 4 updates, 20 places of the last one empty"]


def test_more_windows_asked_for_than_there_are():
    plan = EpochPlan(num_windows=20, global_batch=10, windows_per_epoch=50)
    assert plan.windows_used == 20
    assert plan.lines() == [
        "epoch: 20 of 20 windows in 2 updates",
        "windows_per_epoch (50) is above what there is: all are used",
    ]


@pytest.mark.parametrize("sizes", [(2, 6, 1), (2, 3, 2), (3, 4, 1), (1, 4, 3), (12, 1, 1)])
def test_ranks_and_accumulation_do_not_change_an_update(sizes):
    micro, accumulation, ranks = sizes
    sizes = BatchSizes(
        global_batch=micro * accumulation * ranks,
        micro_batch=micro,
        accumulation=accumulation,
        world_size=ranks,
    )
    plan = EpochPlan(num_windows=50, global_batch=12, seed=4)
    parts = [plan.micro_batches(2, sizes, rank) for rank in range(ranks)]
    updates = plan.updates(2)
    for rank, part in enumerate(parts):
        assert part.shape == (len(updates) * accumulation, micro)
        for position, windows in enumerate(part):
            update, m = divmod(position, accumulation)
            start = (m * ranks + rank) * micro
            assert windows.tolist() == updates[update, start : start + micro].tolist()
    together = np.concatenate([part.reshape(len(updates), -1) for part in parts], axis=1)
    assert (np.sort(together) == np.sort(updates)).all()


def test_another_global_batch_is_refused():
    with pytest.raises(AssertionError, match="another plan"):
        EpochPlan(num_windows=50, global_batch=12).micro_batches(
            0, BatchSizes(global_batch=5, micro_batch=5, accumulation=1, world_size=1), 0
        )


@pytest.mark.parametrize("batch", [1, 3, 4, 10])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_covers_every_window_once(batch, ranks):
    parts = [evaluation_batches(10, batch, rank, ranks) for rank in range(ranks)]
    assert len({part.shape for part in parts}) == 1
    assert parts[0].shape[1] == batch
    everything = np.concatenate([part.ravel() for part in parts])
    assert sorted(everything[everything >= 0].tolist()) == list(range(10))


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_batch_is_no_larger_than_there_are_windows(ranks):
    parts = [evaluation_batches(10, 10**12, rank, ranks) for rank in range(ranks)]
    assert [part.shape for part in parts] == [(1, 10)] * ranks
    everything = np.concatenate([part.ravel() for part in parts])
    assert sorted(everything[everything >= 0].tolist()) == list(range(10))
    assert evaluation_batches(0, 4).shape == (0, 1)
