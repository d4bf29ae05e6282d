#!/usr/bin/env bash
# setup_packages.sh ENVIRONMENT ARGUMENT...: `pip install ARGUMENT...` into a virtual environment, by uv, which is several
# times as fast. Where uv cannot be had or fails, pip does the work. With `--build` alone, it prints which build suits this
# machine, `cuda` or `cpu`; A2RL_BUILD decides it if it is set.
set -euo pipefail
build=${A2RL_BUILD:-$(nvidia-smi --list-gpus >/dev/null 2>&1 && echo cuda || echo cpu)}
[ "$1" != --build ] || { echo "$build"; exit; }
env=$1
shift
pip=("$env/bin/python" -m pip --disable-pip-version-check)

pip_setting() { # of the user's, which uv does not read
    sed -nE "s/^(:env:|global|install)\.$1='(.*)'\$/\2/p" <<<"$settings" | head -n 1
}

if ! uv=$(command -v uv); then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    uv=$scratch/bin/uv
    "${pip[@]}" install --quiet --quiet --target "$scratch" uv==0.13.9 2>/dev/null || uv=
fi
if [ -n "$uv" ]; then
    settings=$("${pip[@]}" config list 2>/dev/null || true)
    links=$(pip_setting find-links)
    export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$(pip_setting index-url)} UV_INDEX=${UV_INDEX:-$(pip_setting extra-index-url)}
    export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}} UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
    for variable in UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS; do [ -n "${!variable}" ] || unset $variable; done
    # Without a GPU, the CPU build of torch does, which is a tenth as large. uv knows its index, which may be out of reach.
    if [ -z "${UV_TORCH_BACKEND:-}" ] && [ "$build" = cpu ]; then
        ! UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=10 "$uv" pip install --quiet --dry-run --reinstall --no-deps \
            --python "$env/bin/python" --torch-backend cpu torch 2>/dev/null || export UV_TORCH_BACKEND=cpu
    fi
    "$uv" pip install --quiet --python "$env/bin/python" "$@" && exit
    echo "setup: uv failed; pip tries it"
fi
"${pip[@]}" install --quiet --quiet "$@"
