# Every target that needs the project sets it up first; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SOURCES := gateway tests loadtests .ci
FAST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not slow and not vllm"
VLLM_VENV := $(or $(GATEWAY_VLLM_VENV),.venv-vllm)

.PHONY: help setup demo test test-vllm check compile test-compiled bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## make .venv with the locked dependencies and the gateway command

$(READY): pyproject.toml requirements.lock .ci/setup.py
	@command -v $(PYTHON) >/dev/null || { echo "setup: no $(PYTHON) here: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) .ci/setup.py

demo: setup ## a simulated fleet and the gateway in front of it, until Ctrl-C
	@$(BIN)/gateway demo

test: setup ## every test but those that need a real vLLM: the fast ones, then the slow ones (minutes)
	@$(FAST)
	@$(BIN)/python -m pytest -m "slow and not vllm" --durations=5

test-vllm: setup ## the tests that need a real vLLM (installs one for CPUs, about 3 GB, into $GATEWAY_VLLM_VENV or .venv-vllm)
	@$(BIN)/python tests/e2e/vllm_install.py --venv "$(VLLM_VENV)" || true  # the tests skip with the reason
	@GATEWAY_VLLM_VENV="$(VLLM_VENV)" $(BIN)/python -m pytest -m vllm -rs

check: setup ## format, lint, types, layers and the fast tests, about a minute
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(FAST)

compile: setup ## the gateway with its data path compiled by mypyc, in build/compiled (needs a C compiler)
	@$(BIN)/python .ci/compile.py

test-compiled: compile ## the tests of the data path against the compiled gateway
	@cd build/compiled && ../../$(BIN)/python -m pytest tests/policy tests/wire tests/proxy tests/e2e -m "not vllm and not slow"

bench: setup ## measure the data path beside nginx and print the table
	@$(BIN)/python -m loadtests bench

lock: $(READY) ## write requirements.lock anew from pyproject.toml
	@$(BIN)/python -m pip install --quiet "uv>=0.8,<1"
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev --no-header \
		--no-emit-index-url --no-emit-find-links --upgrade --output-file requirements.lock pyproject.toml
	@touch $(READY)
	@echo "requirements.lock written; run make setup"

clean: ## remove what the other targets made
	rm -rf .venv .venv-vllm .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
