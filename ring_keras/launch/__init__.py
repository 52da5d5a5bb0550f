"""ringrun: starts the ranks of a job, on this machine or on several, and ends them.

Imports no TensorFlow, Keras or NumPy: the ranks do.
"""
