#!/bin/sh
# What has to be seen on a CUDA machine, in about 6 minutes:
#   - benchmarks/gpu_check.py: its head says what. INT8 is in it: the presets *_int8_qat.json train, calibrate, fine-tune,
#     export and evaluate the INT8 model.
#   - products of 8-bit codes: the bits of a CPU, by integer instructions and in float32, with TF32 allowed around them.
#   - benchmarks/inference.py: how fast every form of the model forecasts, and how far from the plain one.
#
#     benchmarks/gpu_check.sh
#
# Needs an environment with this package and
#   - a CUDA build of torch 2.8 or later, such as pip install torch==2.13.0 (the wheel of PyPI is one on Linux;
#     others: --index-url https://download.pytorch.org/whl/cu126). The wheels that end in +cpu do not do.
#   - deepspeed 0.19.7 or later, below 0.20: pip install deepspeed. No CUDA toolkit and no compiler: nothing is compiled.
#   - pip install --editable '.[dev]' for the rest.
# PYTHON names the interpreter; flags go to gpu_check.py. Exit code 0: all passed. 1: something failed. 2: there is no CUDA.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-python}"
code=0
"$python" benchmarks/gpu_check.py "$@" || code=$?
[ "$code" -le 1 ] || exit "$code"
"$python" -m pytest -q -rs tests/memory/test_integer_product.py || code=1
"$python" benchmarks/inference.py || code=1
exit "$code"
