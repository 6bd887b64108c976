# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

DEMO := demo/stocks.parquet
RUN ?= runs/demo

.PHONY: train test test-slow lint format clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"ds_tft needs Python 3.11 to 3.13, got {v.major}.{v.minor}; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

$(DEMO): $(READY) ds_tft/data/demo.py
	$(BIN)/python -m ds_tft.data.demo --output $(DEMO)

train: $(READY) $(DEMO)  ## Trains and evaluates the demo model on real daily bars.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/deepspeed launch/train.py --deepspeed_config ds_configs/zero1.json \
		--config launch/examples/demo.json --parquet-file $(DEMO) --output-dir $(RUN)

test: $(READY)  ## Runs the tests.
	$(BIN)/python -m pytest -q

test-slow: $(READY)  ## Runs the tests that take minutes, too.
	$(BIN)/python -m pytest -q -m 'slow or not slow'

lint: $(READY)  ## Format, lint and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo runs
