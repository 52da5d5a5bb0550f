"""What a membership is to the framework that computes in this process."""

from __future__ import annotations

import functools
import importlib

from ring_keras.config import Config, ConfigError, keras_backend, settle_keras_backend
from ring_keras.job.job import Job

__all__ = ["Side", "side_of_process"]

# By Keras's back end: the module of `ring_keras.backends` and the class in it. The
# others have no side of their own.
_SIDES = {
    "jax": ("ring_keras.backends.jax.side", "JaxSide"),
    "tensorflow": ("ring_keras.backends.tensorflow.side", "TensorFlowSide"),
    "torch": ("ring_keras.backends.torch.side", "TorchSide"),
}


class Side:
    """That of a framework which ring_keras does not know: it is left alone.

    Back ends that it knows have a class of their own with these methods, in the order
    in which they are called.
    """

    def check(self) -> None:
        """Before anything else: raises if what is installed is not known here."""

    def check_settings(self, config: Config) -> None:
        """Raises ConfigError for what would be asked for in vain.

        A GPU is, here: nothing chooses one.
        """
        if config.device not in ("auto", "cpu"):
            raise ConfigError(
                f"[RK138] RING_KERAS_DEVICE={config.device}, but with Keras's back end "
                f"{keras_backend().name} ring_keras chooses no GPU. Unset it, and "
                "choose the device in the program, by ring_keras.local_rank(), or by "
                "CUDA_VISIBLE_DEVICES."
            )

    def load(self) -> None:
        """Loads what the first collective needs, before others wait for this rank."""

    def take_device(self, config: Config, job: Job) -> None:
        """Chooses this rank's device; collective."""

    def begin(self, job: Job) -> None:
        """This process is in the job, and its program goes on."""

    def end(self) -> None:
        """This process has left the job."""

    def end_process(self) -> None:
        """The process ends, after it has left its last job."""


@functools.cache
def side_of_process() -> Side:
    """The side of Keras's back end in this process, which stays as it is from now on.

    Raises:
        ImportError: If the framework is not installed.
    """
    backend = keras_backend().name
    if backend not in _SIDES:
        side = Side()
    else:
        module, name = _SIDES[backend]
        side = getattr(importlib.import_module(module), name)()
    settle_keras_backend()
    return side
