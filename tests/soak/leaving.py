"""A rank that trains a little, then leaves: `leaving.py HOW`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

# Ways to leave, and the exit codes that a rank alone has then.
HOWS = {
    "return": 0,
    "exception": 1,
    "sys.exit": 0,
    "ctrl-c": -signal.SIGINT,
    "sigterm": 0,
    "shutdown": 0,
}
# Ranks get these signals one after the other: the second may hear of the first.
BY_SIGNAL = ("ctrl-c", "sigterm")


def main(arguments: Sequence[str]) -> int:
    """Leaves as the last argument says."""
    faulthandler.enable(all_threads=True)
    leave(arguments[-1])
    return 0


def send(number: int) -> None:
    """Sends this process a signal, soon and then every few seconds."""
    time.sleep(0.2)
    while True:
        os.kill(os.getpid(), number)
        time.sleep(10)


def leave(how: str) -> None:
    """Traces, fits, evaluates, and leaves datasets of Python generators behind."""
    import keras
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring

    # A shell makes what runs in its background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ring.init()

    def batches():
        while True:
            # Holds the GIL for a while, as a user's preprocessing does.
            total = sum(i * i for i in range(3000)) % 7
            yield np.full([4, 3], total, np.float32), np.ones([4, 1], np.float32)

    data = tf.data.Dataset.from_generator(
        batches,
        output_signature=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])),
    )
    data = data.map(
        lambda x, y: (tf.numpy_function(np.negative, [x], tf.float32), y),
        num_parallel_calls=2,
    ).map(lambda x, y: (tf.ensure_shape(x, [None, 3]), y))
    data = data.prefetch(4)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    model.fit(data, steps_per_epoch=3, epochs=2, verbose=0, callbacks=callbacks)
    model.evaluate(data, steps=2, verbose=0)
    dropped = iter(data)
    next(dropped)
    del dropped
    # In a circle, and in a global: the ends of two kinds of iterators.
    model.kept = iter(data)
    globals()["kept"] = iter(data)
    next(model.kept)
    next(globals()["kept"])
    ring.barrier()
    if how == "exception":
        raise RuntimeError("leaving by an exception")
    if how == "sys.exit":
        sys.exit(0)
    if how in ("ctrl-c", "sigterm"):
        number = signal.SIGINT if how == "ctrl-c" else signal.SIGTERM
        if number == signal.SIGTERM:
            signal.signal(number, lambda *_: sys.exit(0))
        # Again, as a user would: in some places Keras and TensorFlow swallow whatever
        # is raised, a Ctrl-C too.
        threading.Thread(target=send, args=(number,), daemon=True).start()
        model.fit(data, steps_per_epoch=100_000, verbose=0, callbacks=callbacks)
    if how == "shutdown":
        ring.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
