"""A folder to be put on PYTHONPATH; see `ring_keras.horovod._import_hook`."""
