"""Preparing data in processes of their own, with TensorFlow's tf.data service.

`ring data-service` starts those processes.
"""

from ring_keras._requirements import require_tensorflow

require_tensorflow("ring_keras.data.service")

from ring_keras.data.service.config import TfDataServiceConfig
from ring_keras.data.service.training import send_to_data_service, tf_data_service
from ring_keras.data.service.worker import compute_worker_fn

__all__ = [
    "TfDataServiceConfig",
    "compute_worker_fn",
    "send_to_data_service",
    "tf_data_service",
]
