"""Which checkpoint is meant, and what becomes of those that are damaged or cannot be written."""

import resource
import shutil

import pytest
from checkpoint_cases import make_checkpoint
from loops import make_data, make_trainer, weights_of

from ds_tft.errors import ConfigError
from ds_tft.training.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from ds_tft.training.checkpoint_files import SUMS, list_checkpoints


@pytest.fixture
def run_folder(tmp_path):
    for step in (5, 20, 100):
        make_checkpoint(tmp_path / "checkpoints", step)
    for name in ("unfinished-step-200", "other"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "step-300").write_text("a file, not a checkpoint")
    return tmp_path


def unwanted(line):
    raise AssertionError(line)


def test_auto_is_the_newest(run_folder):
    assert find_checkpoint(run_folder, "auto", unwanted).name == "step-100"


def test_by_tag_and_by_path(run_folder):
    assert find_checkpoint(run_folder, "step-20", unwanted).name == "step-20"
    path = run_folder / "checkpoints" / "step-5"
    assert find_checkpoint(run_folder / "elsewhere", str(path), unwanted) == path


def test_nothing_to_resume_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume auto: no checkpoint in .*leave --resume out"):
        find_checkpoint(tmp_path, "auto", unwanted)


def test_unknown_checkpoint_lists_those_there_are(run_folder):
    with pytest.raises(ConfigError, match=r"no checkpoint 'step-6'.*step-5, step-20, step-100"):
        find_checkpoint(run_folder, "step-6", unwanted)


def test_a_damaged_one_is_passed_over_and_named(run_folder):
    (run_folder / "checkpoints" / "step-100" / "states.pt").write_bytes(b"states of step 10")
    lines = []
    assert find_checkpoint(run_folder, "auto", lines.append).name == "step-20"
    assert lines == [
        "--resume auto: step-100 is damaged (states.pt is not what was written); going on from step-20"
    ]


def test_a_damaged_one_that_is_asked_for_is_refused(run_folder):
    (run_folder / "checkpoints" / "step-20" / "model.pt").unlink()
    with pytest.raises(
        ConfigError, match=r"step-20' is damaged, got model.pt: No such file.*step-5, step-20"
    ):
        find_checkpoint(run_folder, "step-20", unwanted)


def test_nothing_but_damage_is_an_error(run_folder):
    for step in (5, 20, 100):
        (run_folder / "checkpoints" / f"step-{step}" / SUMS).unlink()
    message = (
        r"--resume auto: no whole checkpoint in .*step-100 is damaged \(SHA256SUMS is not readable\).*step-5"
    )
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(run_folder, "auto", unwanted)


def test_one_that_was_being_replaced_is_found(run_folder):
    folder = run_folder / "checkpoints"
    (folder / "step-100").rename(folder / "replaced-step-100")
    assert find_checkpoint(run_folder, "auto", unwanted) == folder / "step-100"
    assert not (folder / "replaced-step-100").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return make_data(tmp_path_factory.mktemp("data"))


def test_a_checkpoint_is_whole_and_the_pointer_names_it(data, tmp_path):
    trainer = make_trainer(tmp_path, data, keep_checkpoints=1)
    trainer.train()
    (checkpoint,) = list_checkpoints(tmp_path / "checkpoints")
    assert find_checkpoint(tmp_path, checkpoint.name, unwanted) == checkpoint
    assert (tmp_path / "checkpoints" / "latest").read_text() == checkpoint.name
    names = [line.partition("  ")[2] for line in (checkpoint / SUMS).read_text().splitlines()]
    assert sorted([*names, SUMS]) == sorted(path.name for path in checkpoint.iterdir())
    trainer.save()  # once more, over it
    assert list_checkpoints(tmp_path / "checkpoints") == [checkpoint]
    assert find_checkpoint(tmp_path, "auto", unwanted) == checkpoint


def test_a_full_disk_leaves_the_checkpoint_before(data, tmp_path):
    trainer = make_trainer(tmp_path, data)
    trainer.train()
    whole = list_checkpoints(tmp_path / "checkpoints")[-1]
    trainer.state.step += 1
    for limit in (0, 1000, 20_000):
        with pytest.raises(ConfigError) as caught, largest_file(limit):
            trainer.save()
        assert str(caught.value).startswith(
            f"checkpoints: cannot write to '{tmp_path / 'checkpoints'}', got "
        )
        assert f"make room ({whole.name} is whole, from which --resume auto goes on)" in str(caught.value)
        assert not list((tmp_path / "checkpoints").glob("*unfinished*"))
        assert list_checkpoints(tmp_path / "checkpoints") == [whole]
        assert find_checkpoint(tmp_path, "auto", unwanted) == whole
    trainer.save()
    assert find_checkpoint(tmp_path, "auto", unwanted).name == f"step-{trainer.state.step}"


class largest_file:  # noqa: N801
    """Lets no file grow beyond some bytes, as a full disk would."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *error):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_a_folder_that_is_no_folder(data, tmp_path):
    trainer = make_trainer(tmp_path, data)
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(
        ConfigError, match=r"checkpoints: cannot write to .*got File exists; make room \(there is none"
    ):
        save_checkpoint(trainer.engine, tmp_path, trainer.state, 2)


def test_leftovers_of_killed_processes_go_with_the_next_save(data, tmp_path):
    trainer = make_trainer(tmp_path, data)
    leftover = tmp_path / "checkpoints" / "unfinished-step-3"
    leftover.mkdir(parents=True)
    (leftover / "states.pt").write_bytes(b"half")
    trainer.save()
    assert not leftover.exists()


def test_a_copy_elsewhere_is_as_good(data, tmp_path):
    trainer = make_trainer(tmp_path / "run", data)
    trainer.train()
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    again = make_trainer(tmp_path / "moved", data)
    found = find_checkpoint(tmp_path / "moved", "auto", unwanted)
    assert load_checkpoint(again.engine, found, tmp_path / "moved", unwanted) == trainer.state
    assert all((weights_of(again)[name] == value).all() for name, value in weights_of(trainer).items())
