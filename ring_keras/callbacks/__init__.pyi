from .best_model_checkpoint import BestModelCheckpoint as BestModelCheckpoint
from .broadcast_global_variables import (
    BroadcastGlobalVariables as BroadcastGlobalVariables,
)
from .checkpoint import Checkpoint as Checkpoint
from .distributed import Distributed as Distributed
from .elastic import Elastic as Elastic
from .learning_rate_schedule import LearningRateSchedule as LearningRateSchedule
from .learning_rate_warmup import LearningRateWarmup as LearningRateWarmup
from .metric_average import MetricAverage as MetricAverage
from .preemption import Preemption as Preemption
from .ring_metrics import RingMetrics as RingMetrics
from .root_only import RootOnly as RootOnly
from .tensorboard import TensorBoard as TensorBoard
