"""Collectives in what JAX compiles, by the handlers that TensorFlow's XLA calls.

Without TensorFlow: where there is JAX for GPUs, they reach a GPU by this.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
LIBRARY = "TESTS_XLA_LIBRARY"
"""The variable that names the library to ranks."""

TARGETS = ("run", "start", "wait", "depart", "arrive", "check")
# By their numbers in tf_ops/common.
KINDS = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall", "barrier")
OPS = ("sum", "average", "min", "max", "product")

_SOURCES = ("xla/handlers", "xla/in_jax", "xla/started_calls", "reduction_fault")
_numbers = itertools.count(1)


def jax_environment(directory: Path, platform: str) -> dict[str, str]:
    """What a rank needs; compiles the library into `directory`."""
    return {
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": platform,
        "TESTS_WITHOUT_TENSORFLOW": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        LIBRARY: str(_compiled(directory)),
    }


def _compiled(directory: Path) -> Path:
    """Against the headers of JAX, whose XLA wants those of its own version."""
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.origin is not None
    headers = Path(spec.origin).parent / "include"
    core = ROOT_DIR / "ring_keras"
    library = directory / "libring_keras_in_jax.so"
    command = [
        *(os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-g1", "-shared", "-fPIC"),
        *("-fvisibility=hidden", f"-I{ROOT_DIR}", f"-isystem{headers}"),
        *(str(ROOT_DIR / f"tf_ops/kernels/{name}.cc") for name in _SOURCES),
        *(f"-L{core}", "-lring_keras_core", f"-Wl,-rpath,{core}", "-Wl,--no-undefined"),
        *("-o", str(library)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """Opened, and its handlers known to JAX."""
    import jax

    # The core that it finds is that of this process, which `_native` has opened.
    handlers = ctypes.CDLL(os.environ[LIBRARY])
    find = handlers.RingKerasXlaHandler
    find.restype = ctypes.c_void_p
    for target, (platform, name) in itertools.product(
        TARGETS, {"cpu": b"Host", "CUDA": b"CUDA"}.items()
    ):
        target = f"ring_keras.{target}"
        handler = find(target.encode(), name)
        assert handler
        jax.ffi.register_ffi_target(
            target, jax.ffi.pycapsule(ctypes.c_void_p(handler)), platform=platform
        )
    return handlers


class Calls:
    """The calls of one computation, in the order in which they are traced.

    In place of the kernels for XLA: what those emit is in call_builder.cc.

    Args:
        token: What the calls before left behind, where they are in another
            computation, as a loop and its body are.
    """

    def __init__(self, token: Any = None) -> None:
        import jax.numpy as jnp

        self.token = jnp.zeros((), jnp.uint8) if token is None else token
        library()

    def run(
        self,
        kind: str,
        tensors: Sequence[Any],
        rows: int | None = None,
        **attributes: Any,
    ) -> list[Any]:
        """From beginning to end; `rows` of the result, if not those of the input."""
        import jax

        attributes["kind"] = KINDS.index(kind)
        results = list(tensors)
        if rows is not None:
            (only,) = tensors
            results = [jax.ShapeDtypeStruct((rows, *only.shape[1:]), only.dtype)]
        return self._call("run", tensors, results, attributes, rows is None)

    def start(
        self, tensors: Sequence[Any], *, aliased: bool = True, **attributes: Any
    ) -> tuple[int, Any, list[Any]]:
        number = next(_numbers)
        library().RingKerasXlaSetHasWait(ctypes.c_int64(number))
        started = self._call(
            "start", tensors, tensors, attributes | {"number": number}, aliased
        )
        return number, self.token, started

    def wait(
        self, pending: tuple[int, Any, list[Any]], *, aliased: bool = True
    ) -> list[Any]:
        number, token, started = pending
        return self._call("wait", started, started, {"number": number}, aliased, token)

    def depart(self, kind: str, tensors: Sequence[Any], **attributes: Any) -> Any:
        """Returns the token, by which the run waits for the call."""
        attributes["kind"] = KINDS.index(kind)
        self._call("depart", tensors, [], attributes, False)
        return self.token

    def arrive(self, results: Sequence[Any], **attributes: Any) -> list[Any]:
        """Of the shapes and types of `results`."""
        return self._call("arrive", [], results, attributes, False)

    def _call(
        self,
        target: str,
        tensors: Sequence[Any],
        results: Sequence[Any],
        attributes: dict[str, Any],
        aliased: bool,
        started: Any = None,
    ) -> list[Any]:
        import jax

        options, operands = {}, []
        for name in ("prescale", "postscale", "weight"):
            factor = attributes.pop(name, None)
            if isinstance(factor, float):
                options[name] = np.float64(factor)
            elif factor is not None:
                options[f"{name}_is_operand"] = np.int64(1)
                operands.append(factor)
        if "op" in attributes:
            options["reduce_op"] = np.int64(OPS.index(attributes.pop("op")))
        for name, value in attributes.items():
            options[name] = value if isinstance(value, str) else np.int64(value)
        operands = [self.token, *([] if started is None else [started]), *operands]
        aliases = (
            {len(operands) + i: 1 + i for i in range(len(tensors))} if aliased else {}
        )
        like = [
            jax.ShapeDtypeStruct(each.shape, each.dtype)
            for each in (self.token, *results)
        ]
        self.token, *outputs = jax.ffi.ffi_call(
            f"ring_keras.{target}",
            like,
            has_side_effect=True,
            input_output_aliases=aliases,
        )(*operands, *tensors, **options)
        return outputs
