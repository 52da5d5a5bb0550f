"""The training job's side of the tf.data service."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from ring_keras.data.service.config import TfDataServiceConfig
from ring_keras.data.service.servers import dispatcher

__all__ = ["send_to_data_service", "tf_data_service"]


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Provides a training rank's dispatcher; runs it if it is on the training side.

    Examples:
        >>> from ring_keras.data import service
        >>> config = service.TfDataServiceConfig.read("service.json")
        >>> distribute = tf.data.experimental.service.distribute
        >>> with service.tf_data_service(config, ring.rank()) as address:
        ...     prepared = tf.data.Dataset.range(4).apply(
        ...         distribute("distributed_epoch", address))
        ...     sorted(prepared.as_numpy_iterator())
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]

    Args:
        compute_config: As the compute job wrote it.
        rank: This process's, in the training job.

    Yields:
        The dispatcher's address, for `tf.data.experimental.service.distribute`.

    Raises:
        TimeoutError: If dispatcher or workers are not ready in time.
    """
    client = compute_config.compute_client()
    shared = compute_config.dispatchers == 1
    number = 0 if shared else rank
    if number >= compute_config.dispatchers:
        raise ValueError(
            f"Rank {rank} has no dispatcher: there must be one for all ranks or one "
            f"for each. Received: dispatchers={compute_config.dispatchers}"
        )
    with contextlib.ExitStack() as stack:
        if compute_config.dispatcher_side == "training" and rank == number:
            address = stack.enter_context(dispatcher(client.own_address()))
            client.register_dispatcher(number, address)
        timeout = compute_config.timeout
        address = client.wait_for_dispatcher_registration(number, timeout)
        client.wait_for_dispatcher_worker_registration(number, timeout)
        yield f"grpc://{address}"


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Lets a compute job prepare a dataset.

    Use it if dispatchers run on the compute side. If they run on the training side, use
    `tf_data_service`, which runs them for as long as they are needed.

    Examples:
        >>> from ring_keras.data import service
        >>> config = service.TfDataServiceConfig.read("service.json")
        >>> prepared = service.send_to_data_service(
        ...     tf.data.Dataset.range(4).batch(2), config, ring.rank(), ring.size())
        >>> sum(int(tf.reduce_sum(batch)) for batch in prepared)
        6

    Args:
        dataset: The whole dataset to prepare there, including its batches.
        compute_config: As the compute job wrote it.
        rank: This process's, in the training job.
        size: Number of training ranks; needed for `round_robin`.
        processing_mode: As for `tf.data.experimental.service.distribute`:
            "distributed_epoch" splits the dataset among the workers; with
            "parallel_epochs" each worker processes all of it.
        reuse_dataset: Whether the ranks share one pass over the data. Each rank gets
            the next ready batch, so every item goes to one rank, but ranks may get
            different numbers. Use `ring_keras.data.join` then.
        round_robin: Whether, with `reuse_dataset`, ranks get their batches in
            turn. Takes a dataset that never ends.

    Returns:
        The prepared dataset.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service takes dispatchers on the compute side: those on the "
            "training side end with the `with` block of tf_data_service(). Use that, "
            "and tf.data.experimental.service.distribute() in it."
        )
    in_turn = reuse_dataset and round_robin
    if in_turn and size is None:
        raise ValueError("`round_robin` needs `size`, the number of training ranks.")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if in_turn else None,
                num_consumers=size if in_turn else None,
            )
        )
