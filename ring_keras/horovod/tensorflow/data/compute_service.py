"""Takes the place of `horovod.tensorflow.data.compute_service`."""

from ring_keras.data.service import (
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)

__all__ = [
    "TfDataServiceConfig",
    "compute_worker_fn",
    "send_to_data_service",
    "tf_data_service",
]
