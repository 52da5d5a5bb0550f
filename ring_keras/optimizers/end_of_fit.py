"""Compares the ranks' weights where a `fit` ends that has no callback of ours."""

from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.keras_internals import calls
from ring_keras.ops.data_order import living_orders, require_common_orders
from ring_keras.optimizers.equal_weights import require_equal
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.weight_digests import all_digests, variable_name

__all__ = ["EndOfFit"]


class EndOfFit:
    """Replaces the method of an optimizer by which Keras ends `fit`.

    Args:
        optimizer: A distributed one.
        options: What the user has chosen for it.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, options: ReductionOptions
    ) -> None:
        self._optimizer = optimizer
        self._options = options

    def install(self) -> None:
        """Puts it into the optimizer."""
        internals.replace(
            self._optimizer, internals.FINALIZE_VARIABLES, self._finalize_variables
        )

    def _finalize_variables(self, var_list: Sequence[Any]) -> None:
        model = calls.calling_model()
        run = None if model is None else calls.calling_run(model)
        if (
            run is not None
            and run.trains
            and not any(
                getattr(callback, "compares_weights", False)
                for callback in run.callbacks.callbacks
            )
        ):
            self._compare(model)
        finalize = getattr(type(self._optimizer), internals.FINALIZE_VARIABLES)
        finalize(self._optimizer, var_list)

    def _compare(self, model: keras.Model) -> None:
        process_set = self._options.process_set
        if process_set.size() == 1 or not process_set.included():
            return
        of_samples = {id(v) for v in internals.recurrent_states(model)}
        weights = [
            v
            for v in model.weights
            if not self._options.is_local(v) and id(v) not in of_samples
        ]
        digests = all_digests(weights, "fit/weights", process_set)
        if len(digests) < process_set.size():
            return  # A rank is in join().
        columns = [index for index, v in enumerate(weights) if v.trainable]
        trained = [weights[index] for index in columns]
        require_equal(trained, digests[:, columns], "at the end of fit()", process_set)
        # Their passes set the orders of the next fit.
        require_common_orders(living_orders(process_set), process_set)
        state = [
            weight
            for weight, same in zip(
                weights, (digests == digests[0]).all(axis=0), strict=True
            )
            if not same and not weight.trainable
        ]
        if state and process_set.rank() == 0:
            logging.warning(
                "ring_keras: at the end of fit() '%s'%s not the same on all ranks: "
                "layers have changed them by their rank's data. Give fit() "
                "ring_keras.callbacks.MetricAverage(), with which the ranks share "
                "them, or call ring_keras.layers.average_moving_statistics(model).",
                variable_name(state[0]),
                f" and {len(state) - 1} more are" if len(state) > 1 else " is",
            )
