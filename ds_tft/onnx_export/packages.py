"""The packages that this part needs and the rest does not."""

from __future__ import annotations

from importlib import import_module

from ds_tft.errors import ConfigError

PACKAGES = ("onnx", "onnxruntime")


def require_packages() -> None:
    """Imports what the other modules of this folder import.

    Raises:
        ConfigError: A package is not there, or does not work.
    """
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"{name}: needed to write and check ONNX, got '{error}'; pip install 'ds_tft[onnx]'"
            ) from None
