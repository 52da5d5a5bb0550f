"""Training on Keras's back end torch: the optimizer, and what `fit` does."""
