# Everything runs in .venv, which the first target that needs it makes. Needs make, and Python 3.11 to 3.13 with venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEMO := demo/stocks.parquet
# Hourly prices for `make bench-int8`, in the columns of launch/examples/hourly_prices.json; empty leaves them out.
EPF ?=
# Run folder of `make train`; empty makes a new one, named after the time, below runs/.
RUN ?=

.PHONY: help venv train test test-slow lint format bench-int8 bench-inference clean
.DELETE_ON_ERROR:

help:  ## Says what the targets do.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY)  ## Makes the environment only, in .venv; takes minutes.

train: $(READY) $(DEMO)  ## Trains, evaluates and exports the demo model, on daily bars of five stocks.
	$(BIN)/deepspeed launch/train.py --deepspeed_config ds_configs/zero1.json \
		--config launch/examples/demo.json --parquet-file $(DEMO) $(if $(RUN),--output-dir '$(RUN)')

test: $(READY)  ## Runs the tests.
	$(BIN)/python -m pytest -q

test-slow: $(READY)  ## Runs all tests, those that take minutes too.
	$(BIN)/python -m pytest -q -m 'slow or not slow'

lint: $(READY)  ## Checks format, style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## Formats the code and mends what ruff can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-int8: $(READY) $(DEMO)  ## Measures INT8 over three seeds on the demo, and on hourly prices: EPF=NP.parquet. Takes an hour.
	$(BIN)/python benchmarks/int8.py --parquet-file $(DEMO) --config launch/examples/demo.json
	$(if $(EPF),$(BIN)/python benchmarks/int8.py --parquet-file '$(EPF)' --config launch/examples/hourly_prices.json \
		--batch-size 64 --set deepspeed.optimizer.params.lr=0.002 \
		--set split.validation_start=2017-09-24 --set split.test_start=2017-12-24)
	$(BIN)/python benchmarks/int8_memory.py

bench-inference: $(READY)  ## Measures how fast trained models forecast, in every form; takes about ten minutes.
	$(BIN)/python benchmarks/inference.py

clean:  ## Removes .venv, the demo data and caches. Run folders stay.
	rm -rf .venv demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find ds_tft launch tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew, from nothing, whenever what it is made from has changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; got = sys.version_info[:2]; sys.exit(0 if (3, 11) <= got < (3, 14) else \
		"make: needs Python 3.11 to 3.13, got %d.%d; name one, such as make PYTHON=python3.11" % got)'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,adam8bit]'
	@touch $@

$(DEMO): $(READY) ds_tft/data/demo.py
	$(BIN)/python -m ds_tft.data.demo --output $@
