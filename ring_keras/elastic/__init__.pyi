from .object_state import ObjectState as ObjectState
from .run import run as run
from .state import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from .state import State as State
from .variables_state import KerasState as KerasState
from .variables_state import TensorFlowState as TensorFlowState
