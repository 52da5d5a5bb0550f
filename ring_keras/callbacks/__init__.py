"""Keras callbacks for training on several ranks, one per file."""

from ring_keras.callbacks.best_model_checkpoint import BestModelCheckpoint
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.distributed import Distributed
from ring_keras.callbacks.elastic import Elastic
from ring_keras.callbacks.learning_rate_schedule import LearningRateSchedule
from ring_keras.callbacks.learning_rate_warmup import LearningRateWarmup
from ring_keras.callbacks.metric_average import MetricAverage
from ring_keras.callbacks.preemption import Preemption
from ring_keras.callbacks.ring_metrics import RingMetrics
from ring_keras.callbacks.root_only import RootOnly
from ring_keras.callbacks.tensorboard import TensorBoard

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariables",
    "Distributed",
    "Elastic",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "MetricAverage",
    "Preemption",
    "RingMetrics",
    "RootOnly",
    "TensorBoard",
]
