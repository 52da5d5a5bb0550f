"""A compute job: `ringrun -np 4 ring data-service CONFIGFILE`."""

import argparse
import contextlib
import sys
from pathlib import Path

import ring_keras as ring
from ring_keras.data.service.config import TfDataServiceConfig
from ring_keras.data.service.registry import Registry
from ring_keras.data.service.worker import compute_worker_fn


def main(arguments: list[str]) -> None:
    """Runs until a training rank calls `config.compute_client().shutdown()`."""
    options = _parse(arguments)
    ring.init()
    if ring.size() % options.dispatchers:
        raise SystemExit(
            f"--dispatchers must divide the number of ranks, {ring.size()}. "
            f"Received: {options.dispatchers}"
        )
    with contextlib.ExitStack() as stack:
        plain = None
        if ring.rank() == 0:
            config = _open_registry(options, stack)
            plain = config.to_dict()
        config = TfDataServiceConfig.from_dict(
            ring.broadcast_object(plain, name="data.service")
        )
        compute_worker_fn(config)


def _open_registry(
    options: argparse.Namespace, stack: contextlib.ExitStack
) -> TfDataServiceConfig:
    workers_per_dispatcher = ring.size() // options.dispatchers
    registry = Registry(options.dispatchers, workers_per_dispatcher, options.address)
    stack.callback(registry.close)
    config = TfDataServiceConfig(
        dispatchers=options.dispatchers,
        workers_per_dispatcher=workers_per_dispatcher,
        dispatcher_side=options.dispatcher_side,
        addresses={options.address: [registry.address]},
        key=registry.key,
        timeout=options.timeout,
    )
    config.write(options.configfile)
    # A training job must not find that of a job that has ended.
    stack.callback(options.configfile.unlink, missing_ok=True)
    return config


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ring data-service",
        description="Prepares data for a training job. Every rank is a worker.",
    )
    parser.add_argument(
        "configfile", type=Path, help="file to write, for the training job to read"
    )
    parser.add_argument(
        "--dispatchers",
        type=int,
        default=1,
        help="number of dispatchers: one for all training ranks, or one for each "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--dispatcher-side",
        choices=["compute", "training"],
        default="compute",
        help="which job runs the dispatchers (default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        help="this host's address on the network that the training job is on. "
        "TensorFlow's servers have no authentication: with any other address than "
        "loopback, everybody who reaches their ports can use them (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        help="seconds to wait for dispatchers and workers (default: %(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
