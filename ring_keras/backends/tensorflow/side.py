"""TensorFlow's side of a membership."""

import importlib
import signal

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.backends.tensorflow.iterator_disposal import IteratorDisposal
from ring_keras.backends.tensorflow.iterators import end_iterators
from ring_keras.config import Config
from ring_keras.devices.choice import prepare_device
from ring_keras.errors import PeerLostError, RingKerasError
from ring_keras.job.job import Job
from ring_keras.keras_internals import require_private_names
from ring_keras.lifecycle.side import Side

__all__ = ["TensorFlowSide"]

# What a Python function in a dataset may take until its current call is done.
_ITERATORS_END_S = 5.0
# What those that are being destroyed may take.
_DISPOSAL_END_S = 1.0


class TensorFlowSide(Side):
    """Keras's private names, the op library, GPUs, iterators, lone scripts."""

    def __init__(self) -> None:
        # Of the process: its iterators live on when it leaves a job.
        self._disposal = IteratorDisposal()

    def check(self) -> None:
        """Raises if this release of Keras or TensorFlow is not known."""
        if not issubclass(PeerLostError, tf.errors.OpError):
            raise RingKerasError(
                "[RK139] init(): Keras's back end is TensorFlow, but it was to be "
                "another when ring_keras was first used, so ring_keras's errors are "
                "none of TensorFlow's. Choose the back end (KERAS_BACKEND) before "
                "ring_keras is imported."
            )
        require_private_names()

    def check_settings(self, config: Config) -> None:
        """All of them are for TensorFlow, too."""

    def load(self) -> None:
        """Loads the op library."""
        _libraries.ops()

    def take_device(self, config: Config, job: Job) -> None:
        """Chooses this rank's GPU, or has its tensors be where peers read them."""
        prepare_device(config)
        if config.share_tensors and job.local_size > 1 and not job.on_gpu:
            _libraries.share_tensors()

    def begin(self, job: Job) -> None:
        """Destroys iterators in threads, and looks at what Keras does alone."""
        self._disposal.begin()
        # So that models load that were compiled with our schedules and optimizers.
        importlib.import_module("ring_keras.schedules")
        importlib.import_module("ring_keras.fit.diloco")
        if job.size > 1:
            # What a script does with Keras alone is looked at, too.
            importlib.import_module("ring_keras.training.lone_scripts").watch()

    def end(self) -> None:
        """Iterators that are made later are none of ours."""
        self._disposal.end()

    def end_process(self) -> None:
        """Ends the iterators there are, while Python can still run their functions."""
        # Another Ctrl-C hurries nothing here: without this the process may never end.
        # Python calls what is registered with atexit in its main thread.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._disposal.give_up(_DISPOSAL_END_S)
            end_iterators(_ITERATORS_END_S)
        finally:
            if handler is not None:  # One that Python did not set cannot be set.
                signal.signal(signal.SIGINT, handler)
