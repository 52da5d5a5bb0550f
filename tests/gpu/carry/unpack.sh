#!/usr/bin/env bash
# On the GPU machine, in the folder with what pack.sh left: unpacks the environment, and
# gives the libraries of CUDA 13 that lie there the names by which TensorFlow opens those
# of CUDA 12. TensorFlow looks each function up by its name, and those that it calls are
# the same; it ran so on 2026-11-26.
#
#   unpack.sh NVIDIA CLONE
#
# CLONE, of the commit that was packed, gets the compiled libraries. NVIDIA is the folder
# `nvidia` of a Python environment with CUDA 13's packages, such as torch's. Prints what to `eval` before tests/gpu/tensorflow.sh.
set -euo pipefail
cd "$(dirname "$0")"
nvidia=$1
cp built/* "$2/ring_keras/"
environment=$(cat environment)
cat piece-* | xz --decompress --threads 0 | tar --directory / --extract
links=$environment/cuda12
mkdir -p "$links"
while read -r name theirs wanted; do
  ln -sf "$nvidia/cu13/lib/lib$name.so.$theirs" "$links/lib$name.so.$wanted"
done <<'END'
cublas 13 12
cublasLt 13 12
cufft 12 11
cupti 13 12
cusolver 12 11
nvJitLink 13 12
END
runtime=$(echo "$environment"/lib/python3*/site-packages/nvidia/cuda_runtime/lib)
base=$(sed -n 's/^home = \(.*\)\/bin$/\1/p' "$environment/pyvenv.cfg")
echo "export PYTHON=$environment/bin/python"
echo "export LD_LIBRARY_PATH=$links:$nvidia/cu13/lib:$nvidia/cudnn/lib:$nvidia/nccl/lib:$runtime:$base/lib:${LD_LIBRARY_PATH:-}"
echo "export RING_KERAS_CUDA_LIBRARY_PATH=$runtime:$nvidia/nccl/lib:$nvidia/cu13/lib"
echo "export XLA_FLAGS=--xla_gpu_cuda_data_dir=${CUDA_HOME:-/usr/local/cuda}"
