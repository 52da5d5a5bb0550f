#!/usr/bin/env bash
# All that needs an NVIDIA GPU, on one machine, in 8 minutes at most: builds the core
# and its Python module, checks, measures; what tells most comes first. Prints a report
# in Markdown, which is also in build/gpu/report.md as far as it has come, with the
# output of every step beside it.
#
#   tests/gpu/run.sh
#
# Needs neither TensorFlow nor a network; README.md says what it needs. PYTHON=...
# picks an interpreter, REPORTS=... another folder for the report and the outputs.
# Exits with 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

export python=${PYTHON:-python3}
export build=build/gpu
export reports=${REPORTS:-$build}
export PYTHONPATH=$PWD
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
report=$reports/report.md
time_limit=480
source tests/gpu/steps.sh

# So that a test that hangs costs a minute, and what fails everywhere three tests.
tests() { "$python" -m pytest -m gpu -v --maxfail=3 -o timeout=60 "$@"; }

# The back end of torch.distributed is compiled for this torch alone.
torch_fits() {
  "$python" -c 'import sys, torch; sys.exit(not torch.__version__.startswith("2.13."))' 2>/dev/null
}

compile() {
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$(command -v "$python")" \
    -DRING_KERAS_BUILD_KERNELS=OFF -DRING_KERAS_BUILD_TESTS=ON \
    -DRING_KERAS_BUILD_TORCH="$(torch_fits && echo ON || echo OFF)" &&
    cmake --build $build --target tf_ops/all tests/cpp/cuda/all &&
    cmake --install $build --prefix ring_keras
}

cpp_tests() { ctest --test-dir $build/tests/cpp/cuda --no-tests=error --output-on-failure; }

# Those that tests will take, too. What it finds wrong is no failure: there is no
# TensorFlow, for one.
libraries() {
  local find='from support.real_gpu import library_directories as found; print(*found(), sep=":")'
  export RING_KERAS_CUDA_LIBRARY_PATH=${RING_KERAS_CUDA_LIBRARY_PATH:-$(PYTHONPATH=$PWD:tests "$python" -c "$find")}
  "$python" -m ring_keras.launch --check-build | grep -A1 -E 'CUDA|NVRTC|NCCL|GPU'
}

# Of the checks there are, those that apply: no kernel has shared memory or a barrier.
sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$python" tests/gpu/check_pack.py
}
export -f torch_fits compile cpp_tests libraries sanitize tests

begin_report "On a GPU"
step build 240 bash -c compile || exit 1
step libraries 30 bash -c libraries
step cpp-tests 60 bash -c cpp_tests
step one-rank 150 bash -c 'tests tests/distributed/gpu -k real-1'
step two-ranks 240 bash -c 'tests tests/distributed/gpu -k real-2'
step torch 120 bash -c 'tests tests/gpu/test_torch.py'
# 5: without JAX there is no test.
step jax 150 bash -c 'tests tests/gpu/test_jax.py || (($? == 5))'
step bandwidth 60 "$python" tests/gpu/pack_bandwidth.py
step memcheck 90 bash -c 'sanitize memcheck'
step initcheck 90 bash -c 'sanitize initcheck'
say
say "## Libraries"
say
say '```text'
tee -a "$report" <"$reports/libraries.log"
say '```'
say
say "## Packing"
say
grep '^|' "$reports/bandwidth.log" | tee -a "$report"
end_report
