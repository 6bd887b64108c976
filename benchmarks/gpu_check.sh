#!/bin/sh
# What has to be seen on a CUDA machine, in under 5 minutes: benchmarks/gpu_check.py says what.
#
#     benchmarks/gpu_check.sh
#
# Needs an environment with this package and
#   - a CUDA build of torch 2.8 or later, such as pip install torch==2.13.0 (the wheel of PyPI is one on Linux;
#     others: --index-url https://download.pytorch.org/whl/cu126). The wheels that end in +cpu do not do.
#   - deepspeed 0.19.7 or later, below 0.20: pip install deepspeed. No CUDA toolkit and no compiler: nothing is compiled.
#   - pip install --editable . for the rest.
# PYTHON names the interpreter. Exit code 0: all passed. 1: something failed. 2: there is no CUDA.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python}" benchmarks/gpu_check.py "$@"
