# The four things people run; CI runs the same.
PYTHON ?= python3
BIN := .venv/bin
DEMO := demo

.PHONY: setup demo test check bench clean

setup: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench,torchtext]'
	touch $@

demo: setup
	DEMO=$(DEMO) BIN=$(BIN) bash demo.sh

# Two processes of one thread each: small tensors only wait for each other on more.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf .venv $(DEMO) build dist *.egg-info
