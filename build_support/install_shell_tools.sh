#!/bin/sh
# Installs shells, and readers of man pages, for the tests of completion and of
# ringrun(1), where that is possible. Never fails: the tests say what they lack.
missing=
for program in zsh:zsh fish:fish man:man-db mandoc:mandoc groff:groff; do
  command -v "${program%:*}" >/dev/null || missing="$missing ${program#*:}"
done
[ -e /usr/share/bash-completion/bash_completion ] || missing="$missing bash-completion"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Without$missing, which cannot be installed: that takes root, and Debian's apt-get."
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update >/dev/null 2>&1
for package in $missing; do
  apt-get install --yes --no-install-recommends "$package" >/dev/null 2>&1 \
    || echo "apt-get could not install $package."
done
exit 0
