#!/bin/sh
# Installs Chromium for `make test-board`, where that is possible. Never fails: the
# tests say what they lack.
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Without chromium, which cannot be installed: that takes root, and Debian's apt-get."
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update >/dev/null 2>&1
apt-get install --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 \
  || echo "apt-get could not install chromium."
exit 0
