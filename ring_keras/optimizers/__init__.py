"""Averaging gradients over the ranks, behind Keras's own optimizers and tapes."""
