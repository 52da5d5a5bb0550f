"""Which back end Keras has, and what ring_keras says where it is not TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def printed(script: str, home: Path, **env: str) -> list[str]:
    """The lines that a program prints. Its environment says nothing of a back end."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_BACKEND", "KERAS_HOME")
    }
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=kept | {"HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "2"} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def test_it_is_found_as_keras_finds_it(tmp_path: Path) -> None:
    kinds = {
        "torch": {"backend": "torch"},
        "silent": {"floatx": "float32"},
        "empty": None,
    }
    for name, content in kinds.items():
        (tmp_path / name / ".keras").mkdir(parents=True)
        file = tmp_path / name / ".keras" / "keras.json"
        file.write_text("" if content is None else json.dumps(content))
    lines = printed(
        """
        import os, pathlib, sys, types
        from ring_keras.config import keras_backend
        here = pathlib.Path.home()
        def show(**variables):
            os.environ.update(variables)
            print(*keras_backend())
            for name in variables:
                del os.environ[name]
        show(HOME=str(here))
        for home in "torch", "silent", "empty":
            show(HOME=str(here / home))
        show(HOME=str(here), KERAS_HOME=str(here / "torch" / ".keras"))
        show(HOME=str(here / "torch"), KERAS_HOME=str(here))
        show(HOME=str(here / "torch"), KERAS_BACKEND="jax")
        show(HOME=str(here / "torch"), KERAS_BACKEND="")
        keras = sys.modules["keras"] = types.ModuleType("keras")  # Begins to load.
        show(HOME=str(here), KERAS_BACKEND="jax")
        keras.backend = types.SimpleNamespace(backend=lambda: "numpy")
        show(HOME=str(here), KERAS_BACKEND="jax")
        """,
        tmp_path,
    )

    by_file = f"torch by {tmp_path}/torch/.keras/keras.json"
    assert lines == [
        "tensorflow by default",
        by_file,
        "tensorflow by default",
        "tensorflow by default",
        by_file,
        "tensorflow by default",
        "jax by KERAS_BACKEND",
        by_file,
        "jax by KERAS_BACKEND",
        "numpy as Keras was imported",
    ]


# Each with what the error says of it.
_NEED_TENSORFLOW = {
    "ring.DistributedOptimizer('sgd')": "Training (ring_keras.DistributedOptimizer",
    "ring.DiLoCo": "Training (ring_keras.DistributedOptimizer, DiLoCo)",
    "ring.DistributedGradientTape": "ring_keras.DistributedGradientTape",
    "ring.allreduce([1.0])": "This collective (ring_keras.allreduce, barrier, join",
    "ring.barrier()": "This collective",
    "ring.broadcast_variables": "This collective",
    "ring.callbacks.Distributed()": "ring_keras.callbacks",
    "ring.data.shard([1])": "ring_keras.data",
    "ring.evaluate": "ring_keras.predict or evaluate",
    "ring.layers": "ring_keras.layers",
    "ring.schedules": "ring_keras.schedules",
    "ring.verify": "ring_keras.verify",
    "ring.elastic.KerasState": "ring_keras.elastic.KerasState",
    "ring.elastic.TensorFlowState": "ring_keras.elastic.TensorFlowState",
    "importlib.import_module('ring_keras.callbacks')": "ring_keras.callbacks",
    "importlib.import_module('ring_keras.data.service')": "ring_keras.data",
}


@pytest.mark.parametrize("is_initialized", [False, True], ids=["before", "in a job"])
def test_what_needs_tensorflow_says_so(tmp_path: Path, is_initialized: bool) -> None:
    lines = printed(
        f"""
        import importlib, os, sys
        import ring_keras as ring
        if {is_initialized}:
            ring.init()
            # Nothing was done for TensorFlow, and nothing will be.
            os.environ["KERAS_BACKEND"] = "tensorflow"
        for what in {list(_NEED_TENSORFLOW)}:
            try:
                eval(what)
            except ring.RingKerasError as error:
                print(error)
        print(*{{"tensorflow", "keras"}} & set(sys.modules))
        """,
        tmp_path,
        KERAS_BACKEND="numpy",
    )

    *messages, loaded = lines
    assert loaded == ""
    for message, said in zip(messages, _NEED_TENSORFLOW.values(), strict=False):
        assert message.startswith(f"[RK137] {said}")
        assert (
            "needs TensorFlow, and Keras's back end in this process is numpy (by "
            "KERAS_BACKEND). Set KERAS_BACKEND=tensorflow before" in message
        )
    assert len(messages) == len(_NEED_TENSORFLOW)


@pytest.mark.slow  # It loads TensorFlow.
def test_a_back_end_chosen_too_late_is_refused(tmp_path: Path) -> None:
    lines = printed(
        """
        import os
        import ring_keras as ring
        assert not ring.is_initialized()  # Its errors are there from here on.
        os.environ["KERAS_BACKEND"] = "tensorflow"
        try:
            ring.init()
        except ring.RingKerasError as error:
            print(error)
        """,
        tmp_path,
        KERAS_BACKEND="torch",
    )

    (line,) = lines
    assert line.startswith("[RK139] init(): Keras's back end is TensorFlow, but")


@pytest.mark.slow  # It loads TensorFlow.
def test_tensorflow_beside_another_back_end_changes_nothing(tmp_path: Path) -> None:
    lines = printed(
        """
        import sys
        import tensorflow as tf
        import ring_keras as ring
        ring.init()
        print(ring.allgather_object(1), "keras" in sys.modules)
        print(issubclass(ring.PeerLostError, tf.errors.OpError))
        try:
            ring.allreduce(tf.ones(2))
        except ring.RingKerasError as error:
            print(error.code)
        with ring.errors.translated():
            try:
                raise tf.errors.UnavailableError(None, None, "PeerLostError: gone")
            except tf.errors.OpError as error:
                print(repr(ring.errors.from_tensorflow(error)))
        """,
        tmp_path,
        KERAS_BACKEND="numpy",
    )

    assert lines == ["[1] False", "False", "RK137", "PeerLostError('gone')"]
