#!/usr/bin/env bash
# Makes the virtual environment of the Makefile: make_venv.sh DIR [INTERPRETER]
#
# Without an interpreter, takes the first on PATH of a version that fits.
set -euo pipefail

venv_dir=$1
candidates=("${2:-}")
if [[ -z ${2:-} ]]; then
  candidates=(python3 python3.13 python3.12 python3.11 python3.10)
fi

fits='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))'
python=
for candidate in "${candidates[@]}"; do
  if "$candidate" -c "$fits" 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [[ -z $python ]]; then
  echo "ring_keras needs Python 3.10 to 3.13; looked for: ${candidates[*]}." >&2
  for candidate in "${candidates[@]}"; do
    if found=$("$candidate" --version 2>&1); then
      echo "  $candidate is $found" >&2
    fi
  done
  echo "Install one, or name one: make PYTHON=/path/to/python3.12 ..." >&2
  exit 1
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "$python has no venv module. On Debian or Ubuntu: apt-get install" \
    "python$version-venv. Or name another Python: make PYTHON=... " >&2
  exit 1
fi
headers='import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'
if [[ ! -e $("$python" -c "$headers") ]]; then
  echo "$python has no C headers. On Debian or Ubuntu: apt-get install" \
    "python$version-dev; on Fedora: dnf install python3-devel." \
    "Or name another Python: make PYTHON=..." >&2
  exit 1
fi

echo "Making $venv_dir with $("$python" --version)"
"$python" -m venv "$venv_dir"
