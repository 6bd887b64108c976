"""Streaming inside the whole model."""

from __future__ import annotations

import copy

import pytest
import torch
from streaming_cases import relative_error

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

SIZES = {
    "everything": ModelSize(
        static_reals=2,
        static_categories=(3, 4),
        observed_reals=5,
        observed_categories=(5,),
        known_reals=2,
        known_categories=(4, 2),
        encoder_length=6,
        horizon=3,
        num_targets=2,
        hidden_size=8,
        num_heads=2,
        lstm_layers=2,
        dropout=0.0,
    ),
    "one static category": ModelSize(
        static_categories=(4,), observed_reals=3, hidden_size=8, num_heads=2, encoder_length=5, dropout=0.0
    ),
    "no static variables": ModelSize(
        observed_reals=4, known_reals=3, hidden_size=12, num_heads=3, encoder_length=4, dropout=0.0
    ),
}


def draw(size: ModelSize, batch: int, dtype: torch.dtype, lengths: list[int] | None = None) -> ModelInputs:
    """Random inputs; padding holds values, which must not matter."""
    generator = torch.Generator().manual_seed(3)
    steps = size.encoder_length + size.horizon

    def reals(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def categories(cardinalities: tuple[int, ...], *shape: int) -> torch.Tensor:
        columns = [torch.randint(n, shape, generator=generator) for n in cardinalities]
        return torch.stack(columns, -1) if columns else torch.zeros(*shape, 0, dtype=torch.int64)

    return ModelInputs(
        static_reals=reals(batch, size.static_reals),
        static_categories=categories(size.static_categories, batch),
        observed_reals=reals(batch, size.encoder_length, size.observed_reals),
        observed_categories=categories(size.observed_categories, batch, size.encoder_length),
        known_reals=reals(batch, steps, size.known_reals),
        known_categories=categories(size.known_categories, batch, steps),
        encoder_lengths=torch.tensor(lengths or [size.encoder_length] * batch),
    )


def pair(size: ModelSize, settings: StreamingSettings | None = None):
    torch.manual_seed(0)
    plain = TemporalFusionTransformer(size).double()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    streaming = copy.deepcopy(plain)
    stream_variable_selection(streaming, settings)
    return plain, streaming


@pytest.mark.parametrize("variables_per_chunk", [1, 3, None])
@pytest.mark.parametrize("lengths", [None, [4, 1, 3]])
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_forecast_weights_and_all_gradients_are_those_of_the_plain_model(size, lengths, variables_per_chunk):
    plain, streaming = pair(size, StreamingSettings(variables_per_chunk=variables_per_chunk))
    inputs = draw(size, 3, torch.float64, lengths)
    outcomes = []
    for model in (plain, streaming):
        result = model.interpret(inputs)
        loss = result.prediction.square().sum() + result.history_weights.square().sum()
        (loss + result.future_weights.square().sum()).backward()
        outcomes.append(result)
    for name, expected in outcomes[0]._asdict().items():
        if expected.numel():
            assert relative_error(getattr(outcomes[1], name), expected) < 1e-12, name
    scale = max(float(parameter.grad.abs().max()) for parameter in plain.parameters())
    for (name, expected), actual in zip(plain.named_parameters(), streaming.parameters(), strict=True):
        # Some gradients vanish but for rounding, such as that of a static selection's single weight.
        assert float((actual.grad - expected.grad).abs().max()) < 1e-12 * scale, name
        if expected.grad.abs().max() > 1e-9 * scale:
            assert relative_error(actual.grad, expected.grad) < 1e-10, name


def test_evaluation_gives_the_same_forecast():
    plain, streaming = pair(SIZES["everything"])
    inputs = draw(SIZES["everything"], 8, torch.float64, [6, 2, 3, 6, 1, 4, 5, 6])
    with torch.no_grad():
        expected, actual = plain.eval()(inputs), streaming.eval()(inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)


def test_the_known_embedding_shared_by_history_and_future_gets_one_gradient():
    _, streaming = pair(SIZES["everything"])
    arrivals: list[str] = []
    for name, parameter in streaming.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: arrivals.append(name))
    streaming(draw(SIZES["everything"], 3, torch.float64)).square().sum().backward()
    assert sorted(arrivals) == sorted(name for name, _ in streaming.named_parameters())


def test_the_whole_model_keeps_a_twentieth_at_220_variables_and_a_small_batch():
    size = ModelSize(static_reals=5, observed_reals=210, known_reals=10, hidden_size=32, num_heads=4)
    torch.manual_seed(0)
    model = TemporalFusionTransformer(size)
    inputs = draw(size, 2, torch.float32)

    def kept() -> int:
        return kept_for_backward(lambda: model(inputs).sum(), excluded=[*model.parameters(), *inputs])

    plain = kept()
    stream_variable_selection(model)
    assert plain > 20 * kept()
