"""The compute job's side of the tf.data service."""

import contextlib

from ring_keras.data.service.config import TfDataServiceConfig
from ring_keras.data.service.servers import dispatcher, worker
from ring_keras.job.topology import rank
from ring_keras.lifecycle.membership import init

__all__ = ["compute_worker_fn"]


def compute_worker_fn(
    compute_config: TfDataServiceConfig, timeout: float | None = None
) -> None:
    """Prepares data until the registry is shut down; every compute rank calls it.

    Examples:
        In a compute job, which ends when the registry is shut down:

        >>> from ring_keras.data import service
        >>> config = service.TfDataServiceConfig.read("service.json")  # doctest: +SKIP
        >>> service.compute_worker_fn(config)  # doctest: +SKIP

    Args:
        compute_config: The same on every rank.
        timeout: Seconds after which a worker gives up a lost dispatcher.
            Defaults to that of the configuration.
    """
    init()
    number, position = divmod(rank(), compute_config.workers_per_dispatcher)
    client = compute_config.compute_client()
    host = client.own_address()
    timeout_s = compute_config.timeout if timeout is None else timeout
    with contextlib.ExitStack() as stack:
        if compute_config.dispatcher_side == "compute" and position == 0:
            client.register_dispatcher(number, stack.enter_context(dispatcher(host)))
        address = client.wait_for_dispatcher_registration(
            number, compute_config.timeout
        )
        stack.enter_context(worker(host, address, timeout_s))
        client.register_worker_for_dispatcher(number, rank())
        client.wait_for_shutdown()
