# Thin: every goal sets up .venv when needed and hands over to one command. `make` alone lists the goals.
# Works with GNU make 3.81 (macOS). Values travel through the environment, unexpanded, so that any file name is safe.

PYTHON ?= python3
MODELS ?= models

# make would expand a variable of its command line once more while exporting it: `$(x)` in a file name must stay text
unexport MODEL MODELS TARGETS JOBS MODEL_VERSION ARGS
export EF_MODEL := $(value MODEL)
export EF_MODELS := $(value MODELS)
export EF_TARGETS := $(value TARGETS)
export EF_JOBS := $(value JOBS)
export EF_MODEL_VERSION := $(value MODEL_VERSION)
export EF_ARGS := $(value ARGS)
# a Python that is asked for by name is used or refused, never replaced
ifneq ($(origin PYTHON),file)
export EF_PYTHON := $(value PYTHON)
endif

SET_UP = @command -v "$(PYTHON)" >/dev/null || { echo 'enginefarm: no "$(PYTHON)" here; install Python 3.10 or newer, or say make PYTHON=...' >&2; exit 4; }; \
	"$(PYTHON)" tools/start.py
RUN = @.venv/bin/python tools/from_make.py

.PHONY: help engines plan test lint bench nightly worker lock clean

help: ## this list
	@echo 'make engines MODEL=model.onnx [TARGETS="rtx-* cpu"] [JOBS=2] [MODEL_VERSION=3] [ARGS="--shape x:1x3x224x224"]'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

engines: ## build and check an engine of MODEL for every target that a runner here can take
	$(SET_UP) engines run rtx
	$(RUN) engines

plan: ## say what engines would build, and where; builds nothing
	$(SET_UP) plan run rtx
	$(RUN) plan

test: ## run the tests; ARGS go to pytest
	$(SET_UP) test test rtx
	$(RUN) test

lint: ## formatting, types, import rules, generated files, CI definitions
	$(SET_UP) lint lint
	@.venv/bin/python tools/lint.py

bench: ## build real public models for all rtx and cpu targets and write docs/bench.md
	$(SET_UP) bench run rtx bench
	$(RUN) bench

nightly: ## build every model under MODELS again
	$(SET_UP) nightly run rtx
	$(RUN) nightly

worker: ## build worker.pyz, the part that travels to other machines
	$(SET_UP) worker run
	$(RUN) worker

lock: ## write requirements/*.txt from pyproject.toml; ARGS=--upgrade takes newer versions
	$(SET_UP) lock lock
	$(RUN) lock

clean: ## remove .venv and everything generated; artifacts/ stays
	rm -rf .venv .enginefarm build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find orchestrator tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
