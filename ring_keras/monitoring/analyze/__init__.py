"""Reads what the flight recorders of a job's ranks wrote. Imports no TensorFlow."""
