"""Every private name of Keras and tf.data that this package relies on.

Nothing else in the package touches one. A test compares `PRIVATE_NAMES` with
the installed releases and fails by name when one is gone.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

# Where Keras or TensorFlow defines it -> what we call, replace or read there.
PRIVATE_NAMES: dict[str, tuple[str, ...]] = {
    # Public, but replaced on the instance: `train_step`, `train_function`,
    # `make_train_function`, `apply`, `build`, `check_finite` and `call` must keep
    # their meaning.
    "keras.Model": (
        "_compile_loss",
        "_get_metrics_result_or_logs",
        "_symbolic_build",
        "make_train_function",
        "train_step",
    ),
    "keras.layers.BatchNormalization": ("_moments",),
    "keras.layers.Layer": ("_flatten_layers",),
    "keras.optimizers.Optimizer": (
        "_backend_apply_gradients",
        "_clip_gradients",
        "_overwrite_variables_directly_with_gradients",
        "apply",
        "build",
        "finalize_variable_values",
    ),
    "keras.losses.Loss": ("call",),
    "keras.optimizers.LossScaleOptimizer": ("check_finite",),
    "tf.data.Dataset": ("_inputs",),
    "tf.data.experimental.service.DispatchServer": ("_stop",),
    "tf.data.experimental.service.WorkerServer": ("_address", "_stop"),
}

# Attributes that exist only on instances.
TRAIN_FUNCTION = "train_function"
INITIAL_EPOCH = "_initial_epoch"
ITERATIONS = "_iterations"
SHUFFLE_SEEDS = ("_seed", "_seed2")
SHUFFLE_AGAIN = "_reshuffle_each_iteration"
TRAINABLE_VARIABLES = "_trainable_variables"
REDUCTION_AXES = "_reduction_axes"
SGD_MOMENTUM = "momentums"
RMSPROP_MOMENTUM = "_momentums"

CLIP_GRADIENTS = "_clip_gradients"
BACKEND_APPLY_GRADIENTS = "_backend_apply_gradients"
APPLY = "apply"
BUILD = "build"
OVERWRITE_DIRECTLY = "_overwrite_variables_directly_with_gradients"
LOSS_CALL = "call"
CHECK_FINITE = "check_finite"
FINALIZE_VARIABLES = "finalize_variable_values"
TRAIN_STEP = "train_step"
METRICS_RESULT = "_get_metrics_result_or_logs"
MOMENTS = "_moments"
MASK = "_keras_mask"

SHUFFLE_DATASET = "_ShuffleDataset"
BATCH_DATASETS = frozenset(
    {
        "_BatchDataset",
        "_MapAndBatchDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_DenseToRaggedDataset",
        "_DenseToSparseBatchDataset",
    }
)
UNBATCH_DATASET = "_UnbatchDataset"

# Of losses that are not divided by anything.
_SUMS = ("sum", "none", None)


def replace(target: Any, name: str, value: Callable[..., Any]) -> None:
    """Puts `value` before the method `name` of this one instance.

    Past `__setattr__`, so that neither Keras nor TensorFlow tracks it.
    """
    vars(target)[name] = value


def restore(target: Any, name: str) -> None:
    """Undoes `replace`."""
    vars(target).pop(name, None)


def replacement(target: Any, name: str) -> Any:
    """What `replace` put there, or None."""
    return vars(target).get(name)


def is_wrapper(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether it hands its gradients to other optimizers.

    A `MultiOptimizer` may not know them before it is built.
    """
    return _is_multi_optimizer(optimizer) or bool(inner_optimizers(optimizer))


def inner_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """The optimizers that a wrapping one hands its gradients to."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(optimizer.optimizers) if _is_multi_optimizer(optimizer) else []


def trainable_variables(optimizer: keras.optimizers.Optimizer) -> Sequence[Any]:
    """Those it was built with; none before that."""
    return getattr(optimizer, TRAINABLE_VARIABLES, ())


def variable_key(variable: Any) -> Hashable:
    """The same for a Keras variable and the TensorFlow variable in it."""
    if isinstance(variable, keras.Variable):
        variable = variable.value
    # Tensors, which a gradient can be taken of too, are told apart as well.
    key: Hashable = variable.ref()
    return key


def _is_multi_optimizer(optimizer: keras.optimizers.Optimizer) -> bool:
    # Older Keras has no such class.
    multi = getattr(keras.optimizers, "MultiOptimizer", None)
    return multi is not None and isinstance(optimizer, multi)


def overwrites_with_gradient(variable: Any) -> bool:
    """Whether Keras assigns its "gradient" to it, as in float8 training."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The compiled optimizer, and others a custom model keeps (as GANs do).

    Those in attributes, in lists and dicts there, and of models in it.
    """
    found: dict[int, keras.optimizers.Optimizer] = {}
    seen: set[int] = set()
    waiting: deque[Any] = deque([getattr(model, "optimizer", None), model])
    waiting += _models_in(model)
    while waiting:
        value = waiting.popleft()
        if isinstance(value, keras.optimizers.Optimizer):
            found.setdefault(id(value), value)
        elif (
            isinstance(value, (dict, list, tuple, set, keras.Model))
            and id(value) not in seen
        ):
            seen.add(id(value))
            if isinstance(value, keras.Model):
                value = vars(value)
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return list(found.values())


def _models_in(model: keras.Model) -> list[keras.Model]:
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, keras.Model)
    ]


def velocities(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """The momentum variables that hold gradients times the learning rate.

    None before the optimizer is built. Those of Adam and others hold gradients
    alone.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    found: Sequence[keras.Variable] = ()
    if isinstance(optimizer, keras.optimizers.SGD):
        found = getattr(optimizer, SGD_MOMENTUM, ())
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        found = getattr(optimizer, RMSPROP_MOMENTUM, ())
    return [variable.value for variable in found]


