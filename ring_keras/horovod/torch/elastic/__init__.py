"""Takes the place of `horovod.torch.elastic`."""

from ring_keras.elastic import HostsUpdatedInterrupt, run
from ring_keras.elastic.object_state import ObjectState
from ring_keras.errors import CommunicationError
from ring_keras.horovod.torch.elastic.sampler import ElasticSampler
from ring_keras.horovod.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "TorchState",
    "run",
]

HorovodInternalError = CommunicationError
"""What a collective raises when a rank has died, or stays silent."""
