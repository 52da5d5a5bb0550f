"""Elastic training: the states, what is raised, and what is not there yet."""

from typing import Any

from ring_keras import elastic
from ring_keras.elastic import HostsUpdatedInterrupt, run
from ring_keras.errors import CommunicationError
from ring_keras.horovod._absent import absent, refuse_unless_default

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

HorovodInternalError = CommunicationError
"""What a collective raises when a rank has died, or stays silent."""

_INSTEAD = (
    "In a loop, commit the state there. A fit goes on without a state, with "
    "ring_keras.callbacks.Elastic."
)


class TensorFlowState(elastic.TensorFlowState):
    """TensorFlow's variables, and plain values beside them.

    Args:
        variables: What to keep; must be given.
        session: None: there are no sessions in an elastic job.
        **kwargs: The values, by name.
    """

    def __init__(
        self, variables: Any = None, session: Any = None, **kwargs: Any
    ) -> None:
        refuse_unless_default("session", session, None, "Use eager execution.")
        if variables is None:
            absent(
                "elastic.TensorFlowState() of all global variables",
                "Without a graph there are none: give its `variables`.",
            )
        super().__init__(variables, **kwargs)


class KerasState(elastic.KerasState):
    """A model's and its optimizer's variables, and plain values beside them.

    Args:
        model: A model that is built.
        optimizer: Defaults to the one that it was compiled with.
        **kwargs: The values, by name.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class TensorFlowKerasState(KerasState):
    """`KerasState`.

    Args:
        model: A model that is built.
        optimizer: Defaults to the one that it was compiled with.
        backend: Taken, as Horovod's is, and not needed.
        **kwargs: The values, by name.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback:
    """Not there yet."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        absent("elastic.CommitStateCallback", _INSTEAD)


class UpdateBatchStateCallback:
    """Not there yet."""

    def __init__(self, state: Any) -> None:
        absent("elastic.UpdateBatchStateCallback", _INSTEAD)


class UpdateEpochStateCallback:
    """Not there yet."""

    def __init__(self, state: Any) -> None:
        absent("elastic.UpdateEpochStateCallback", _INSTEAD)
