"""Scripts of ranks that come and go: the engine and ringrun alone, no TensorFlow."""

from __future__ import annotations

import re

from support.ringrun import Ringrun

# `rank` is the process's number here, which it keeps.
PROLOGUE = """
import numpy as np
from ring_keras import _native
sys.modules["tensorflow"] = None  # Errors are RuntimeErrors then.
from ring_keras.config import Config
from ring_keras.lifecycle.elastic_launcher import launcher_of

config = Config.from_environment()

def join():
    while True:
        place = launcher_of(config).join()
        try:
            _native.init(**(config.init_options() | place))
            return _native.topology()[:2]
        except RuntimeError as error:
            assert str(error).startswith("PeerLostError"), error

def meet():
    return _native.allgather(np.array([[rank]]), "meet")[:, 0].tolist()

def meet_until_lost():
    try:
        while True:
            meet()
            time.sleep(0.01)
    except RuntimeError as error:
        assert str(error).startswith("PeerLostError"), error
    _native.shutdown("it lost a rank")

def end():
    numbers = meet()
    _native.shutdown("the test ended")
    note(f"end.{rank}", f"{os.getpid()} {numbers}")
"""

GO_ON_UNTIL_2 = """
_, members = join()
note(f"pid.{rank}", os.getpid())
while members != 2:
    meet_until_lost()
    _, members = join()
end()
"""

GO_ON_UNTIL_ENOUGH = """
note(f"pid.{rank}", os.getpid())
join()
while True:
    waits = launcher_of(config).others_wait()
    own = [rank, (here / "enough").exists(), waits]
    try:
        facts = _native.allgather(np.array([own], np.int64), "facts")
    except RuntimeError as error:
        assert str(error).startswith("PeerLostError"), error
        _native.shutdown("it lost a rank")
        join()
        continue
    note(f"met.{rank}", " ".join(map(str, facts[:, 0])))
    if facts[:, 1].any():
        break
    if facts[:, 2].any():
        _native.shutdown("others wait")
        join()
    time.sleep(0.01)
end()
"""

# Rank 1 is the cause, and ends after rank 0, which has noticed that it has left.
LEAVE_IN_TURN = """
join()
note(f"pid.{rank}", os.getpid())
if rank == 1:
    wait_for("pid.0")
    _native.shutdown("it is the cause")
    wait_for_the_end_of("pid.0")
    sys.exit(3)
try:
    while True:
        meet()
except RuntimeError as error:
    assert str(error).startswith("PeerLostError"), error
_native.shutdown("it has lost rank 1")
sys.exit(7)
"""


def ended(ringrun: Ringrun, *numbers: int) -> dict[int, tuple[int, list[int]]]:
    """Which process each became, and with whom it met last."""
    found = {}
    for number in numbers:
        pid, _, others = ringrun.noted(f"end.{number}").partition(" ")
        found[number] = int(pid), [int(other) for other in re.findall(r"\d+", others)]
    return found
