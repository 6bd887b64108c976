"""The loop on a small learnable task: sales follow the price of the day and the visits of the day before."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from datasets import ROLES, panel, prepare
from loops import (
    CONSTANT_RATE,
    make_data,
    make_trainer,
    records,
    said,
    series_of,
    weights_of,
)
from safetensors.torch import load_file

from ds_tft.errors import UserError
from ds_tft.training.checkpoint import BEST_WEIGHTS, load_checkpoint
from ds_tft.training.checkpoint_files import list_checkpoints
from ds_tft.training.validation import ValidationLoss

pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning"),
]

NO_DROPOUT = {"hidden_size": 8, "num_heads": 2, "dropout": 0.0}
RATE = "deepspeed.optimizer.params.lr"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("panel"))


def stage(number, *more):
    return (CONSTANT_RATE, f"deepspeed.zero_optimization.stage={number}", *more)


def with_weights(data, weights):
    """The data with other weights of rows (N,)."""
    table = dataclasses.replace(data.table, weights=np.asarray(weights, dtype=np.float32))
    return dataclasses.replace(data, table=table)


def scripted(monkeypatch, losses):
    """Lets validation after validation find the given losses; how often it was asked is counted."""
    asked = []

    def validation_loss(*_):
        asked.append(losses[len(asked)])
        return ValidationLoss(asked[-1], (asked[-1],) * 3)

    monkeypatch.setattr("ds_tft.training.trainer.validation_loss", validation_loss)
    return asked


# Learning


def test_the_loss_falls(data, tmp_path):
    trainer = make_trainer(tmp_path, data, epochs=6, deepspeed=(CONSTANT_RATE, f"{RATE}=0.005"))
    trainer.train()
    losses, validation = series_of(tmp_path, "loss/train"), series_of(tmp_path, "loss/validation")
    assert len(losses) == 6 * 7
    assert np.mean(losses[-7:]) < 0.4 * np.mean(losses[:7])
    assert min(validation) < 0.5 * validation[0]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(data, tmp_path):
    runs = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(12345)  # whatever was drawn before
        make_trainer(tmp_path / name, data, seed=seed).train()
        runs.append(series_of(tmp_path / name, "loss/train"))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_workers_change_nothing(data, tmp_path):
    for workers in (0, 2):
        make_trainer(tmp_path / str(workers), data, workers=workers).train()
    assert series_of(tmp_path / "0", "loss/train") == series_of(tmp_path / "2", "loss/train")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_parameter_gets_a_gradient_and_moves(data, tmp_path, number):
    settings = stage(number, "deepspeed.optimizer.params.weight_decay=0")
    trainer = make_trainer(tmp_path, data, deepspeed=settings)
    before = weights_of(trainer)
    trainer.train()
    still = [name for name, weight in weights_of(trainer).items() if torch.equal(weight, before[name])]
    assert still == []


def test_accumulation_changes_neither_losses_nor_rates(data, tmp_path):
    """The last of 7 updates has 12 of 16 windows: with accumulation its micro-batches are unequal."""
    runs = {}
    for micro in (16, 8, 4):
        folder = tmp_path / str(micro)
        settings = (f"deepspeed.train_micro_batch_size_per_gpu={micro}",)
        trainer = make_trainer(folder, data, deepspeed=settings, model=NO_DROPOUT, epochs=2)
        assert trainer.batch.accumulation == 16 // micro
        trainer.train()
        runs[micro] = folder
    for tag in ("loss/train", "optimizer/learning_rate", "loss/validation"):
        straight = series_of(runs[16], tag)
        for micro in (8, 4):
            np.testing.assert_allclose(series_of(runs[micro], tag), straight, rtol=0, atol=1e-6)
    assert len(set(series_of(runs[16], "optimizer/learning_rate"))) > 2


def test_the_rate_of_a_step_is_the_one_it_was_made_with(data, tmp_path):
    warm_up = 'deepspeed.scheduler={"type":"WarmupLR","params":{"warmup_num_steps":4,"warmup_type":"linear"}}'
    make_trainer(tmp_path, data, deepspeed=(warm_up,)).train()
    rates = series_of(tmp_path, "optimizer/learning_rate")
    np.testing.assert_allclose(rates, [0.00025, 0.0005, 0.00075, 0.001, 0.001, 0.001, 0.001])


def test_an_incomplete_update_is_the_mean_over_its_windows(data, tmp_path):
    """One update over 12 windows, 4 places of it empty, is an update over those 12 windows."""
    for name, batch_size in (("padded", 16), ("exact", 12)):
        make_trainer(
            tmp_path / name, data, batch_size=batch_size, model=NO_DROPOUT, windows_per_epoch=12
        ).train()
    for tag in ("loss/train", "optimizer/gradient_norm", "loss/validation"):
        np.testing.assert_allclose(
            series_of(tmp_path / "padded", tag), series_of(tmp_path / "exact", tag), rtol=1e-5
        )


def test_windows_count_by_the_weights_of_their_labels(data, tmp_path):
    """Rows of weight 0 beside others are as if they had no label; a weight common to all changes nothing."""
    heavy = with_weights(data, np.full(180, 1000.0))
    for name, one in (("plain", data), ("heavy", heavy)):
        make_trainer(tmp_path / name, one).train()
    np.testing.assert_allclose(
        series_of(tmp_path / "plain", "loss/train"), series_of(tmp_path / "heavy", "loss/train"), rtol=1e-5
    )
    uneven = with_weights(data, np.where(np.arange(180) < 60, 1.0, 1e-3))
    make_trainer(tmp_path / "uneven", uneven).train()
    assert series_of(tmp_path / "uneven", "loss/train")[0] != series_of(tmp_path / "plain", "loss/train")[0]


@pytest.mark.parametrize("number", [1, 2])
def test_zero_stages_give_the_same_losses(data, tmp_path, number):
    folders = {}
    for each in (0, number):
        folders[each] = tmp_path / str(each)
        make_trainer(folders[each], data, deepspeed=stage(each)[1:], epochs=2).train()
    for tag in ("loss/train", "loss/validation", "optimizer/gradient_norm", "optimizer/learning_rate"):
        np.testing.assert_allclose(
            series_of(folders[number], tag), series_of(folders[0], tag), rtol=1e-5, err_msg=tag
        )


@pytest.mark.parametrize("clip", ["0", "0.05"])
def test_stage_0_clips_and_reports_as_stage_1_does(data, tmp_path, clip):
    for number in (0, 1):
        settings = (*stage(number), f"deepspeed.gradient_clipping={clip}",
                    'deepspeed.optimizer={"type":"SGD","params":{"lr":0.1}}')  # fmt: skip
        make_trainer(tmp_path / str(number), data, deepspeed=settings).train()
    for tag in ("optimizer/gradient_norm", "loss/train"):
        zero, one = (series_of(tmp_path / name, tag) for name in ("0", "1"))
        np.testing.assert_allclose(zero, one, rtol=1e-5)
    assert min(series_of(tmp_path / "0", "optimizer/gradient_norm")) > 0.05


def test_bf16_trains(data, tmp_path):
    settings = stage(1, "deepspeed.bf16.enabled=true", f"{RATE}=0.005")
    trainer = make_trainer(tmp_path, data, deepspeed=settings, epochs=4)
    trainer.train()
    assert next(trainer.engine.module.parameters()).dtype == torch.bfloat16
    validation = series_of(tmp_path, "loss/validation")
    assert min(validation) < 0.6 * validation[0]
    assert all(weight.dtype == torch.float32 for weight in load_file(tmp_path / BEST_WEIGHTS).values())


def test_stage_3_saves_whole_weights(data, tmp_path):
    plainly = "deepspeed.ds_tft.streaming=false"
    trainer = make_trainer(tmp_path, data, deepspeed=stage(3, plainly), windows_per_epoch=32)
    trainer.train()
    plain = make_trainer(tmp_path / "plain", data, deepspeed=stage(1, plainly), windows_per_epoch=32)
    plain.train()
    best, expected = (load_file(folder / BEST_WEIGHTS) for folder in (tmp_path, tmp_path / "plain"))
    assert best.keys() == expected.keys()
    for name, weight in best.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-5)


# Validation, early stopping, the best model


def test_validation_comes_before_the_first_step_and_is_never_the_best(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [0.1, 5.0, 4.0])
    trainer = make_trainer(tmp_path, data, epochs=2)
    state = trainer.train()
    assert list(records(tmp_path, "loss/validation")) == [0, 7, 14]
    assert (state.best_loss, state.best_step) == (4.0, 14)


def test_the_best_weights_are_kept(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [9.0, 3.0, 2.0, 4.0, float("nan")])
    trainer = make_trainer(tmp_path, data, epochs=4)
    kept = {}
    save = trainer.save
    monkeypatch.setattr(
        trainer, "save", lambda: (kept.setdefault(trainer.state.step, weights_of(trainer)), save())
    )
    state = trainer.train()
    assert (state.best_step, state.best_loss, state.nonfinite_validations) == (14, 2.0, 1)
    best = load_file(tmp_path / BEST_WEIGHTS)
    assert all(torch.equal(best[name], weight) for name, weight in kept[14].items())
    assert not all(torch.equal(best[name], weight) for name, weight in kept[28].items())
    assert [record["best"] for record in records(tmp_path, "best").values()] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_run_without_a_finite_validation_has_no_best(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [float("nan")] * 2)
    state = make_trainer(tmp_path, data).train()
    assert state.best_step is None
    assert not (tmp_path / BEST_WEIGHTS).exists()


def test_early_stopping(data, tmp_path, monkeypatch):
    asked = scripted(monkeypatch, [9.0, 3.0, 2.0, 2.0, 2.5, 0.1])
    trainer = make_trainer(tmp_path, data, epochs=10, patience=2)
    state = trainer.train()
    assert asked == [9.0, 3.0, 2.0, 2.0, 2.5]
    assert state.stopped_early
    assert state.step == 28
    assert "stopped early: 2 validations without improvement over step 14" in said(trainer)
    assert list_checkpoints(tmp_path / "checkpoints")[-1].name == "step-28"


def test_early_stopping_within_an_epoch_loses_no_loss(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [9.0, 3.0, 4.0])
    trainer = make_trainer(tmp_path, data, patience=1, validate_every_steps=2, log_every_steps=100)
    state = trainer.train()
    assert (state.step, state.epoch, state.update) == (4, 0, 4)
    assert list(records(tmp_path, "loss/train")) == [4]


def test_validation_and_checkpoints_within_an_epoch(data, tmp_path):
    trainer = make_trainer(
        tmp_path,
        data,
        validate_every_steps=3,
        checkpoint_every_steps=2,
        log_every_steps=5,
        keep_checkpoints=9,
    )
    trainer.train()
    assert list(records(tmp_path, "loss/validation")) == [0, 3, 6, 7]
    assert list(records(tmp_path, "loss/train")) == [5, 7]
    names = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-2", "step-4", "step-6", "step-7"]


def test_only_the_newest_checkpoints_are_kept(data, tmp_path):
    make_trainer(tmp_path, data, checkpoint_every_steps=1, keep_checkpoints=2).train()
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-6", "step-7"]
    assert not list((tmp_path / "checkpoints").glob("unfinished-*"))


def test_without_validation_the_run_goes_to_its_end(tmp_path):
    whole = prepare(tmp_path, panel(), data=ROLES, split={"train": 0.8, "validation": 0.0})
    state = make_trainer(tmp_path / "run", whole, epochs=2, patience=1).train()
    assert state.epoch == 2
    assert state.best_step is None
    assert "loss/validation" not in (tmp_path / "run" / "metrics.jsonl").read_text()


# Numbers that are not finite


@pytest.mark.parametrize("number", [0, 1, 2])
def test_updates_that_are_not_finite_are_left_out_counted_and_end_the_run(data, tmp_path, number):
    weights = np.ones(180)
    folder = tmp_path / "run"
    good = make_trainer(folder, data, deepspeed=stage(number), epochs=1)
    good.train()
    weights[:] = np.inf
    trainer = make_trainer(
        folder, with_weights(data, weights), deepspeed=stage(number), max_nonfinite_steps=3
    )
    trainer.validation = trainer.validation.take(np.arange(0))
    trainer.state = load_checkpoint(trainer.engine, folder / "checkpoints" / "step-7", folder, print)
    trainer.state.epoch = 0
    before = weights_of(trainer)
    with pytest.raises(UserError) as caught:
        trainer.train()
    message = str(caught.value)
    assert "\n" not in message
    assert "got 3 such updates in a row at step 10" in message
    assert "step-7" in message
    assert f"{BEST_WEIGHTS} of step 7" in message
    assert "lower the learning rate" in message
    assert trainer.state.skipped_steps == trainer.engine.skipped_steps == 3
    assert said(trainer).count("update left out") == 3
    where = r"\(16 windows from 2024-01-\S* to 2024-0\S* of series 'store 0', 'store 1', 'store 2'\)"
    assert len(re.findall(where, said(trainer))) == 3
    assert "look for extreme values in the data, the last in 16 windows from 2024-01-" in message
    after = weights_of(trainer)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    skipped = [records(folder, "optimizer/skipped_steps")[step]["optimizer/skipped_steps"] for step in (8, 9)]
    assert skipped == [1, 2]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_bad_update_does_no_harm(data, tmp_path, number):
    """A planned price that is infinite spoils the updates of the 11 windows that have its row."""
    known = data.table.known_reals.copy()
    known[20] = np.inf
    bad = dataclasses.replace(data, table=dataclasses.replace(data.table, known_reals=known))
    trainer = make_trainer(tmp_path, bad, deepspeed=stage(number), batch_size=4, max_nonfinite_steps=27)
    state = trainer.train()
    assert 3 <= state.skipped_steps <= 11
    assert all(weight.isfinite().all() for weight in weights_of(trainer).values())
    losses = series_of(tmp_path, "loss/train")
    assert losses.count(None) == state.skipped_steps, "null in JSON"
    assert records(tmp_path, "optimizer/skipped_steps")[27]["optimizer/skipped_steps"] == state.skipped_steps


def test_an_absurd_rate_ends_the_run_and_leaves_a_checkpoint_that_loads(data, tmp_path):
    trainer = make_trainer(
        tmp_path,
        data,
        deepspeed=(CONSTANT_RATE, f"{RATE}=1e30", "deepspeed.gradient_clipping=0"),
        checkpoint_every_steps=1,
        max_nonfinite_steps=4,
        epochs=9,
    )
    with pytest.raises(
        UserError, match=r"not finite, got 4 such updates in a row.*weights up to .*e\+"
    ) as caught:
        trainer.train()
    assert "step-" in str(caught.value)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    again = make_trainer(tmp_path / "again", data)
    state = load_checkpoint(again.engine, newest, tmp_path / "again", print)
    assert state.step == trainer.state.step - 1
    assert all(weight.isfinite().all() for weight in weights_of(again).values())


def test_nothing_kept_is_said(data, tmp_path):
    trainer = make_trainer(tmp_path, with_weights(data, np.full(180, np.inf)), max_nonfinite_steps=1)
    trainer.validation = trainer.validation.take(np.arange(0))
    with pytest.raises(UserError, match=r"kept in '.*': nothing yet"):
        trainer.train()


# Leaving and going on


SCHEDULES = [(CONSTANT_RATE,), ()]


@pytest.mark.parametrize(
    ("number", "precision"), [(0, ()), (1, ()), (2, ()), (1, ("deepspeed.bf16.enabled=true",))]
)
def test_a_resumed_run_is_the_run_that_was_not_left(data, tmp_path, number, precision):
    """Left in the middle of an epoch, between two log lines, with momentum, schedule and dropout."""
    settings = (f"deepspeed.zero_optimization.stage={number}", *precision)
    options = {"deepspeed": settings, "epochs": 3, "log_every_steps": 3, "checkpoint_every_steps": 5,
               "patience": 9, "batch_size": 16, "keep_checkpoints": 99}  # fmt: skip
    straight = make_trainer(tmp_path / "straight", data, **options)
    straight.train()

    left = make_trainer(tmp_path / "left", data, **options)
    update = left._update

    def leave(*arguments):
        if left.state.step == 12:
            raise KeyboardInterrupt
        update(*arguments)

    left._update = leave
    with pytest.raises(KeyboardInterrupt):
        left.train()
    assert left.state.step == 12

    resumed = make_trainer(tmp_path / "left", data, **options)
    newest = list_checkpoints(tmp_path / "left" / "checkpoints")[-1]
    assert newest.name == "step-10"
    resumed.state = load_checkpoint(resumed.engine, newest, tmp_path / "left", print)
    assert (resumed.state.epoch, resumed.state.update) == (1, 3)
    resumed.recorders.log.rewind(resumed.state.step)
    resumed.train()

    for tag in ("loss/train", "loss/validation", "optimizer/learning_rate", "optimizer/gradient_norm"):
        assert series_of(tmp_path / "left", tag) == series_of(tmp_path / "straight", tag), tag
        assert list(records(tmp_path / "left", tag)) == list(records(tmp_path / "straight", tag)), tag
    ends = weights_of(resumed), weights_of(straight)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    best = [load_file(tmp_path / name / BEST_WEIGHTS) for name in ("left", "straight")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    assert resumed.state == straight.state


def test_early_stopping_counts_over_a_restart(data, tmp_path, monkeypatch):
    losses = [9.0, 3.0, 4.0, 4.0, 4.0]
    asked = scripted(monkeypatch, losses)
    first = make_trainer(tmp_path, data, epochs=2, patience=3)
    first.train()
    assert asked == losses[:3]
    second = make_trainer(tmp_path, data, epochs=9, patience=3)
    second.state = load_checkpoint(second.engine, tmp_path / "checkpoints" / "step-14", tmp_path, print)
    state = second.train()
    assert asked == losses
    assert state.step == 28


def test_more_patience_takes_a_stopped_run_up_again(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [9.0, 3.0, 4.0, 2.0])
    assert make_trainer(tmp_path, data, epochs=9, patience=1).train().stopped_early
    same = make_trainer(tmp_path, data, epochs=3, patience=1)
    same.state = load_checkpoint(same.engine, tmp_path / "checkpoints" / "step-14", tmp_path, print)
    assert same.train().step == 14
    more = make_trainer(tmp_path, data, epochs=3, patience=2)
    more.state = load_checkpoint(more.engine, tmp_path / "checkpoints" / "step-14", tmp_path, print)
    state = more.train()
    assert (state.step, state.best_step) == (21, 21)


def test_the_best_weights_are_those_the_checkpoint_knows(data, tmp_path, monkeypatch):
    scripted(monkeypatch, [9.0, 3.0, 2.0, 7.0])
    make_trainer(tmp_path, data, epochs=2).train()
    later = load_file(tmp_path / BEST_WEIGHTS)
    resumed = make_trainer(tmp_path, data, epochs=2)
    resumed.state = load_checkpoint(resumed.engine, tmp_path / "checkpoints" / "step-7", tmp_path, print)
    at_7 = load_file(tmp_path / BEST_WEIGHTS)
    assert not all(torch.equal(at_7[name], weight) for name, weight in later.items())
    state = resumed.train()
    assert (state.best_step, state.best_loss) == (7, 3.0)
    best = load_file(tmp_path / BEST_WEIGHTS)
    assert all(torch.equal(best[name], weight) for name, weight in at_7.items())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_changed_rates_and_clipping_count_from_the_first_step_on(data, tmp_path, number):
    make_trainer(tmp_path, data, deepspeed=stage(number)).train()
    lower = (
        f"{RATE}=0.0002",
        "deepspeed.gradient_clipping=0.3",
        "deepspeed.optimizer.params.weight_decay=0.5",
    )
    resumed = make_trainer(tmp_path, data, deepspeed=stage(number, *lower), epochs=2)
    resumed.state = load_checkpoint(resumed.engine, tmp_path / "checkpoints" / "step-7", tmp_path, print)
    group = resumed.engine.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.0002, 0.5)
    if number:
        assert resumed.engine.optimizer.clip_grad == 0.3
    resumed.train()
    assert set(series_of(tmp_path, "optimizer/learning_rate")[7:]) == {0.0002}


def test_a_longer_schedule_counts_from_the_first_step_on(data, tmp_path):
    make_trainer(tmp_path, data, deepspeed=(), epochs=1).train()
    straight = make_trainer(tmp_path / "straight", data, deepspeed=(), epochs=3)
    straight.train()
    resumed = make_trainer(tmp_path, data, deepspeed=(), epochs=3)
    resumed.state = load_checkpoint(resumed.engine, tmp_path / "checkpoints" / "step-7", tmp_path, print)
    resumed.train()
    rates = [series_of(folder, "optimizer/learning_rate") for folder in (tmp_path, tmp_path / "straight")]
    assert rates[0][7:] == rates[1][7:]
