"""A model's metrics, by all ranks."""

from typing import Any

import keras
import numpy as np

from ring_keras import keras_internals as internals
from ring_keras.inference.share import Share
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.states.metric_state import averaged_logs, state_of_all_ranks

__all__ = ["evaluate"]


def evaluate(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    return_dict: bool = False,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns what `model.evaluate(x, y)` does; each rank computes a part of it.

    It is a collective. Each rank evaluates consecutive batches, the same ones that one
    process would have. The states of the metrics are combined as by
    `ring_keras.callbacks.MetricAverage`:

    ```python
    loss, accuracy = ring.evaluate(model, test_images, test_labels)
    ```

    Examples:
        >>> model.compile(loss="mse", metrics=["mae"])
        >>> loss, error = ring.evaluate(model, x, y, batch_size=8, verbose=0)

    Args:
        model: Compiled; the same on every rank. Its optimizer does not matter.
        x: All of the data, the same on every rank; see `predict`.
        y: The targets, if `x` is arrays.
        sample_weight: The sample weights, if `x` is arrays.
        batch_size: The batch size for arrays; 32 by default.
        verbose: As in Keras; the first rank shows its own progress.
        return_dict: Whether to return values by name.
        process_set: Ranks that take part. Defaults to all.

    Returns:
        As Keras: the loss, or a list of it and the metrics, or a dict; the same on
        every rank.

    Raises:
        ValueError: If the data are empty, infinite or shuffled, if the model has layers
            with `stateful=True`, or if a metric's variables cannot be combined.
        TypeError: If `x` is of another kind.
        RankMismatchError: If ranks have different data or weights, or one fails.
        PeerLostError: If a rank died or left.
    """
    process_set = process_set or global_process_set
    share = Share.of("evaluate", process_set, x, y, sample_weight, batch_size)

    def run() -> tuple[dict[str, Any], None]:
        logs = model.evaluate(
            **share.arguments, verbose=share.verbose(verbose), return_dict=True
        )
        if share.is_empty:
            model.reset_metrics()
            # What a test_step of its own returns.
            logs = dict.fromkeys(logs)
        return logs, None

    logs, _ = share.work(model, run)
    with state_of_all_ranks(model, process_set):
        metrics = {key: _value(of) for key, of in model.get_metrics_result().items()}
    if metrics.keys() == logs.keys():
        result = {key: metrics[key] for key in logs}
    else:
        result = averaged_logs({} if share.is_empty else logs, process_set)
    return result if return_dict else internals.in_order_of_metrics(model, result)


def _value(result: Any) -> Any:
    array = np.asarray(result)
    return float(array) if array.ndim == 0 else array
