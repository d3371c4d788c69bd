# `make help` lists what there is. Everything runs from .venv, which `make setup` fills.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
CODE := $(wildcard src tests benchmarks)
# One more than there are cores: some tests wait for other processes.
TESTERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

.PHONY: help setup demo test check lint types format torches bench clean
TORCHES := 2.6.0 2.15.0

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install the project with its pinned dependencies

# The stamp is written last, so an interrupted installation is taken up again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: subflot needs Python 3.11 or newer, and '$(PYTHON)' is not" >&2; \
	    echo "hint: name another interpreter: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" >&2; \
	    exit 1; }
	@echo "Installing into .venv (takes a minute or more the first time)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup  ## Run the quickstart: five methods on 20 clients of four sizes
	@$(BIN)/subflot run quickstart
	@$(BIN)/subflot report runs/quickstart

test: lint types  ## Check format, lint and types, then run every test and doctest
	@$(BIN)/pytest -q -n $(TESTERS) --dist worksteal

check: test  ## The same as `make test`

lint: setup  ## Check format and lint
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "hint: 'make format' rewrites the files above" >&2; exit 1; }
	@$(BIN)/ruff check --quiet $(CODE)

types: setup  ## Check types
	@$(BIN)/mypy $(CODE)

format: setup  ## Rewrite the code in the project's format and mend what lint can mend
	@$(BIN)/ruff check --fix --exit-zero --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

torches: setup  ## Test the oldest and the newest torch that is supported, each in its own environment (gigabytes)
	@for version in $(TORCHES); do \
	    echo "== torch $$version"; place=.venv-torch/$$version; \
	    $(PYTHON) -m venv "$$place"; \
	    "$$place/bin/pip" install -qq --disable-pip-version-check -c <(grep -vE '^(torch|setuptools)==' constraints.txt) \
	        "torch==$$version" -e . pytest hypothesis; \
	    "$$place/bin/python" -m pytest -q tests/channels tests/training tests/algorithms tests/transport; \
	done

bench: setup  ## Run every script in benchmarks/
	@for script in $(sort $(wildcard benchmarks/*.py)); do \
	    echo "== $$script"; $(BIN)/python "$$script"; \
	done

clean:  ## Remove .venv, caches and builds; runs stay
	@rm -rf .venv .venv-torch build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +
