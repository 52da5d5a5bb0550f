#!/bin/sh
# Installs a Java for `make test-engines` of Spark, where that is possible. Never fails:
# the tests say what they lack.
command -v java >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Without Java, which cannot be installed: that takes root, and Debian's apt-get."
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update >/dev/null 2>&1
apt-get install --yes --no-install-recommends default-jre-headless >/dev/null 2>&1 \
  || echo "apt-get could not install default-jre-headless."
exit 0
