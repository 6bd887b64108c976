"""The form in which models forecast: folded and streaming, whatever they came as, with the forecasts unchanged."""

from __future__ import annotations

import copy

import pytest
import torch

from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.streaming import is_streamed, stream_variable_selection
from ds_tft.model.fold import fold, is_folded
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.stored import build_stored

SIZE = ModelSize(
    static_reals=2,
    static_categories=(3,),
    observed_reals=3,
    observed_categories=(5,),
    known_reals=2,
    known_categories=(4,),
    encoder_length=6,
    horizon=3,
    hidden_size=8,
    num_heads=2,
    dropout=0.3,
)
CPU = torch.device("cpu")


def trained(size: ModelSize = SIZE) -> TemporalFusionTransformer:
    """A plain model whose biases and norms are not at their initial zeros and ones."""
    torch.manual_seed(0)
    model = TemporalFusionTransformer(size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def stored(plain: TemporalFusionTransformer) -> TemporalFusionTransformer:
    """The INT8 model of a plain one."""
    folded = fold(plain)
    stream_variable_selection(folded)
    covered = Covered.all_of(folded)
    quantisation = attach_quantisation(folded, covered)
    calibrate(folded, quantisation, [draw(batch=16)], "percentile", 99.9)
    return build_stored(plain.size, covered, folded.state_dict())


def draw(size: ModelSize = SIZE, batch: int = 5, *, padded: bool = False) -> ModelInputs:
    generator = torch.Generator().manual_seed(1)
    length, steps = size.encoder_length, size.encoder_length + size.horizon

    def reals(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator)

    def categories(cardinalities: tuple[int, ...], *shape: int) -> torch.Tensor:
        columns = [torch.randint(count, (batch, *shape), generator=generator) for count in cardinalities]
        return torch.stack(columns, -1) if columns else torch.zeros(batch, *shape, 0, dtype=torch.int64)

    lengths = 1 + torch.arange(batch) % length if padded else torch.full((batch,), length)
    return ModelInputs(
        reals(size.static_reals),
        categories(size.static_categories),
        reals(length, size.observed_reals),
        categories(size.observed_categories, length),
        reals(steps, size.known_reals),
        categories(size.known_categories, steps),
        lengths,
    )


def forecast(model: TemporalFusionTransformer, inputs: ModelInputs) -> torch.Tensor:
    with torch.no_grad():
        return model(inputs)


def streams(model: TemporalFusionTransformer) -> bool:
    return any(is_streamed(module) for module in model.modules())


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_a_plain_model_is_folded_and_streams_and_forecasts_the_same(streaming, padded):
    model, inputs = trained(), draw(padded=padded)
    expected = forecast(model, inputs)
    if streaming:
        stream_variable_selection(model)
    form = forecasting_form(model)
    assert is_folded(form)
    assert streams(form)
    assert not form.training, "dropout would be on"
    error = (forecast(form, inputs) - expected).abs().max() / expected.std()
    assert float(error) < 1e-5


def test_a_plain_model_is_not_changed():
    model, inputs = trained(), draw()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = forecast(model, inputs)
    form = forecasting_form(model)
    with torch.no_grad():
        for parameter in form.parameters():
            parameter.zero_()
    assert not is_folded(model)
    assert not streams(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(forecast(model, inputs), expected)


def test_a_folded_model_only_streams():
    folded, inputs = fold(trained()), draw()
    expected = forecast(folded, inputs)
    assert forecasting_form(folded) is folded
    assert streams(folded)
    assert torch.allclose(forecast(folded, inputs), expected, atol=1e-5)


def test_asked_twice_nothing_happens_the_second_time():
    form, inputs = forecasting_form(trained()), draw()
    expected = forecast(form, inputs)
    assert forecasting_form(form) is form
    assert torch.equal(forecast(form, inputs), expected)


def test_an_int8_model_is_in_that_form_already():
    model, inputs = stored(trained()), draw()
    expected = forecast(copy.deepcopy(model), inputs)
    assert forecasting_form(model) is model
    assert model.history_selection.gate.weight.dtype == torch.int8
    assert torch.equal(forecast(model, inputs), expected)


def test_forecasts_take_less_memory():
    size = ModelSize(observed_reals=60, known_reals=4, encoder_length=20, horizon=4, hidden_size=32)
    model, inputs = trained(size), draw(size, batch=32)
    peaks = []
    for one in (model, forecasting_form(model)):
        forecast(one, inputs)
        peaks.append(peak_live_bytes(lambda model=one: forecast(model, inputs), CPU))
    assert peaks[1] < 0.4 * peaks[0]


def test_weights_take_less_memory():
    size = ModelSize(observed_reals=60, known_reals=4, encoder_length=20, horizon=4, hidden_size=32)
    model = trained(size)
    plain, folded = (
        sum(tensor.numel() for tensor in one.state_dict().values())
        for one in (model, forecasting_form(model))
    )
    assert folded < 0.5 * plain
