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
    """Makes `func` go on when ranks are lost, or come.

    It is called with a state that is the same on all ranks. When a rank is lost, all
    others go back to what was committed last, meet anew, and call it again; when
    others wait to join, they do so after a commit. Under `ringrun --min-np`; without
    that, what `func` raises is raised.

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
        func: Takes a `State` first; begins where that says. `tf.function`s are to
            be made inside, as those made for other ranks are refused.

    Returns:
        A function of the same arguments, and the same result. `ring.init()` must have
        run.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _Result:
        if not is_elastic():
            warn_of_no_launcher("elastic.run")
        skip_sync = False
        while True:
            try:
                if not skip_sync:
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
            init()
            state.on_reset()

    return wrapper
