"""How small the INT8 model is, in memory and as a file, at the size of a real task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ds_tft.export import read_weights, save_weights
from ds_tft.model.fold import build_folded
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered
from ds_tft.quantization.stored import build_stored

TFT_225 = ModelSize(
    static_reals=5, observed_reals=210, known_reals=10, encoder_length=60, horizon=10, hidden_size=128
)
OF_PLAIN, OF_FOLDED = 0.12, 0.30
HEADER = 100_000  # bytes of names and shapes in a file


def size_of(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def bytes_of(model: nn.Module) -> int:
    return size_of(dict(model.state_dict()))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Those of an INT8 model in a file, read back."""
    model = build_folded(TFT_225)
    covered = Covered.all_of(model)
    path = tmp_path_factory.mktemp("export") / "weights.safetensors"
    save_weights(build_stored(TFT_225, covered), path)
    found = read_weights(path)
    assert size_of(found) <= path.stat().st_size < size_of(found) + HEADER
    return found


@pytest.fixture(scope="module")
def floating() -> dict[str, int]:
    """Bytes of the models in floating point."""
    with torch.device("meta"):
        return {
            "plain": bytes_of(TemporalFusionTransformer(TFT_225)),
            "folded": bytes_of(build_folded(TFT_225)),
        }


def test_the_weights_of_training_are_over_eight_times_as_large(weights, floating):
    assert size_of(weights) <= OF_PLAIN * floating["plain"]


def test_folding_alone_does_not_do_it(weights, floating):
    assert floating["folded"] > OF_PLAIN * floating["plain"]
    assert size_of(weights) <= OF_FOLDED * floating["folded"]


def test_nearly_all_weights_are_codes(weights):
    counts = {
        dtype: sum(tensor.numel() for tensor in weights.values() if tensor.dtype == dtype)
        for dtype in {tensor.dtype for tensor in weights.values()}
    }
    assert counts.keys() == {torch.int8, torch.float32}
    assert counts[torch.int8] > 0.95 * sum(counts.values())