def batch_normalizations(
    model: keras.layers.Layer,
) -> list[keras.layers.BatchNormalization]:
    """Those in a model, at any depth, or the layer itself."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def synchronized_statistics(model: keras.Model) -> list[keras.Variable]:
    """The moving statistics of layers with `synchronized=True`."""
    return [
        variable
        for layer in batch_normalizations(model)
        if getattr(layer, "synchronized", False)  # Older Keras has no such argument.
        for variable in layer.non_trainable_variables
    ]


def frozen_weights(model: keras.Model) -> list[keras.Variable]:
    """Weights that training would change, of layers with `trainable=False`."""
    return [
        variable
        for layer in model._flatten_layers()
        for variable in getattr(layer, TRAINABLE_VARIABLES)
        if not variable.trainable
    ]


def recurrent_states(model: keras.Model) -> list[keras.Variable]:
    """What layers with `stateful=True` keep from one batch for the next."""
    return [
        state
        for layer in model._flatten_layers()
        if getattr(layer, "stateful", False)
        for state in tf.nest.flatten(getattr(layer, "states", None))
        if isinstance(state, keras.Variable)
    ]


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a built layer takes mean and variance."""
    return list(getattr(layer, REDUCTION_AXES))


def steps_done(optimizer: keras.optimizers.Optimizer) -> int:
    """How many steps it has taken, those included that only accumulated.

    A `LossScaleOptimizer` leaves out steps that it skipped, unless `step_count` has
    been counted up in them.
    """
    inner = inner_optimizers(optimizer)
    if inner and not _is_multi_optimizer(optimizer):
        return max(steps_done(inner[0]), int(getattr(optimizer, ITERATIONS)))
    return int(getattr(optimizer, ITERATIONS))


def step_count(optimizer: keras.optimizers.Optimizer) -> keras.Variable | None:
    """A variable that a `LossScaleOptimizer` saves and has no use for itself.

    Its `iterations` are those of the optimizer in it. None for other optimizers.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    count: keras.Variable = getattr(optimizer, ITERATIONS)
    return count


def summed_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Compiled losses that add up their batch instead of taking the mean.

    Without a reduction too: the gradient of many numbers is that of their sum.
    """
    return [loss for loss in compiled_losses(model) if _adds_up(loss)]


def has_other_losses(model: keras.Model) -> bool:
    """Whether something that does not add up, as far as one can see, is added.

    Known once the model has been called.
    """
    others = [loss for loss in compiled_losses(model) if not _adds_up(loss)]
    return bool(others or model.losses)


def compiled_losses(model: keras.Model) -> list[Any]:
    """As they were given to `compile()`: losses, functions and names."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return [loss for loss in losses if loss is not None]


def _adds_up(loss: Any) -> bool:
    return isinstance(loss, keras.losses.Loss) and loss.reduction in _SUMS


def loss_divides_by_sample_weight(model: keras.Model) -> bool:
    """Whether a compiled loss is divided by the sum of the sample weights."""
    return "mean_with_sample_weight" in _reductions(model)


def _reductions(model: keras.Model) -> set[str | None]:
    return {getattr(loss, "reduction", None) for loss in compiled_losses(model)}


def train_function(model: keras.Model) -> Callable[[Any], Any]:
    """The function that runs one execution, made if there is none."""
    model.make_train_function()
    function: Callable[[Any], Any] = model.train_function
    return function


def set_train_function(
    model: keras.Model, function: Callable[[Any], Any] | None
) -> None:
    """Replaces it; with None, Keras makes and traces a new one."""
    model.train_function = function


def initial_epoch(model: keras.Model) -> int | None:
    """The epoch that a callback wants `fit` to begin with."""
    epoch = getattr(model, INITIAL_EPOCH, None)
    return None if epoch is None else int(epoch)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes `fit` begin with that epoch."""
    setattr(model, INITIAL_EPOCH, epoch)


def upstream(dataset: Any) -> Iterator[Any]:
    """The dataset and everything it reads from, sink first; other data alone."""
    yield dataset
    if not isinstance(dataset, tf.data.Dataset):
        return
    for source in dataset._inputs():
        yield from upstream(source)


def shuffle_seeds(dataset: tf.data.Dataset) -> tuple[int, int] | None:
    """What governs the order of a shuffle; None for other transformations.

    (0, 0) leaves it to chance. One number comes from the shuffle's own seed,
    the other from `tf.random.set_seed`.
    """
    if type(dataset).__name__ != SHUFFLE_DATASET:
        return None
    first, second = (int(getattr(dataset, name)) for name in SHUFFLE_SEEDS)
    return first, second


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether it is a shuffle that has another order in each pass."""
    if type(dataset).__name__ != SHUFFLE_DATASET:
        return False
    return bool(getattr(dataset, SHUFFLE_AGAIN, True))


def stop_data_server(server: Any) -> None:
    """Ends a dispatcher or a worker of the tf.data service."""
    server._stop()


def data_server_port(worker: tf.data.experimental.service.WorkerServer) -> int:
    """The port on which a worker of the tf.data service listens."""
    return int(worker._address.rpartition(":")[2])
