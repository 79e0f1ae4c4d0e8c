# make train         set up, then run the main job
# make test          set up, then run the core tests
# make test-system   install the Debian packages below as root, or with sudo, then run the tests that need them
# make test-adapters install what the adapters adapt, then run the tests of the real packages
# SEGUE_CPU_INDEX=<url>   optional package index to take a CPU build of torch from, first
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# what cannot come from pip: `env=python` runs programs in bubblewrap, on an interpreter that every user may read
SYSTEM_PACKAGES := bubblewrap python3
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# the server of OpenEnv's tests: its package's pins exclude ours
OPENENV_VENV := .venv-openenv

.PHONY: setup system-packages train test test-system test-adapters lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(if $(SEGUE_CPU_INDEX),echo "setup: torch from SEGUE_CPU_INDEX; pip is silent for about a minute")
	$(if $(SEGUE_CPU_INDEX),$(VENV)/bin/pip install --quiet --index-url $(SEGUE_CPU_INDEX) --constraint constraints.txt torch)
	@echo "setup: Segue and its packages into $(VENV); pip is silent for 2 to 3 minutes"
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
	@echo "setup: done; '. $(VENV)/bin/activate' puts segue on the PATH"

system-packages:
	{ command -v bwrap && test -x /usr/bin/python3; } > /dev/null || \
		{ $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq --yes --no-install-recommends $(SYSTEM_PACKAGES); }

train: setup
	$(VENV)/bin/segue train

test: setup lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest -m "not system and not adapters" --numprocesses auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder

test-system: setup system-packages
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest -m system

test-adapters: setup
	@echo "setup: the packages that the adapters adapt; pip is silent for a few minutes"
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --constraint tests/adapters/constraints.txt \
		--editable '.[dev,reasoning-gym,verifiers]'
	$(PYTHON) -m venv $(OPENENV_VENV)
	$(OPENENV_VENV)/bin/pip install --quiet --requirement tests/adapters/openenv_server.txt
	OMP_NUM_THREADS=1 $(VENV)/bin/python -P -m pytest -m adapters tests/adapters

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(OPENENV_VENV) build *.egg-info
