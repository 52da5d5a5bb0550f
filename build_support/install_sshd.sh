#!/bin/sh
# Installs sshd for `make test-hosts`, where that is possible. Never fails: the tests
# say what they lack.
PATH=$PATH:/usr/sbin
if command -v sshd >/dev/null && command -v ssh >/dev/null && command -v ip >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "No sshd, ssh or ip here, and none can be installed: that takes root, and Debian's apt-get."
  exit 0
fi
# It must serve the tests alone: no server of this machine's own is started.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install --yes --no-install-recommends openssh-server openssh-client iproute2; } \
  >/dev/null 2>&1 || echo "apt-get could not install openssh-server."
exit 0
