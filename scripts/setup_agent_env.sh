#!/usr/bin/env bash
# Installs what agents train with into .venv-agent, a separate environment that comes first on their PATH.
# With an NVIDIA GPU: also vLLM, DeepSpeed, bitsandbytes, and FlashAttention where it builds. It is safe to run this
# again: a finished environment is kept; an unfinished one, or one of other versions, is replaced.
#
#   scripts/setup_agent_env.sh                  install what is locked
#   scripts/setup_agent_env.sh --lock cpu|cuda  resolve the dependencies and rewrite requirements-agent-cpu.lock or
#                                               requirements-agent-cuda.lock; neither needs a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

# The libraries of both, and what the rollouts that a2rl hands out import.
training=(torch==2.13.0 trl==1.16.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0 numpy regex requests)
analysis=(scipy pandas scikit-learn httpx setuptools==79.0.1)
cpu=("${training[@]}" transformers==5.23.0 "${analysis[@]}" --constraint requirements.lock) # the versions that are tested
cuda=("${training[@]}" vllm==0.32.0 bitsandbytes hjson msgpack py-cpuinfo ninja scipy pandas scikit-learn httpx)
compiled=(deepspeed==0.19.8 flash-attn==2.8.3.post2) # built on this machine if it has a compiler for CUDA
env=.venv-agent
marker=$env/.installed
python=${A2RL_PYTHON:-python3.11}

say() { printf 'setup-agent-env: %s\n' "$*"; }
pip() { $env/bin/python -m pip --quiet --quiet --disable-pip-version-check "$@"; }

# Writes what pip would install. Left out of the lock for GPUs: what the CUDA build of torch pins itself.
lock() {
    local build=$1 scratch
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' RETURN
    local -n wanted=$build
    "$python" -m venv "$scratch/venv"
    "$scratch/venv/bin/python" -m pip --quiet --disable-pip-version-check install --dry-run --ignore-installed \
        --report "$scratch/report.json" "${wanted[@]}"
    "$scratch/venv/bin/python" - "$scratch/report.json" "$build" >"$scratch/lock" <<'PYTHON'
import json, re, sys
report, build = json.load(open(sys.argv[1])), sys.argv[2]
print(f"# What agents train with ({build}), for scripts/setup_agent_env.sh, which also writes it: --lock {build}.")
for name, version in sorted((each["metadata"]["name"], each["metadata"]["version"]) for each in report["install"]):
    if not re.match(r"(nvidia-(?!ml-py)|cuda-|triton$)", name):
        print(f"{name}=={version.removesuffix('+cpu') if name == 'torch' else version}")
PYTHON
    mv "$scratch/lock" "requirements-agent-$build.lock"
}

command -v "$python" >/dev/null || { say "needs $python on PATH (or set A2RL_PYTHON)"; exit 1; }
if [ "${1:-}" = --lock ]; then
    [ "${2:-}" = cpu ] || [ "${2:-}" = cuda ] || { say "--lock needs cpu or cuda"; exit 2; }
    lock "$2"
    exit 0
fi

if nvidia-smi --list-gpus >/dev/null 2>&1; then build=cuda; else build=cpu; fi
wanted="$build $(cat requirements-agent-$build.lock "$0" | sha256sum | cut -c1-16)"
if [ "$(cat $marker 2>/dev/null)" = "$wanted" ]; then
    say "$env is up to date ($build)"
    exit 0
fi

say "installing the versions of requirements-agent-$build.lock into $env; this takes a few minutes"
rm -rf $env
"$python" -m venv $env
if [ "$build" = cuda ]; then
    pip install --requirement requirements-agent-cuda.lock
    for package in "${compiled[@]}"; do
        pip install --no-deps --no-build-isolation "$package" 2>/dev/null ||
            say "continued without ${package%%=*}, which does not build here"
    done
else
    pip install --no-deps --requirement requirements-agent-cpu.lock
    pip install --constraint requirements-agent-cpu.lock torch # where no CPU build is at hand: the libraries of CUDA
fi

DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 $env/bin/python -c 'import torch, transformers, trl, peft, accelerate, datasets' \
    >/dev/null 2>$env/import.log || { say "it does not import: $(tail -n 1 $env/import.log)"; exit 1; }
printf '%s' "$wanted" >$marker
say "done"
