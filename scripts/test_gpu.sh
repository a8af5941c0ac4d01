#!/usr/bin/env bash
# All that needs a GPU, in one go and under eight minutes: `make test-gpu`.
#     --dry-run     the same steps without a GPU: kernels interpreted, runs on the CPU
set -euo pipefail
cd "$(dirname "$0")/.."

BIN="${BIN:-.venv/bin}"
DEVICE=cuda
export TRITON_INTERPRET=0 CUBLAS_WORKSPACE_CONFIG=:4096:8
BENCHMARK=()
if [ "${1:-}" = --dry-run ]; then
    DEVICE=cpu
    BENCHMARK=(--dry-run)
    export TRITON_INTERPRET=1
elif ! "$BIN/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "make test-gpu: torch sees no CUDA device here; scripts/test_gpu.sh --dry-run needs none" >&2
    exit 2
fi
OUT="$(mktemp -d)"
trap 'rm -rf "$OUT"' EXIT
FAILED=()
SECONDS_IN_ALL=480

# Goes on where something failed, so that one run tells all there is to tell.
step() {
    local name="$1" started=$SECONDS
    shift
    echo "== $name"
    if timeout $((SECONDS < SECONDS_IN_ALL ? SECONDS_IN_ALL - SECONDS : 1)) "$@"; then
        echo "== $name: ok, $((SECONDS - started)) s"
    else
        echo "== $name: FAILED, $((SECONDS - started)) s"
        FAILED+=("$name")
    fi
}

record() { "$BIN/kvrewind" record --device "$DEVICE" --out "$OUT/$1.kvtrace" "${@:2}"; }
proved() { "$BIN/kvrewind" check "$OUT/$1.kvtrace" && "$BIN/kvrewind" replay "$OUT/$1.kvtrace" --verify; }
recorded_and_proved() { record "$@" && proved "$1"; }
on_the_cpu() { "$BIN/kvrewind" record --device cpu --out "$OUT/cpu.kvtrace"; }
same_tokens() { "$BIN/python" scripts/same_tokens.py "$OUT/$1.kvtrace" "$OUT/$2.kvtrace"; }
export -f record proved recorded_and_proved on_the_cpu same_tokens
export BIN DEVICE OUT

step "numerics" "$BIN/python" -m pytest --maxfail=10 --tb=short tests/engine/test_kernels_attention.py \
    tests/engine/test_kernels_memory.py tests/engine/test_kernels_in_the_engine.py
step "record, check and verify" bash -c 'recorded_and_proved gpu'
step "the same with decode steps as CUDA graphs" \
    bash -c 'recorded_and_proved graphs --persistent-buffers'
step "the same with NaN in freed blocks" bash -c 'recorded_and_proved nan --scrub nan'
step "record on the CPU" bash -c on_the_cpu
step "tokens of GPU and CPU" bash -c 'same_tokens gpu cpu'
step "tokens with and without graphs" bash -c 'same_tokens gpu graphs'
step "tokens with and without NaN in freed blocks" bash -c 'same_tokens gpu nan'
step "benchmarks/kernels.py" "$BIN/python" benchmarks/kernels.py "${BENCHMARK[@]}"

if [ ${#FAILED[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${FAILED[@]}" >&2
    exit 1
fi
echo "all passed, $SECONDS s"
