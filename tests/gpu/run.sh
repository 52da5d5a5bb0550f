#!/usr/bin/env bash
# All that needs an NVIDIA GPU, on one machine, meant for 10 minutes: builds the core
# and its Python module, checks, measures. Prints a report in Markdown, which is
# also in build/gpu/report.md, with the output of every step beside it.
#
#   tests/gpu/run.sh
#
# Needs neither TensorFlow nor a network; README.md says what it needs. PYTHON=...
# picks an interpreter. Exits with 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

export python=${PYTHON:-python3}
export build=build/gpu
export PYTHONPATH=$PWD
report=$build/report.md
time_limit=580
failed=0

say() { echo "$*" | tee -a $report; }

# step NAME SECONDS COMMAND...: runs it, for so long at most, and says how it went.
step() {
  local name=$1 limit=$2 log=$build/$1.log start=$SECONDS verdict=passed status=0
  shift 2
  if ((limit > time_limit - start)); then limit=$((time_limit - start)); fi
  if ((limit > 0)); then
    timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
    status=$?
  else
    echo "no time was left" >"$log"
    status=124
  fi
  if ((status != 0)); then
    verdict="**failed** (exit code $status)"
    failed=1
    tail -n 40 "$log" >&2
  fi
  say "| $name | $verdict | $((SECONDS - start)) | $(grep -v '^ *$' "$log" | tail -n 1 | tr '|' '/') |"
  return $status
}

compile() {
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$(command -v "$python")" \
    -DRING_KERAS_BUILD_KERNELS=OFF -DRING_KERAS_BUILD_TESTS=ON &&
    cmake --build $build --target tf_ops/all tests/cpp/cuda/all &&
    cmake --install $build --prefix ring_keras
}

cpp_tests() { ctest --test-dir $build/tests/cpp/cuda --no-tests=error --output-on-failure; }

# Of the checks there are, those that apply: no kernel has shared memory or a barrier.
sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$python" tests/gpu/check_pack.py
}
export -f compile cpp_tests sanitize

mkdir -p $build
: >$report
say "# On a GPU"
say
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1);" \
  "$("$python" --version), $(nproc) cores, Linux $(uname -r);" \
  "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
say
say "| step | result | s | last line |"
say "|---|---|---|---|"
step build 240 bash -c compile || exit 1
step cpp-tests 60 bash -c cpp_tests
step pack 60 "$python" tests/gpu/check_pack.py
step bandwidth 60 "$python" tests/gpu/pack_bandwidth.py
step memcheck 120 bash -c 'sanitize memcheck'
step initcheck 120 bash -c 'sanitize initcheck'
step pytest 300 "$python" -m pytest -m gpu -q tests/gpu tests/distributed/gpu
say
say "## Packing"
say
grep '^|' $build/bandwidth.log | tee -a $report
exit $failed
