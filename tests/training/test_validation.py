import numpy as np
import pytest
import torch
from loops import PLACE, QUANTILES, make_data

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.windows import WindowIndex
from ds_tft.model.loss import pinball_per_quantile
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.validation import validation_loss

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    from datasets import ROLES, settings_of

    sections = {"model": {"hidden_size": 8, "num_heads": 2, "dropout": 0.5}}
    data = make_data(tmp_path_factory.mktemp("panel"), data=ROLES | {"weight": "weight"}, **sections)
    torch.manual_seed(0)
    model = TemporalFusionTransformer(derive_size(data.preprocessor, settings_of(**sections)))
    builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
    return model.train(), builder, data.windows["validation"]


def loss_of(parts, batch_size, windows=None, place=PLACE):
    model, builder, every = parts
    return validation_loss(
        model, builder, every if windows is None else windows, QUANTILES, batch_size, place
    )


@pytest.mark.parametrize("batch_size", [1, 4, 21, 64])
def test_every_window_counts_once_whatever_the_batch(parts, batch_size):
    model, builder, windows = parts
    whole = builder.build(windows, np.arange(len(windows)))
    with torch.no_grad():
        prediction = model.eval()(whole.inputs)
    sums = pinball_per_quantile(prediction, whole.labels, whole.weights, QUANTILES)
    expected = (sums / whole.weights.sum()).tolist()
    model.train()
    found = loss_of(parts, batch_size)
    assert found.per_quantile == pytest.approx(expected, rel=1e-5)
    assert found.mean == pytest.approx(sum(expected) / 3, rel=1e-5)


def test_dropout_is_off_and_back_on(parts):
    assert loss_of(parts, 8) == loss_of(parts, 8)
    assert parts[0].training
    parts[0].eval()
    loss_of(parts, 8)
    assert not parts[0].training
    parts[0].train()


def test_it_draws_no_random_number(parts):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    loss_of(parts, 8)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_sees_its_share(parts):
    """Without the other process the sums are those of the windows of this one."""
    _, _, windows = parts
    own = np.concatenate([np.arange(start, min(start + 4, 21)) for start in range(4, 21, 8)])
    share = loss_of(parts, 4, place=ProcessPlace(1, 1, 2))
    assert share.mean == pytest.approx(loss_of(parts, 4, windows.take(own)).mean, rel=1e-5)


def test_one_window(parts):
    one = parts[2].take(np.array([3]))
    assert isinstance(one, WindowIndex)
    assert np.isfinite(loss_of(parts, 16, one).mean)
