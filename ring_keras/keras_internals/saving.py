"""A model's weights as a file, without a file system."""

import io

import keras

__all__ = ["weights_file"]


def weights_file(model: keras.Model) -> memoryview:
    """What `model.save_weights` would write now: weights and the optimizer's state.

    Args:
        model: A built one.

    Returns:
        The contents of a ".weights.h5", which do not change with the model.
    """
    saving = keras.src.saving.saving_lib
    file = io.BytesIO()
    store = saving.H5IOStore(file, mode="w")
    saving._save_state(model, store, None, "", set())
    store.close()
    return file.getbuffer()
