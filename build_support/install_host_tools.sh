#!/bin/sh
# Installs sshd and Slurm for `make test-hosts`, where that is possible. Never fails:
# the tests say what they lack.
PATH=$PATH:/usr/sbin
missing=
for program in sshd:openssh-server ssh:openssh-client ip:iproute2 faketime:faketime \
  munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client; do
  command -v "${program%:*}" >/dev/null || missing="$missing ${program#*:}"
done
# With which MPIs and srun tell each other of processes.
for library in libpmi2.so.0:libpmi2-0 pmix2/lib/libpmix.so:libpmix-dev; do
  ls /usr/lib/*-linux-gnu/"${library%:*}" >/dev/null 2>&1 || missing="$missing ${library#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Without$missing, which cannot be installed: that takes root, and Debian's apt-get."
  exit 0
fi
# They must serve the tests alone: no server of this machine's own is started.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update >/dev/null 2>&1
for package in $missing; do
  apt-get install --yes --no-install-recommends "$package" >/dev/null 2>&1 \
    || echo "apt-get could not install $package."
done
exit 0
