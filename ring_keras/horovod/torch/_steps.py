"""The steps in which the ranks' gradients meet: docs/design/0011."""

from __future__ import annotations

from collections import Counter

from ring_keras import _native
from ring_keras._causes import in_one_line
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.job.topology import is_initialized
from ring_keras.training.told_errors import OF_OTHERS

__all__ = ["Steps"]

# How many optimizers a process set has had. They have numbers: of several with
# parameters of the same names and shapes each meets its own, as its ranks make them in
# one order. Of an elastic job some ranks have made theirs before, and may have some
# that nobody uses any more, so there it is the order in which they are first used.
_counts: PerJob[Counter[int]] = PerJob(Counter)


class Steps:
    """Of one optimizer, in one job.

    The optimizers of a process set would share its steps, and gradients of several may
    come in other orders on other ranks. So the one that was made last has them. In
    elastic jobs none has: there the others go on without a rank that fails.

    Args:
        process_set: The ranks that average.
        is_used: Whether it is used at once.
    """

    def __init__(self, process_set: ProcessSet, *, is_used: bool = False) -> None:
        self._process_set = process_set
        self._job = current_job()
        self._number: int | None = None
        # Whether the step under way is one of the process set's; None: there is none.
        self._is_in_step: bool | None = None
        if is_used and self._job.config.elastic_socket is None:
            self._take_number()

    def _take_number(self) -> int:
        if self._number is None:
            counts, key = _counts.of(self._job), self._process_set.key()
            self._number = counts[key]
            counts[key] += 1
        return self._number

    def name(self) -> str:
        """What the names of the optimizer's collectives begin with."""
        return f"DistributedOptimizer{self._take_number()}"

    def _has_steps(self) -> bool:
        if self._is_in_step is not None:
            return self._is_in_step
        is_last = (
            self._take_number() + 1 == (_counts.of(self._job)[self._process_set.key()])
        )
        return is_last and self._job.config.elastic_socket is None

    def take_part(self) -> str:
        """What the next collective does in the step; it may be none."""
        role = "continues" if self._is_in_step is not None else "begins"
        self._is_in_step = self._has_steps()
        return role if self._is_in_step else ""

    def end(self) -> None:
        """The next collective is one of another step."""
        self._is_in_step = None

    def give_up(self, error: BaseException) -> None:
        """The other ranks do not wait in it for what this one has not sent.

        Args:
            error: Why it will not; they hear of it, unless they know.
        """
        is_own = isinstance(error, (Exception, KeyboardInterrupt))
        if not is_own or isinstance(error, OF_OTHERS):
            return
        is_there = is_initialized() and self._job is current_job()
        if not is_there or not has_peers(self._process_set) or not self._has_steps():
            return
        communicator_id = self._process_set.communicator_id()
        _native.give_up_step(
            communicator_id,
            f"[RK310] {self.name()}: rank {self._job.rank} cannot take part: "
            f"{in_one_line(error)}",
            steps_ahead=0,
            unless_heard=False,
        )
        # The program hears of it by the error.
        _native.forget_given_up(communicator_id)
