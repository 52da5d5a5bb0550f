"""Pipelines and servers of tf.data."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from ring_keras.keras_internals.names import (
    CACHE_DATASET,
    CHOOSING_DATASETS,
    CONSUMER_INDEX,
    DIRECTED_DATASET,
    FUNCTIONS_OF_DATASET,
    IN_ORDER,
    ITEM_BY_ITEM_DATASETS,
    NESTING_DATASETS,
    PARALLEL_INTERLEAVE,
    PARALLEL_MAP_DATASET,
    RANDOM_AGAIN,
    RANDOM_DATASET,
    SELECTOR,
    SERIALIZED_DATASET,
    SHUFFLE_AGAIN,
    SHUFFLE_AND_REPEAT_DATASET,
    SHUFFLE_DATASET,
    SHUFFLE_SEEDS,
    SOURCE_TENSORS,
)
from ring_keras.keras_internals.private_names import private

__all__ = [
    "data_server_port",
    "is_served_in_turn",
    "keeps_batches",
    "keeps_first_pass",
    "may_reorder",
    "reshuffles",
    "shuffle_seeds",
    "stop_data_server",
    "upstream",
]


_MOST_SERIALIZED_NBYTES = 1 << 24


def upstream(dataset: Any, items_only: bool = False) -> Iterator[Any]:
    """The dataset and everything it reads from, sink first; other data alone.

    Args:
        dataset: Of tf.data, or anything else.
        items_only: Whether to leave out what only says of which of several datasets
            the next item is.
    """
    yield dataset
    if not isinstance(dataset, tf.data.Dataset):
        return
    sources = dataset._inputs()
    if items_only and type(dataset).__name__ == DIRECTED_DATASET:
        selector = private(dataset, SELECTOR)
        sources = [source for source in sources if source is not selector]
    for source in sources:
        yield from upstream(source, items_only)


def shuffle_seeds(dataset: tf.data.Dataset) -> tuple[int, int] | None:
    """What governs the order of a shuffle, or of `sample_from_datasets`.

    (0, 0) leaves it to chance. One number comes from the seed that it was given, the
    other from `tf.random.set_seed`.

    Returns:
        None for other transformations.
    """
    own, of_program = SHUFFLE_SEEDS
    pairs = [
        (int(private(one, own)), int(private(one, of_program)))
        for one in _drawing(dataset)
    ]
    return min(pairs, default=None)


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether it is one of these, and has another order in each pass."""
    again = {SHUFFLE_DATASET: SHUFFLE_AGAIN, RANDOM_DATASET: RANDOM_AGAIN}
    return any(
        type(one).__name__ == SHUFFLE_AND_REPEAT_DATASET
        or bool(private(one, again[type(one).__name__]))
        for one in _drawing(dataset)
    )


def _drawing(dataset: tf.data.Dataset) -> list[Any]:
    """What draws numbers for a dataset's own order."""
    kind = type(dataset).__name__
    if kind in (SHUFFLE_DATASET, SHUFFLE_AND_REPEAT_DATASET):
        return [dataset]
    if kind != DIRECTED_DATASET:
        return []
    selector = upstream(private(dataset, SELECTOR))
    return [one for one in selector if type(one).__name__ == RANDOM_DATASET]


def keeps_first_pass(dataset: tf.data.Dataset) -> bool:
    """Whether later passes give the items of the first one, in its order."""
    return type(dataset).__name__ == CACHE_DATASET


def keeps_batches(dataset: Any) -> bool:
    """Whether it makes one item of each of those that it reads, at the same place."""
    return (
        type(dataset).__name__ in ITEM_BY_ITEM_DATASETS
        and not (
            type(dataset).__name__ == PARALLEL_MAP_DATASET
            and private(dataset, IN_ORDER) == "false"
        )
        and dataset.options().deterministic is not False
    )


