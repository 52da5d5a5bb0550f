"""Takes the place of `horovod.tensorflow.keras.callbacks`."""

from ring_keras.horovod._keras_2 import is_tf_keras

if is_tf_keras():
    from ring_keras.horovod._keras_2_callbacks import (
        BestModelCheckpoint,
        BroadcastGlobalVariablesCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        MetricAverageCallback,
    )
else:
    from ring_keras.horovod._callbacks import (
        BestModelCheckpoint,
        BroadcastGlobalVariablesCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        MetricAverageCallback,
    )

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
