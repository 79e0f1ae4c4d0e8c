# make train         set up, then run the main job
# make test          set up, then run the core tests
# make test-system   install the Debian packages below as root, or with sudo, then run the tests that need them
# SEGUE_CPU_INDEX=<url>   optional package index to take a CPU build of torch from, first
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# what cannot come from pip: `env=python` runs programs in bubblewrap, on an interpreter that every user may read
SYSTEM_PACKAGES := bubblewrap python3
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: setup system-packages train test test-system lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(SEGUE_CPU_INDEX),$(VENV)/bin/pip install --quiet --index-url $(SEGUE_CPU_INDEX) --constraint constraints.txt torch)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

system-packages:
	{ command -v bwrap && test -x /usr/bin/python3; } > /dev/null || \
		{ $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq --yes --no-install-recommends $(SYSTEM_PACKAGES); }

train: setup
	$(VENV)/bin/segue train

test: setup lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest -m "not system" --numprocesses auto --maxprocesses 4 --dist loadfile

test-system: setup system-packages
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest -m system

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build *.egg-info
