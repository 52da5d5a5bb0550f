"""Takes the place of `horovod.common.exceptions`."""

from ring_keras.elastic import HostsUpdatedInterrupt
from ring_keras.errors import CommunicationError as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
