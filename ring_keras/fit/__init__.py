"""What makes a `fit` one of several ranks: the optimizer, which brings the rest."""

from ring_keras._requirements import require_tensorflow

require_tensorflow("Training (ring_keras.DistributedOptimizer, DiLoCo)")
