"""An ONNX file as ONNX Runtime runs it, on the CPU.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ds_tft.model.inputs import ModelInputs


class OnnxForecaster:
    """Forecasts with an ONNX file.

    Args:
        path: The file.
        threads: Of one operation; 0 takes as many as there are cores.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs: dict[str, list[int | str]] = {
            each.name: each.shape for each in self._session.get_inputs()
        }
        """Shapes by name; a text is a free length."""
        (output,) = self._session.get_outputs()
        self.output: tuple[str, list[int | str]] = (output.name, output.shape)
        """Name and shape of what comes out."""

    def forecast(self, inputs: ModelInputs) -> NDArray[np.float32]:
        """Returns the quantiles in scaled units, (B, K, O, Q)."""
        values = {name: getattr(inputs, name).numpy() for name in self.inputs}
        (quantiles,) = self._session.run(None, values)
        result: NDArray[np.float32] = quantiles
        return result
