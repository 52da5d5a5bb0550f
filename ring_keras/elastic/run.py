"""A loop that begins again, from its last commit, when the ranks have changed."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from absl import logging

from ring_keras.elastic.no_launcher import warn_of_no_launcher
from ring_keras.elastic.state import HostsUpdatedInterrupt, State
from ring_keras.errors import CommunicationError, from_tensorflow
from ring_keras.lifecycle.elastic_launcher import is_elastic
from ring_keras.lifecycle.membership import init, shutdown

__all__ = ["run"]

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes `func` continue when ranks are lost or join.

    `func` gets a state that is the same on all ranks. When a rank is lost, all others
    return to the last commit, form a new generation, and call `func` again. New ranks
    join after a commit. It needs `ringrun --min-np`. Without that, exceptions of `func`
    are raised as they are.

    Examples:
        >>> state = ring.elastic.ObjectState(step=0)
        >>> @ring.elastic.run
        ... def train(state):
        ...     while state.step < 3:
        ...         total = ring.allreduce(tf.ones(2), op=ring.Sum)
        ...         state.step += 1
        ...         state.commit()
        ...     return state.step
        >>> train(state)
        3

    Args:
        func: A function whose first argument is a `State`. It begins at the position in
            that state. Make `tf.function`s inside it, because those that were traced
            for other ranks are refused.

    Returns:
        A function with the same arguments and the same result. `ring.init()` must have
        run before it is called.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _Result:
        if not is_elastic():
            warn_of_no_launcher("elastic.run")
        skip_sync = reset_is_due = False
        while True:
            try:
                if reset_is_due:
                    state.on_reset()
                    reset_is_due = False
                if not skip_sync or state._must_sync():
                    state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                reason = "others wait to join"
            except Exception as error:
                ours = from_tensorflow(error)
                if not isinstance(ours, CommunicationError) or not is_elastic():
                    raise
                logging.info("elastic: %s", ours)
                state.restore()
                skip_sync = False
                reason = "goes on without a rank that was lost"
            shutdown(reason)
            init()  # What this raises ends the job.
            reset_is_due = True

    return wrapper
