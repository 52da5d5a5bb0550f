#!/usr/bin/env bash
# For a GPU machine without a network: an environment with TensorFlow for CUDA, the
# tests' needs and this package built for them, in pieces that are small enough to be
# carried. Needs no GPU.
#
#   tests/gpu/carry/pack.sh FOLDER [ENVIRONMENT]
#
# leaves the pieces, the compiled libraries and unpack.sh in FOLDER. ENVIRONMENT, by default
# /opt/ring-keras-gpu, is made here and will lie there, too: a Python environment cannot
# move. PYTHON=... picks the interpreter, which comes along unless it is the system's.
# Kept of TensorFlow's device code is that for ARCHITECTURE (90: H100, H200; 80: A100),
# without which 1.1 GB become 140 MB; PIECE_BYTES are at most in a piece.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
environment=${2:-/opt/ring-keras-gpu}
python=${PYTHON:-python3}
tensorflow=${TENSORFLOW:-tensorflow==2.21.*}

"$python" -m venv "$environment"
bin=$environment/bin
requirements=("$bin/python" "$root/build_support/requirements.py")
"$bin/python" -m pip install --quiet "$tensorflow" nvidia-cuda-runtime-cu12 \
  $({ "${requirements[@]}"; "${requirements[@]}" --build; } | xargs -n 1 | grep -v '^tensorflow') \
  pytest pytest-timeout pytest-xdist tensorboard
(cd "$root" && "$bin/python" setup.py --quiet build_ext --inplace)

packages=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for library in "$packages"/tensorflow/libtensorflow_{cc,framework}.so.2 \
  "$packages"/tensorflow/python/profiler/internal/_pywrap_profiler_plugin.so; do
  strip --strip-unneeded "$library"
  "$bin/python" "$root/tests/gpu/carry/prune_device_code.py" "$library" "${ARCHITECTURE:-90}"
done

base=$("$bin/python" -c 'import sys; print(sys.base_prefix)')
interpreter=()
if [[ $base != /usr ]]; then
  interpreter=("${base#/}/bin" "${base#/}/lib")
fi
mkdir -p "$folder/built"
cp "$root"/ring_keras/*.so "$root/ring_keras/_build_info.json" "$folder/built/"
rm -f "$folder"/piece-*
tar --directory / --create --exclude __pycache__ --exclude "${environment#/}/lib/*/site-packages/tensorflow/include" \
  --exclude '*/site-packages/pip' --exclude '*/site-packages/cmake' --exclude "${base#/}/lib/python*/site-packages" \
  --exclude "${base#/}/lib/python*/test" --exclude '*/config-3*' \
  "${environment#/}" ${interpreter[@]+"${interpreter[@]}"} |
  xz --threads 0 -6 | split --bytes "${PIECE_BYTES:-45M}" --numeric-suffixes - "$folder/piece-"
cp "$root/tests/gpu/carry/unpack.sh" "$folder/"
printf '%s\n' "$environment" >"$folder/environment"
ls -l "$folder"
