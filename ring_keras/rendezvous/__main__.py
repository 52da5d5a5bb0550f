"""`python -m ring_keras.rendezvous`: a job's store, in a process of its own.

For ranks that something else than ringrun starts, anywhere: it needs their number,
an address that they reach, and the job's secret. It serves until it gets SIGTERM or
Ctrl-C: when all ranks have ended, or were lost, others may come and begin anew.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from ring_keras._libraries import rebuild_command
from ring_keras.config import (
    Config,
    ConfigError,
    read_token,
    share_openssl,
    split_address,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a job; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        heartbeat_s = Config.from_environment().heartbeat_s()
        token = read_token(options.secret_file, "--secret-file")
        host, port = split_address(options.listen)
    except ConfigError as error:
        parser.error(str(error))
    except ValueError:
        parser.error(f"--listen must be HOST:PORT, not {options.listen}")
    try:
        from ring_keras import _native
    except ImportError as error:
        print(
            f"ring_keras is not built ({error}): {rebuild_command()}", file=sys.stderr
        )
        return 1
    # It is not needed, and errors would bring it: without, they are RuntimeErrors.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    # Before the store has its thread, which must not get them.
    # What is ignored already stays so: nohup protects a process in this way.
    asked = {n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    try:
        if options.encrypt:
            share_openssl()
        store = _native.StoreServer(
            host, port, options.size, 0, token, options.encrypt, heartbeat_s
        )
    except (RuntimeError, ValueError, OSError) as error:
        parser.error(f"--listen {options.listen}: {error}")
    print(
        f"{parser.prog}: {options.size} ranks may come to {options.listen}", flush=True
    )
    signal.sigwait(asked)
    store.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ring_keras.rendezvous",
        description="Serves the store of one job, until SIGTERM or Ctrl-C. Ranks find "
        "it by RING_KERAS_STORE_ADDRESS and RING_KERAS_TOKEN_FILE; each also needs "
        "RING_KERAS_RANK and RING_KERAS_SIZE.",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="an address of this host that every rank reaches, and a free port",
    )
    parser.add_argument(
        "--size", required=True, type=int, metavar="N", help="ranks of the job"
    )
    parser.add_argument(
        "--secret-file",
        required=True,
        metavar="FILE",
        help="64 hexadecimal digits: (umask 077; openssl rand -hex 32 > FILE)",
    )
    parser.add_argument(
        "--encrypt",
        action="store_true",
        help="what ranks say to it is encrypted; they need RING_KERAS_ENCRYPT=1",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
