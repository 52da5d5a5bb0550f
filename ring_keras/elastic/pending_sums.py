"""Gradients that ranks have added up when some are lost, or come, before the update."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank, size
from ring_keras.optimizers.common_variables import own_accumulators
from ring_keras.optimizers.meeting_hook import MeetingHook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["PendingSums"]


class PendingSums:
    """Each rank's own sums, until the ranks reduce them.

    An update takes their mean over the ranks that there are by then, also over those
    that have come in between and have none. So the others' count for more from then on.

    Args:
        optimizers: All of a model, built.
    """

    def __init__(self, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
        own = set(map(id, own_accumulators(optimizers)))
        apart = internals.innermost(
            one for one in optimizers if isinstance(OptimizerHook.of(one), MeetingHook)
        )
        self._optimizers = [
            _Accumulating(optimizer, int(passes), optimizer in apart)
            for optimizer in internals.innermost(optimizers)
            if (passes := getattr(optimizer, "gradient_accumulation_steps", None))
            and own.issuperset(map(id, internals.accumulators([optimizer])))
        ]
        # Of each optimizer: for how many ranks' this rank's sums count, and in which
        # update.
        self._counts: list[tuple[int, float]] = []
        self.begin_anew()
        self._saved = self._counts

    def save(self) -> None:
        """Keeps what is said of the sums, when they are copied."""
        self._saved = self._counts

    def restore(self) -> None:
        """Goes back to what was kept last, when they do."""
        self._counts = self._saved

    def begin_anew(self) -> None:
        """Each rank's count for one: they have their own again, or all have none."""
        self._counts = [(0, 1.0)] * len(self._optimizers)

    def gather(self, *, is_new: bool) -> list[list[float]]:
        """Before ranks take the steps of one of them: what each has; a collective.

        Args:
            is_new: Whether this rank has come later, and so has none.

        Returns:
            Of each rank a list: of each optimizer its steps, its count, and whether
            it may have sums, by passes that it has taken itself.
        """
        if not self._optimizers:
            return []
        own: list[float] = []
        for one, (update, count) in zip(self._optimizers, self._counts, strict=True):
            steps = internals.steps_done(one.optimizer)
            if is_new or update != steps // one.passes:
                count = 0.0 if is_new else 1.0
            own += [steps, count, float(not is_new)]
        rows: list[list[float]] = _native.allgather(
            np.array([own], np.float64), "elastic/fit/sums"
        ).tolist()
        return rows

    def go_on(self, everyones: list[list[float]], source: int) -> None:
        """Keeps this rank's sums if they are of the update to come, or clears them.

        Args:
            everyones: What `gather` has returned.
            source: The rank whose steps all have taken since.
        """
        counts = []
        for index, one in enumerate(self._optimizers):
            rows = [row[3 * index : 3 * index + 3] for row in everyones]
            update, passed = divmod(int(rows[source][0]), one.passes)
            # An update that others have done without this rank has used them.
            has = [bool(passed) and one.goes_with(row, rows[source]) for row in rows]
            # 0 of one that has come since: it has the passes from then on.
            mine = rows[rank()][1] if has[rank()] else 0.0
            variables = internals.accumulators([one.optimizer])
            if not has[rank()]:
                internals.clear_accumulators(variables)
            total = sum(row[1] for row, its in zip(rows, has, strict=True) if its)
            if one.is_averaged() and has[rank()] and total not in (0, size()):
                factor = size() / total
                for variable in map(internals.tensorflow_variable, variables):
                    variable.assign(variable * tf.cast(factor, variable.dtype))
                mine *= factor
            counts.append((update, mine if passed else 1.0))
        self._counts = counts


class _Accumulating:
    """One optimizer that adds up gradients before the ranks reduce them.

    Args:
        optimizer: One of Keras's, that updates variables itself.
        passes: How many make an update.
        is_apart: Whether ranks train apart, each by its own sums.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, passes: int, is_apart: bool
    ) -> None:
        self.optimizer = optimizer
        self.passes = passes
        self._is_apart = is_apart

    def is_averaged(self) -> bool:
        """Whether the ranks take the mean of their sums."""
        hook = OptimizerHook.of(self.optimizer)
        is_mean = hook is not None and hook.op is ReduceOp.AVERAGE
        return is_mean and not self._is_apart

    def goes_with(self, row: list[float], source: list[float]) -> bool:
        """Whether a rank's sums go into the same update as those of the source."""
        if self._is_apart:
            return True  # It has those that it was left with.
        if self.is_averaged():
            return row[0] == source[0] and row[2] > 0
        return row[2] > 0 and row[0] // self.passes == source[0] // self.passes
