# make train   set up, then run the main job       make test   set up, then run the core tests
# SEGUE_CPU_INDEX=<url>   optional package index to take a CPU build of torch from, first
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: setup train test lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(SEGUE_CPU_INDEX),$(VENV)/bin/pip install --quiet --index-url $(SEGUE_CPU_INDEX) --constraint constraints.txt torch)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

train: setup
	$(VENV)/bin/segue train

test: setup lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build *.egg-info
