"""What a trained model says of data, worked out by all ranks together."""

from ring_keras._requirements import require_tensorflow

require_tensorflow("ring_keras.predict or evaluate")
