"""Training on Keras's back end JAX: collectives in what it compiles."""
