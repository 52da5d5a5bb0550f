"""Takes the place of `horovod.common.exceptions`."""

from ring_keras.horovod._elastic import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
