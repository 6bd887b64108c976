import math

import pytest

from ds_tft.errors import ConfigError
from ds_tft.training.state import TrainingState


@pytest.mark.parametrize(
    ("losses", "best", "nonfinite"),
    [
        ([math.nan, 0.5], 0.5, 1),
        ([0.5, math.nan], 0.5, 1),
        ([math.nan, math.nan], None, 2),
        ([0.5, math.inf, 0.4], 0.4, 1),
    ],
)
def test_nonfinite_loss_is_never_best_and_never_blocks(losses, best, nonfinite):
    state = TrainingState()
    for loss in losses:
        state.record_validation(loss)
    assert state.best_loss == best
    assert state.nonfinite_validations == nonfinite


def test_patience_counts_from_the_best():
    state = TrainingState()
    assert state.record_validation(1.0)
    assert not state.record_validation(1.0)
    assert not state.record_validation(2.0)
    assert state.validations_without_improvement == 2
    assert state.record_validation(0.9)
    assert state.validations_without_improvement == 0


def test_round_trip():
    state = TrainingState(step=7, epoch=1, best_loss=0.25, best_step=4)
    assert TrainingState.from_dict(state.to_dict(), "here") == state


def test_another_version_names_the_differing_fields():
    raw = TrainingState().to_dict()
    raw["version"] = 0
    raw["colour"] = "blue"
    del raw["epoch"]
    with pytest.raises(ConfigError, match=r"here: training state of version 0 .*\['colour', 'epoch'\]"):
        TrainingState.from_dict(raw, "here")
