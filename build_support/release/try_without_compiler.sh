#!/usr/bin/env bash
# As a user without a compiler: try_without_compiler.sh DIST_DIR VERSION
#
# In a fresh Debian 12 that has Python and no compiler: installs TensorFlow for
# CPUs and the wheel for its Python, and trains on two ranks; then the same on JAX,
# without TensorFlow. Needs root, debootstrap, the network and 3 GB.
set -euo pipefail
dist_dir=$(realpath "$1")
version=$2
root=$(realpath "$(dirname "$0")/../..")/build/release/debian

if [[ $(id -u) != 0 ]] || ! command -v debootstrap >/dev/null; then
  echo "release: --try needs root, and debootstrap: apt-get install debootstrap" >&2
  exit 1
fi

rm -rf --one-file-system "$root"
mkdir -p "$root"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
  bookworm "$root" >"$root.log" || { tail -5 "$root.log" >&2; exit 1; }
mkdir "$root/try"
cp "$dist_dir"/ring_keras-"$version"-*.whl "$(dirname "$0")/train_on_two.py" "$root/try/"
# What pip needs to get through where this machine has a proxy.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [[ -e $file ]]; then cp -L "$file" "$root$file"; fi
done

leave() {
  umount --recursive "$root/dev" "$root/proc"
}
mount --rbind --make-private /dev "$root/dev"
mount -t proc proc "$root/proc"
trap leave EXIT

chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin \
  bash -euo pipefail -s "$version" <<'USER'
cd /try
for compiler in cc gcc g++ c++ clang clang++; do
  if command -v "$compiler"; then echo "There is a compiler." >&2; exit 1; fi
done
python3 -m venv venv
. venv/bin/activate
pip install --quiet tensorflow-cpu
pip install --quiet --find-links . "ring-keras==$1" --only-binary ring-keras
pip list 2>/dev/null | grep -iE '^(ring|tensorflow|keras)'
ringrun --check-build
ringrun -np 2 python train_on_two.py
deactivate
python3 -m venv venv-jax
. venv-jax/bin/activate
pip install --quiet --find-links . "ring-keras[jax]==$1" --only-binary :all:
pip list 2>/dev/null | grep -iE '^(ring|jax|keras)'
export KERAS_BACKEND=jax
ringrun --check-build
ringrun -np 2 python train_on_two.py
USER
