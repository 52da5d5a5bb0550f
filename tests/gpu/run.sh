#!/usr/bin/env bash
# All that needs an NVIDIA GPU, on one machine in under 10 minutes: builds the core
# and its Python module, checks, measures. Prints a report in Markdown, which is
# also in build/gpu/report.md, with the output of every step beside it.
#
#   tests/gpu/run.sh
#
# Needs neither TensorFlow nor a network; README.md says what it needs. PYTHON=...
# picks an interpreter. Exits with 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
build=build/gpu
report=$build/report.md
mkdir -p $build
export PYTHONPATH=$PWD
failed=0

say() { echo "$*" | tee -a $report; }

# step NAME SECONDS COMMAND...: runs it, for so long at most, and says how it went.
step() {
  local name=$1 limit=$2 log=$build/$1.log start=$SECONDS verdict=passed status
  shift 2
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
  status=$?
  if [ $status -ne 0 ]; then
    verdict="**failed** (exit code $status)"
    failed=1
    tail -n 40 "$log" >&2
  fi
  say "| $name | $verdict | $((SECONDS - start)) | $(grep -v '^$' "$log" | tail -n 1 | tr '|' '/') |"
}

compile() {
  "$python" -m cmake --version >/dev/null 2>&1 && local cmake=("$python" -m cmake) || local cmake=(cmake)
  "${cmake[@]}" -S . -B $build -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" \
    -DRING_KERAS_BUILD_KERNELS=OFF -DRING_KERAS_BUILD_TESTS=ON &&
    "${cmake[@]}" --build $build --parallel "$(nproc)" &&
    "${cmake[@]}" --install $build --prefix ring_keras >/dev/null &&
    echo "$(c++ --version | head -n 1); no TensorFlow"
}

cpp_tests() { (cd $build && ctest -R cuda --output-on-failure | sed '/^Total/d'); }

# The case list of the pack kernels, under each check that applies: no kernel has
# shared memory or a barrier.
sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$python" tests/gpu/check_pack.py
}
export -f compile cpp_tests sanitize
export build python

: >$report
say "# On a GPU"
say
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1);" \
  "$("$python" --version), $(uname -r), $(nproc) cores; commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
say
say "| step | result | s | last line |"
say "|---|---|---|---|"
step build 200 bash -c compile
step cpp-tests 60 bash -c cpp_tests
step pack 60 "$python" tests/gpu/check_pack.py
step memcheck 120 bash -c 'sanitize memcheck'
step initcheck 120 bash -c 'sanitize initcheck'
step pytest 240 "$python" -m pytest -m gpu -q tests/gpu tests/distributed/gpu
step bandwidth 60 "$python" tests/gpu/pack_bandwidth.py
say
say "## Packing"
say
grep '^|' $build/bandwidth.log | tee -a $report
exit $failed
