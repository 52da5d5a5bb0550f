"""A rank's process: runs the workers its parent names, one after the other.

`python -m support.child PARENT_PID DONE_FD WARM`. Each line on standard input
names a task file; the outcome is written beside it, and a byte on DONE_FD says
so. The end of standard input ends the process, and so does a worker's failure.

At last Python destroys all that there is, which takes a quarter of a second of a core:
more than most workers. With TESTS_WHOLE_END it does; without, the process is gone when
threads have ended and exit handlers have run.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib.util
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.network import enter

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Serves the parent until it closes our standard input."""
    code = _serve(arguments)
    if "TESTS_WHOLE_END" in os.environ:
        return code
    # In Python's own order.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(arguments: Sequence[str]) -> int:
    parent_pid, done_fd, warm = (int(word) for word in arguments)
    die_with_parent(parent_pid)
    os.set_inheritable(done_fd, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The parent ends a rank that hangs with SIGABRT: this prints where it was.
    faulthandler.enable(all_threads=True)
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    # A worker, or what it starts, must not eat the parent's next task.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if namespace := os.environ.get("TESTS_NAMESPACE"):
        enter(namespace)
    if warm:
        _warm_up()
        os.write(done_fd, b".")
    for line in tasks:
        task = Path(line.rstrip("\n"))
        outcome = _run(task)
        _write(task.with_suffix(".outcome"), outcome)
        os.write(done_fd, b".")
        if not outcome["returned"]:
            # The other ranks may wait for this one: leaving the job tells them.
            return 1
    return 0


def die_with_parent(parent_pid: int) -> None:
    """The kernel kills this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # It died before the call above.
        os._exit(1)


def _warm_up() -> None:
    """Pays for TensorFlow and for joining the job once, not once per test."""
    if os.environ.get("TESTS_WITHOUT_TENSORFLOW"):
        from support.engine_only import join

        join()
        return
    import ring_keras as ring

    ring.init()
    import keras  # noqa: F401
    import tensorflow  # noqa: F401


def _run(task: Path) -> dict[str, Any]:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        # The seed that the worker before has set, of its own rank maybe.
        tensorflow.random.set_seed(None)
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            # TF32 would round what is compared.
            tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with task.open("rb") as file:
            module_name, module_file = pickle.load(file)
            _load(module_name, module_file)
            worker, args, kwargs = pickle.load(file)
        result = pickle.dumps(worker(*args, **kwargs))
    except BaseException as error:
        return {
            "returned": False,
            "exception_type": type(error).__name__,
            "exception_bases": tuple(base.__name__ for base in type(error).__mro__),
            "message": str(error),
            "traceback": traceback.format_exc(),
            "ended_at": time.monotonic(),
        }
    return {"returned": True, "result": result, "ended_at": time.monotonic()}


def _load(name: str, file: str) -> None:
    """Imports the worker's module from its file, under the parent's name for it.

    The name may be one that only pytest's import mode can resolve.
    """
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _write(path: Path, outcome: dict[str, Any]) -> None:
    """Appears whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(outcome))
    unfinished.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
