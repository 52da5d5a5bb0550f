"""Takes the place of `horovod.tensorflow.elastic`."""

from ring_keras.horovod._elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    TensorFlowKerasState,
    TensorFlowState,
    run,
)

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]
