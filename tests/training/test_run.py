"""Whole runs in this process, on a file of three small series."""

import json
import shutil

import pytest
import torch
from datasets import ROLES, WINDOW, panel, write
from loops import MODEL, PLACE, records, series_of
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ds_tft.errors import ConfigError, DataError
from ds_tft.export import read_export
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.checkpoint_files import SUMS, finish_draft, list_checkpoints
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.run import train

pytestmark = pytest.mark.usefixtures("process_group")

TRAINING = {
    "epochs": 2,
    "log_every_steps": 3,
    "checkpoint_every_steps": 4,
    "keep_checkpoints": 9,
    "patience": 0,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    config = {"data": ROLES, "window": WINDOW, "model": MODEL, "training": TRAINING}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return folder


def run(files, output, *overrides, **arguments):
    given = {"parquet": str(files / "panel.parquet"), "config": str(files / "run.json"), "batch_size": 16}
    place = arguments.pop("place", PLACE)
    train(TrainArguments(**(given | {"output_dir": str(output), "overrides": overrides} | arguments)), place)
    return output


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return run(files, tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def copy(finished, tmp_path):
    """A finished run to do something to."""
    return shutil.copytree(finished, tmp_path / "run")


def events_of(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


# What a run leaves behind


def test_the_run_folder_holds_everything(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {"settings.json", "metrics.jsonl", "tensorboard", "checkpoints", "export",
                     "best.safetensors", "evaluation.json"}  # fmt: skip
    assert not [name for name in names if "unfinished" in name]
    assert [path.name for path in list_checkpoints(finished / "checkpoints")] == [
        "step-4", "step-7", "step-8", "step-12", "step-14",
    ]  # fmt: skip


def test_the_saved_settings_are_complete(finished, files):
    saved = json.loads((finished / "settings.json").read_text())
    assert set(saved) == {"arguments", "data", "window", "split", "scaling", "model", "training", "layout",
                          "prepared", "processes", "engine", "ds_tft"}  # fmt: skip
    assert saved["window"] == {"encoder_length": 8, "horizon": 3, "min_encoder_length": None,
                               "stride": 1, "evaluation_stride": 1}  # fmt: skip
    assert saved["training"]["epochs"] == 2
    assert saved["layout"]["roles"]["known_reals"] == ["price"]
    assert saved["layout"]["frequency"].startswith("1D")
    assert saved["layout"]["gaps"] == "fill"
    engine = saved["engine"]
    assert engine["train_batch_size"] == engine["train_micro_batch_size_per_gpu"] == 16
    assert engine["optimizer"]["params"]["lr"] == 0.001
    assert engine["scheduler"]["params"]["total_num_steps"] == 15
    assert "auto" not in json.dumps({"engine": engine, "layout": saved["layout"]})


def test_one_record_for_each_step_and_kind(finished):
    assert list(records(finished, "loss/train")) == [3, 6, 7, 9, 12, 14]
    assert list(records(finished, "loss/validation")) == [0, 7, 14]
    lines = (finished / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 9
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_events_are_against_optimizer_steps(finished):
    events = events_of(finished / "tensorboard")
    traced = {tag: events.pop(tag) for tag in list(events) if tag.startswith("trace")}
    assert {tuple(event.step for event in of_tag) for of_tag in traced.values()} == {(2,)}
    assert "trace_blocks/attention_kept_mib" in traced
    trained, validated = [3, 6, 7, 9, 12, 14], [0, 7, 14]
    expected = {
        "loss/train": trained,
        "loss/validation": validated,
        "loss/validation_p10": validated,
        "loss/validation_p50": validated,
        "loss/validation_p90": validated,
        "optimizer/learning_rate": trained,
        "optimizer/gradient_norm": trained,
        "optimizer/skipped_steps": trained,
        "throughput/windows_per_second": trained,
        "memory/host_rss_mib": trained,
        "memory/host_rss_peak_mib": trained,
        "memory/states_mib": trained,
    }
    assert {tag: [event.step for event in of_tag] for tag, of_tag in events.items()} == expected
    for tag, of_tag in events.items():
        assert [event.value for event in of_tag] == pytest.approx(series_of(finished, tag), rel=1e-5), tag
    assert not any("cuda" in tag for tag in events)


def test_the_export_is_the_best_model(finished):
    loaded = read_export(finished)
    losses = {
        step: record["loss/validation"] for step, record in records(finished, "loss/validation").items()
    }
    best = min((step for step in losses if step), key=losses.__getitem__)
    assert loaded.description.step == best
    assert loaded.description.validation_loss == losses[best]
    weights, kept = loaded.model.state_dict(), load_file(finished / "best.safetensors")
    assert all(torch.equal(weights[name], kept[name]) for name in kept)


# Going on


def test_a_longer_run_goes_on(copy, files):
    run(files, copy, resume="auto", epochs=3)
    assert list(records(copy, "loss/train")) == [3, 6, 7, 9, 12, 14, 15, 18, 21]
    assert list_checkpoints(copy / "checkpoints")[-1].name == "step-21"


def test_from_a_checkpoint_in_the_middle_to_the_same_end(copy, finished, files):
    (copy / "metrics.jsonl").write_text((copy / "metrics.jsonl").read_text() + '{"step": 15, "lo')
    run(files, copy, resume="step-8")
    assert [series_of(copy, tag) for tag in ("loss/train", "loss/validation")] == [
        series_of(finished, tag) for tag in ("loss/train", "loss/validation")
    ]
    ours, theirs = (load_file(folder / "export" / "weights.safetensors") for folder in (copy, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    steps = [event.step for event in events_of(copy / "tensorboard")["loss/train"]]
    assert steps == [3, 6, 7, 9, 12, 14], "each once"


def test_a_finished_run_resumed_only_evaluates_again(copy, finished, files, capsys):
    run(files, copy, resume="auto")
    assert "nothing is left to train, 2 epochs are done; a larger --epochs goes on" in capsys.readouterr().out
    assert (copy / "metrics.jsonl").read_text() == (finished / "metrics.jsonl").read_text()
    assert json.loads((copy / "evaluation.json").read_text()) == json.loads(
        (finished / "evaluation.json").read_text()
    )


def test_a_checkpoint_of_another_run_needs_the_same_settings_too(copy, finished, files, tmp_path):
    run(files, copy, resume=str(finished / "checkpoints" / "step-12"))
    assert list(records(copy, "loss/train"))[-1] == 14
    with pytest.raises(ConfigError, match=r"settings.json' is not readable.*give the run's own folder"):
        run(files, tmp_path / "nowhere", resume=str(finished / "checkpoints" / "step-12"))


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("model.hidden_size=16",), ["model.hidden_size: 8 -> 16"]),
        (("model.quantiles=[0.1,0.5]",), ["model.quantiles"]),
        (("window.encoder_length=9",), ["window.encoder_length: 8 -> 9"]),
        (
            ('data.observed_reals=["weight","visits"]',),
            ["data.observed_reals", "layout.roles.observed_reals"],
        ),
        (("model.hidden_size=16", "window.horizon=2"), ["model.hidden_size", "window.horizon"]),
        (("training.seed=5",), ["training.seed: 0 -> 5"]),
        (("deepspeed.zero_optimization.stage=0",), ["engine.zero_optimization.stage: 1 -> 0"]),
        (("deepspeed.bf16.enabled=true",), ["engine.bf16"]),
        (("deepspeed.scheduler=null",), ["engine.scheduler"]),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(finished, files, overrides, keys):
    with pytest.raises(ConfigError) as caught:
        run(files, finished, *overrides, resume="auto")
    message = str(caught.value)
    assert message.startswith("--resume: settings or data differ")
    assert "\n" not in message
    assert all(key in message for key in keys)


def test_columns_in_another_order_are_another_model(finished, files, tmp_path):
    config = json.loads((files / "run.json").read_text())
    folder = shutil.copytree(files, tmp_path / "files")
    config["data"] |= {"known_reals": ["price", "weight"]}
    (folder / "run.json").write_text(json.dumps(config))
    output = run(folder, tmp_path / "run", epochs=1)
    config["data"] |= {"known_reals": ["weight", "price"]}
    (folder / "run.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r'layout.roles.known_reals: \["price", "weight"\] -> \["weight", "price"\]'
    ):
        run(folder, output, resume="auto", epochs=1)


def test_other_data_in_the_same_columns_is_noticed(finished, files, tmp_path):
    columns = panel()
    columns["visits"] = columns["visits"] * 1.01
    path = write(tmp_path / "other.parquet", columns)
    with pytest.raises(ConfigError, match=r"--resume: settings or data differ.*prepared.scalers"):
        run(files, finished, resume="auto", parquet=path)


def test_what_other_processes_have_left_out_is_said(finished, files, tmp_path):
    """A file of a second process that holds nothing: DeepSpeed's converter fails."""
    moved = shutil.copytree(finished, tmp_path / "by-two")
    newest = list_checkpoints(moved / "checkpoints")[-1]
    (newest / "zero_pp_rank_1_mp_rank_00_optim_states.pt").touch()
    (newest / SUMS).unlink()
    newest.rename(newest.with_name(f"unfinished-{newest.name}"))
    finish_draft(moved / "checkpoints", newest.name, 99)
    message = rf"--resume: '.*{newest.name}' was written by 2 processes and cannot be put together .*start 2 processes"
    with pytest.raises(ConfigError, match=message):
        run(files, moved, resume="auto")
    assert not list((moved / "checkpoints").glob("unfinished*"))


def test_nothing_to_resume(files, tmp_path):
    with pytest.raises(ConfigError, match=r"--resume auto: no checkpoint in .*check --output-dir"):
        run(files, tmp_path / "empty", resume="auto")
    assert not (tmp_path / "empty").exists()


def test_an_unknown_checkpoint(finished, files):
    with pytest.raises(ConfigError, match=r"--resume: no checkpoint 'step-5'.*step-4, step-7"):
        run(files, finished, resume="step-5")


# Refusals


def test_a_used_folder_is_refused(finished, files):
    before = (finished / "settings.json").read_text()
    with pytest.raises(ConfigError, match=r"already holds a run.*--resume auto"):
        run(files, finished)
    assert (finished / "settings.json").read_text() == before


def test_a_folder_that_cannot_be_made(files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output-dir: cannot write to"):
        run(files, tmp_path / "file" / "run")


def test_a_mistake_in_the_data_leaves_no_folder(files, tmp_path):
    with pytest.raises(DataError, match="no column 'profit'"):
        run(files, tmp_path / "run", targets=("profit",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "got"),
    [((), "no validation had a finite loss"), (("split.validation=0",), "weights are not finite")],
)
def test_a_run_that_diverged_exports_nothing(files, tmp_path, monkeypatch, more, got):
    def spoil(trainer):
        with torch.no_grad():
            next(trainer.engine.module.parameters()).fill_(float("nan"))

    monkeypatch.setattr("ds_tft.training.trainer.Trainer.train", spoil)
    with pytest.raises(
        ConfigError, match=rf"optimizer.params.lr: training diverged .*, got {got}; lower the"
    ):
        run(files, tmp_path / "run", *more)
    assert not (tmp_path / "run" / "export").exists()


def test_a_batch_of_mostly_empty_places_leaves_no_folder(files, tmp_path):
    with pytest.raises(ConfigError, match=r"an epoch has 5 windows, got 64 per update; give at most 5"):
        run(files, tmp_path / "run", "training.windows_per_epoch=5", batch_size=64)
    assert not (tmp_path / "run").exists()


def test_batches_that_do_not_divide(files, tmp_path):
    with pytest.raises(ConfigError, match=r"--batch-size: 3 is not a multiple of 2 processes"):
        run(files, tmp_path / "run", batch_size=3, place=ProcessPlace(0, 0, 2))


# Other ways to run


def test_without_validation_and_test_the_last_weights_are_exported(files, tmp_path, capsys):
    output = run(files, tmp_path / "run", "split.train=1.0", "split.validation=0.0", epochs=1)
    assert not (output / "evaluation.json").exists()
    assert read_export(output).description.validation_loss is None
    words = capsys.readouterr().out
    assert "export: the weights of the last step; there is no validation period" in words
    command = next(line for line in words.splitlines() if "launch/evaluate.py" in line)
    assert command.endswith(" --split train"), "the only period that there is"
    assert not records(output, "loss/validation")
    run(files, output, "split.train=1.0", "split.validation=0.0", epochs=2, resume="auto")
    newest = list_checkpoints(output / "checkpoints")[-1]
    assert newest.name == f"step-{read_export(output).description.step}"


def test_events_elsewhere_or_not_at_all(files, tmp_path):
    elsewhere = f"deepspeed.tensorboard.output_path={tmp_path / 'events'}"
    named = "deepspeed.tensorboard.job_name=tft"
    output = run(files, tmp_path / "run", elsewhere, named, epochs=1)
    assert "loss/train" in events_of(tmp_path / "events" / "tft")
    assert not (output / "tensorboard").exists()
    without = run(files, tmp_path / "without", "deepspeed.tensorboard.enabled=false", epochs=1)
    assert not (without / "tensorboard").exists()
    assert records(without, "loss/train")


def test_several_targets_and_weights(files, tmp_path):
    output = run(
        files,
        tmp_path / "run",
        "data.observed_reals=[]",
        "data.weight=weight",
        targets=("visits", "sales"),
        epochs=1,
    )
    description = read_export(output).description
    assert description.size.num_targets == 2
    assert description.preprocessor.layout.roles.target == ("visits", "sales")
    assert (output / "evaluation.json").exists()


def test_next_commands_forecast_what_has_passed_where_inputs_must_be_known(files, tmp_path, capsys):
    """The file ends with the last target, so a forecast behind it would lack the known price."""
    folder = run(files, tmp_path / "run", "training.epochs=1")
    words = capsys.readouterr().out
    command = next(line for line in words.splitlines() if "launch/predict.py" in line)
    assert f"--model {folder} " in command
    assert "--from 2024-" in command
    assert "known in advance: no column" not in words
    assert "validation: " in words
    assert "epoch 1  " in words
    assert "epoch 0" not in words


def test_a_resumed_run_says_which_steps_its_time_is_of(files, copy, capsys):
    step = list_checkpoints(copy / "checkpoints")[-1].name.removeprefix("step-")
    run(files, copy, "training.epochs=3", resume="auto")
    words = capsys.readouterr().out
    assert f"of them since step {step}, in" in words
