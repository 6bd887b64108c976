"""Trained models as ONNX files, in floating point or INT8. Needs the packages onnx and onnxruntime."""
