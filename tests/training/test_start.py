import numpy as np
import torch

from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.start import start_at_label_quantiles


def test_untrained_model_forecasts_about_the_given_quantiles():
    torch.manual_seed(0)
    size = ModelSize(observed_reals=3, known_reals=2, num_targets=2, hidden_size=16, dropout=0.0)
    model = TemporalFusionTransformer(size).eval()
    levels = np.array([[-3.0, 0.0, 2.0], [10.0, 20.0, 30.0]])
    start_at_label_quantiles(model, levels)
    inputs = ModelInputs(
        static_reals=torch.empty(4, 0),
        static_categories=torch.empty(4, 0, dtype=torch.int64),
        observed_reals=torch.randn(4, 60, 3),
        observed_categories=torch.empty(4, 60, 0, dtype=torch.int64),
        known_reals=torch.randn(4, 70, 2),
        known_categories=torch.empty(4, 70, 0, dtype=torch.int64),
        encoder_lengths=torch.full((4,), 60),
    )
    with torch.no_grad():
        prediction = model(inputs)  # (B, K, O, Q)
    assert (prediction - torch.from_numpy(levels)).abs().max() < 0.5
