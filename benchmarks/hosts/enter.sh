#!/bin/sh
# What MPI's launchers call in place of ssh: HOST COMMAND... runs the command on
# a host of ours, under a name of its own. HOST is an address; the names of the
# namespaces are "$RING_HOSTS_PREFIX" and the address's last number less 1.
while [ "${1#-}" != "$1" ]; do shift; done
number=$((${1##*.} - 1))
shift
exec ip netns exec "$RING_HOSTS_PREFIX$number" \
  unshare --uts sh -c "hostname host$number; $*"
