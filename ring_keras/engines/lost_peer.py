"""Whether a rank failed because another one did."""

from __future__ import annotations

import re
import sys

__all__ = ["lost_a_peer"]


def lost_a_peer(error: BaseException) -> bool:
    """Whether it says that another rank was lost, or failed in a call of Keras's.

    In TensorFlow's words or in ours.
    """
    if str(error).startswith("PeerLostError: "):
        return True  # From the core, where there is no TensorFlow.
    if "ring_keras.errors" not in sys.modules:
        return False
    from ring_keras.errors import PeerLostError, from_tensorflow

    ours = from_tensorflow(error)
    # The rank that has failed raises its own error.
    has_failed = re.search(r"cannot take part: its \w+\(\) raised", str(ours))
    return isinstance(ours, PeerLostError) or bool(has_failed)
