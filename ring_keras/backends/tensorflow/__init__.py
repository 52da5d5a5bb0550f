"""What init() and shutdown() do where Keras's back end is TensorFlow."""