def may_reorder(dataset: tf.data.Dataset) -> bool:
    """Whether a second pass, or another process, may see another order by chance.

    Where `deterministic` is False, where a function of `interleave` or `flat_map`
    shuffles without a seed, and where one of `filter` draws without a seed; not by
    shuffles of the dataset itself.
    """
    sources = list(upstream(dataset))
    return (
        dataset.options().deterministic is False
        or any(getattr(source, IN_ORDER, None) == "false" for source in sources)
        or any(map(_has_chance_in_functions, sources))
        or _interleaves_by_chance(dataset, sources)
    )


def _has_chance_in_functions(source: tf.data.Dataset) -> bool:
    """What is in a function of one, but for datasets that it takes from outside."""
    kind = type(source).__name__
    if kind not in NESTING_DATASETS | CHOOSING_DATASETS:
        return False
    bodies = []
    for wrapper in private(source, FUNCTIONS_OF_DATASET)():
        graph = wrapper.function.graph.as_graph_def()
        bodies += [graph.node, *(one.node_def for one in graph.library.function)]
    if kind in CHOOSING_DATASETS:
        return any(_draws_without_seed(node) for body in bodies for node in body)
    return any(map(_has_chance, bodies))


def _interleaves_by_chance(
    dataset: tf.data.Dataset, sources: list[tf.data.Dataset]
) -> bool:
    # What it was told only a serialized graph says, which has all data that are in
    # memory: so this looks if those are names of files, and the like.
    parallel = [one for one in sources if type(one).__name__ == PARALLEL_INTERLEAVE]
    if not parallel or sum(map(_nbytes_in_memory, sources)) > _MOST_SERIALIZED_NBYTES:
        return False
    try:
        serialized = private(dataset, SERIALIZED_DATASET)(
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        )
    except tf.errors.OpError:  # It has what no graph can have.
        return False
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    return any(map(_reorders, graph.node))


def _nbytes_in_memory(source: tf.data.Dataset) -> float:
    """Of its own tensors; without an end where functions take what may have more."""
    captured = [
        tensor
        for wrapper in private(source, FUNCTIONS_OF_DATASET)()
        for tensor in wrapper.function.captured_inputs
    ]
    if any(tensor.dtype == tf.variant for tensor in captured):
        return math.inf
    own = [getattr(source, name, None) for name in SOURCE_TENSORS]
    tensors = [*captured, *tf.nest.flatten(own)]
    return sum(
        float(one.dtype.size * (one.shape.num_elements() or 0))
        for one in tensors
        if isinstance(one, tf.Tensor)
    )


def _reorders(node: Any) -> bool:
    return bool(node.attr["deterministic"].s == b"false")


def _draws_without_seed(node: Any) -> bool:
    """Of an op of random numbers."""
    seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
    return len(seeds) == 2 and not any(seeds)


def _has_chance(body: Iterable[Any]) -> bool:
    """Whether a function has a dataset whose order is left to chance."""
    by_name = {node.name: node for node in body}

    def is_zero(name: str) -> bool:
        node = by_name.get(name.partition(":")[0])
        if node is None or node.op != "Const":
            return False
        return int(tf.make_ndarray(node.attr["value"].tensor)) == 0

    # After what is shuffled and the size of the buffer come the two seeds.
    return any(
        _reorders(node)
        or (node.op.startswith("ShuffleDataset") and all(map(is_zero, node.input[2:4])))
        for node in by_name.values()
    )


def is_served_in_turn(dataset: Any) -> bool:
    """Whether a server of tf.data gives its readers a batch each, in turn."""
    return int(getattr(dataset, CONSUMER_INDEX, -1)) >= 0


def stop_data_server(server: Any) -> None:
    """Ends a dispatcher or a worker of the tf.data service."""
    server._stop()


def data_server_port(worker: tf.data.experimental.service.WorkerServer) -> int:
    """The port on which a worker of the tf.data service listens."""
    return int(worker._address.rpartition(":")[2])
