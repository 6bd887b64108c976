import pytest

from ds_tft.errors import ConfigError
from ds_tft.training.checkpoint import find_checkpoint, list_checkpoints


@pytest.fixture
def run_folder(tmp_path):
    for name in ("step-5", "step-100", "step-20", "unfinished-step-200", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-300").write_text("a file, not a checkpoint")
    return tmp_path


def test_finished_checkpoints_in_order_of_steps(run_folder):
    names = [path.name for path in list_checkpoints(run_folder / "checkpoints")]
    assert names == ["step-5", "step-20", "step-100"]


def test_auto_is_the_newest(run_folder):
    assert find_checkpoint(run_folder, "auto").name == "step-100"


def test_by_tag_and_by_path(run_folder):
    assert find_checkpoint(run_folder, "step-20").name == "step-20"
    path = run_folder / "checkpoints" / "step-5"
    assert find_checkpoint(run_folder / "elsewhere", str(path)) == path


def test_nothing_to_resume_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume auto: no checkpoint in .*leave --resume out"):
        find_checkpoint(tmp_path, "auto")


def test_unknown_checkpoint_lists_those_there_are(run_folder):
    with pytest.raises(ConfigError, match=r"no checkpoint 'step-6'.*step-5, step-20, step-100"):
        find_checkpoint(run_folder, "step-6")
