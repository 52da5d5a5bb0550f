#!/usr/bin/env bash
# Builds the fuzz targets and runs them one after the other; `make fuzz`.
#
#   FUZZ_RUNS=N       inputs for each
#   FUZZ_SECONDS=S    for each at the most; 0: any number
#   FUZZ_TARGETS=...  some of them, such as "peer_card announcement"
#
# What libFuzzer finds worth keeping stays in build/fuzz/corpus. Where there is no
# Clang with libFuzzer, and no way to install it, this says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=${FUZZ_RUNS:-1000000}
seconds=${FUZZ_SECONDS:-0}
bin=${1:-.venv/bin}
build=build/fuzz

has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' \
    | "$1" -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null
}

find_clang() {
  local compiler
  for compiler in clang++ clang++-{14,15,16,17,18,19}; do
    if command -v "$compiler" >/dev/null && has_fuzzer "$compiler"; then
      echo "$compiler"
      return
    fi
  done
  return 1
}

if ! clang=$(find_clang); then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends \
      clang-14 libclang-rt-14-dev; } >/dev/null 2>&1 || true
  fi
  if ! clang=$(find_clang); then
    echo "Nothing is fuzzed: there is no Clang with libFuzzer, which Debian has in" \
      "clang-14 and libclang-rt-14-dev, and it cannot be installed here."
    exit 0
  fi
fi

# Without Python and TensorFlow, of which nothing is fuzzed.
"$bin/cmake" -S . -B $build -G Ninja -DCMAKE_MAKE_PROGRAM="$(realpath "$bin/ninja")" \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER="$clang" \
  -DRING_KERAS_FUZZ=ON -DRING_KERAS_SANITIZE=address -DRING_KERAS_BUILD_KERNELS=OFF \
  -DRING_KERAS_BUILD_BINDINGS=OFF ${CMAKE_ARGS:-} >/dev/null
"$bin/cmake" --build $build --target ring_keras_fuzz --parallel "$(nproc)" >/dev/null

mkdir -p $build/logs
# What has been freed is not to count as memory in use.
export ASAN_OPTIONS=quarantine_size_mb=16
targets=${FUZZ_TARGETS:-$(cd $build/tests/fuzz && ls -d -- *_fuzz)}
for target in $targets; do
  target=${target%_fuzz}_fuzz
  corpus=$build/corpus/$target
  log=$build/logs/$target
  mkdir -p "$corpus"
  # Inputs of 4 KiB may cost no more memory than this.
  if ! "$build/tests/fuzz/$target" -runs="$runs" -max_total_time="$seconds" -max_len=4096 \
    -malloc_limit_mb=64 -rss_limit_mb=1024 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$build/$target-" "$corpus" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  awk -v target="$target" '
    /number_of_executed_units/ { inputs = $2 }
    /peak_rss_mb/ { rss = $2 }
    $1 == "Done" { seconds = $(NF - 1) }
    END { printf "%-24s %9d inputs %5d s %5d MB\n", target, inputs, seconds, rss }
  ' "$log"
done
