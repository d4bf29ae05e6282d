#!/usr/bin/env bash
# Resolves the dependencies of pyproject.toml in a fresh environment and writes requirements.lock.
# The pins below are the ones that matter; the resolver chooses everything else.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# fastapi: Prefect 3.8.8 fails to import with 0.156 and later, inside its own declared range.
pins=(torch==2.13.0 transformers==5.23.0 trl==1.16.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0 mlflow==3.17.2
    dvc==3.67.1 prefect==3.8.8 fastapi==0.150.0 pandas==3.1.1
    # setuptools: torch requires it, and alpaca-eval imports pkg_resources, which later releases lack.
    setuptools==79.0.1)
"${PYTHON:-python3.11}" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --quiet "${pins[@]}" ".[dev]"
# --no-deps: of alfworld only the data files are needed; the original engine has no wheels and is in
# requirements-textworld.lock, which is written by hand. Of alpaca-eval only the statistics are needed; its dependencies
# are clients of half a dozen APIs.
"$scratch/venv/bin/python" -m pip install --quiet --quiet --no-deps alfworld==0.4.2 alpaca-eval==0.6.6
{
    echo '# Exact versions of everything, tested together on Python 3.11. `make lock` writes this file.'
    echo '# torch: where pip has a CPU build of this version at hand it takes that one, else the CUDA build, whose libraries'
    echo '# `make setup` adds.'
    "$scratch/venv/bin/python" -m pip freeze --all |
        grep -vi '^a2rl\|^#\|^pip=\|^wheel=\|^async-timeout=\|^nvidia-[^m]\|^cuda-\|^triton=' |
        sed 's/^torch==\([0-9.]*\)+cpu/torch==\1/'
    echo '# redis, a part of Prefect, takes it where Python is that of Debian 12; the one that resolves may be newer.'
    echo 'async-timeout==5.0.1 ; python_full_version < "3.11.3"'
} >requirements.lock.new
mv requirements.lock.new requirements.lock
