"""Elastic training: what can be caught today, and what is not there yet."""

from collections.abc import Callable
from typing import Any, NoReturn

from ring_keras.errors import CommunicationError
from ring_keras.horovod._absent import absent

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
    "A job keeps the ranks it began with, for now: save with "
    "keras.callbacks.BackupAndRestore, which goes on where it stopped when the "
    "script is started again."
)


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name.
    """Never raised: hosts neither come nor go while a job runs."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


def run(func: Callable[..., Any]) -> NoReturn:
    """Not there yet."""
    absent("elastic.run()", _INSTEAD)


class TensorFlowState:
    """Not there yet."""

    def __init__(
        self, variables: Any = None, session: Any = None, **kwargs: Any
    ) -> None:
        absent("elastic.TensorFlowState", _INSTEAD)


class TensorFlowKerasState:
    """Not there yet."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        absent("elastic.TensorFlowKerasState", _INSTEAD)


class KerasState:
    """Not there yet."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        absent("elastic.KerasState", _INSTEAD)


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
