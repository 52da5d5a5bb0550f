"""A job's store in a process of its own: `python -m ring_keras.rendezvous`."""
