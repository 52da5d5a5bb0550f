"""The process that serves a job's store for rank 0, and outlives it a little.

Run as a script, `python -I store_process.py OPTIONS`, where OPTIONS is an object in
JSON without any secret: the parent's `sys_path` and pid, and what `serve` takes. It
prints the store's card on its standard output and closes that.
"""

import json
import os
import signal
import sys

# What asks ranks to end goes to all processes of a job. The store ends after them.
_NOT_FOR_US = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")


def main() -> None:
    """Serves until the job is over."""
    options = json.loads(sys.argv[1])
    for name in _NOT_FOR_US:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    # So that modules are found where rank 0 has found them.
    sys.path[:] = options.pop("sys_path")
    from ring_keras.schedulers.serving import serve

    # It is not needed, and errors would bring it: without, they are RuntimeErrors.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    card_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        serve(card_fd=card_fd, **options)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"ring_keras: the job's store: {error}")


if __name__ == "__main__":
    main()
