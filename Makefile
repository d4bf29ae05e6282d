# `make` alone lists the targets. Everything is installed into .venv; nothing outside this folder is touched.
PYTHON ?= python3.11
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
# Threads that spin for long slow small models 10-40 fold where several processes share the cores (a2rl/process.py).
export GOMP_SPINCOUNT := 3000
export TOKENIZERS_PARALLELISM := false
export DO_NOT_TRACK := 1
# The locks name everything, so nothing is left to resolve: but what torch's CUDA build takes, and its CPU build does not.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm data demo test test-all test-agents check bench ui worker clean lock

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## install everything into .venv (a few minutes, once)

$(VENV)/.installed: requirements.lock requirements-textworld.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "needs Python 3.11: install it, or name it with make PYTHON=..."; exit 1; }
	@echo "setup: installing the versions of requirements.lock into $(VENV) (2-5 minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --no-deps -r requirements.lock
	@$(PIP) --constraint requirements.lock torch
	@$(PIP) --no-deps --editable .
	@$(PIP) --no-deps -r requirements-textworld.lock 2>/dev/null || echo "setup: went on without TextWorld, the original \
	engine of ALFWorld, which has to be compiled (it takes gcc, cmake and make); only --engine textworld needs it"
	@touch $@

setup-vllm: ## install vLLM into an environment of its own (.venv-vllm)
	@scripts/setup_vllm.sh

data: setup ## make what is versioned by DVC: mini data, the model `tiny`, its baselines
	@dvc repro --quiet

demo: data ## the whole benchmark on this machine: tiny model, mini data, scripted agent
	@a2rl bench smoke
	@echo; echo "look at it:  make ui  (MLflow), or open runs/*/report/index.html"

test: setup ## the tests that need no GPU, no network and little time
	@python -m pytest

test-all: setup ## these and the slow ones
	@python -m pytest -m "not gpu and not network and not agents"

test-agents: setup ## the real agent systems, installed and driven by a script; needs npm and a registry
	@a2rl agents install claude-code codex gemini-cli opencode mini-swe-agent & installing=$$!; \
	dvc repro --quiet baseline@gsm8k && wait $$installing
	@python -m pytest -m "agents and not slow" -n 2 --dist load tests/agents

check: setup ## lint, format, types
	@ruff check --quiet .
	@ruff format --quiet --check .
	@mypy

bench: setup ## measure the claims on speed, as ratios within one run
	@python -m tests.bench

ui: setup ## open MLflow on http://127.0.0.1:5000
	@MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db --default-artifact-root mlruns/artifacts --host 127.0.0.1 --port $(or $(PORT),5000)

worker: setup ## register the deployments and run what `prefect deployment run a2rl/full-bench` asks for
	@prefect --no-prompt work-pool create a2rl --type process >/dev/null 2>&1 || true
	@prefect --no-prompt deploy --all >/dev/null
	@prefect worker start --pool a2rl --type process

lock: ## resolve anew and write requirements.lock (for maintainers)
	@scripts/lock.sh

clean: ## remove what was made, but keep .venv and DVC's cache
	@rm -rf runs data models mlruns/mlflow.db mlruns/artifacts baselines/cache .prefect .pytest_cache .mypy_cache .ruff_cache
