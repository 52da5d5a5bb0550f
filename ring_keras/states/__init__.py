"""State of Keras's that ranks make one of: weights, layers, metrics; any back end."""
