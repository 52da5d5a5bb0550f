#!/usr/bin/env bash
# TensorFlow on an NVIDIA GPU: tests that elsewhere run on CPUs, with ranks that share
# the one GPU. For correctness; only the step `figures` measures. Prints a report as run.sh
# does, which is also in build/gpu-tensorflow/report.md.
#
#   tests/gpu/tensorflow.sh
#
# Needs the package built in place for a TensorFlow that finds the GPU, and PyTest.
# PYTHON=... picks an interpreter, REPORTS=... another folder for the report and the
# outputs. Exits with 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

export python=${PYTHON:-python3}
export reports=${REPORTS:-build/gpu-tensorflow}
export PYTHONPATH=$PWD
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# For all ranks.
shared='from support.real_gpu import SHARED_GPU; print(*map("=".join, SHARED_GPU.items()))'
shared=$(PYTHONPATH=$PWD:tests "$python" -c "$shared") || exit 1
export TESTS_ENVIRONMENT="CUDA_VISIBLE_DEVICES=0 RING_KERAS_DEVICE=0 $shared"
report=$reports/report.md
time_limit=${TIME_LIMIT:-540}
source tests/gpu/steps.sh

# References, which pytest computes itself, come from the CPU.
tests() { CUDA_VISIBLE_DEVICES='' COLUMNS=300 "$python" -m pytest -n "${WORKERS:-8}" -q -m "not slow" --tb=short -o timeout=90 -rfE "$@"; }

# The GPU, and what it computes without us.
alone() { "$python" tests/gpu/tensorflow_alone.py; }
export -f tests alone

begin_report "TensorFlow on a GPU"
step alone 60 bash -c alone || { end_report; exit 1; }
# What is for tensors in host memory alone: join(), shared tensors, a start without a
# wait that ends after its step, a step that fails after its collective has begun, and
# ops of ours for updates and thin messages.
ops=(tests/distributed/ops --ignore tests/distributed/ops/test_join.py
  --ignore tests/distributed/ops/test_shared_tensors.py
  --deselect tests/distributed/ops/test_compiled.py::test_a_dropped_start_uses_no_memory_of_its_run
  --deselect tests/distributed/ops/test_mismatch.py::test_a_failing_step_does_not_wait_for_its_collectives)
keras=tests/distributed/keras
fit=("$keras" --ignore $keras/test_keras_exactness.py --ignore $keras/test_keras_jit.py
  --ignore $keras/test_keras_fused_update.py
  --deselect $keras/test_keras_hook.py::test_a_step_of_fit_reduces_gradients_and_nothing_else
  --deselect $keras/test_low_rank.py::test_ranks_that_have_joined_bring_nothing
  --deselect $keras/test_thin_wires.py::test_xla_compiles_those_of_tensorflow)
step ops 150 bash -c "tests ${ops[*]}"
step exactness 150 bash -c "tests $keras/test_keras_exactness.py $keras/test_keras_jit.py"
step fit 240 bash -c "tests ${fit[*]}"
step figures 200 "$python" tests/gpu/fit_overhead.py
end_report
