"""Loops that go on when ranks are lost or come: see docs/elastic.md."""

from ring_keras.elastic.object_state import ObjectState
from ring_keras.elastic.run import run
from ring_keras.elastic.state import HostsUpdatedInterrupt, State
from ring_keras.elastic.variables_state import KerasState, TensorFlowState

__all__ = [
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowState",
    "run",
]
