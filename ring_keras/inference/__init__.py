"""What a trained model says of data, worked out by all ranks together."""
