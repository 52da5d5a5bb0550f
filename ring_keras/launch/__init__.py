"""ringrun: starts the ranks of a job on this machine, and ends them.

Imports no TensorFlow, Keras or NumPy: the ranks do.
"""
