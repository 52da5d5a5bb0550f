"""What real ranks raise has the code, and the text, that the page shows."""

import re

from support.error_codes import entries

SCRIPT = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # The core names the classes of its errors then.

def tell(what, call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        print(what, "|", str(error).replace("\\n", " "), flush=True)
    else:
        print(what, "| nothing", flush=True)

ones = np.ones(4, np.float32)
options = Config.from_environment().init_options()
tell("RK101", lambda: _native.allreduce(ones, name="early"))
_native.init(**options)
tell("RK104", lambda: _native.init(**options))
tell("RK302", lambda: _native.allreduce(np.ones(4 + rank, np.float32), name="shape"))
tell("RK303", lambda: _native.allreduce(ones.astype(f"f{4 + 4 * rank}"), name="dtype"))
tell("RK304", lambda: _native.allreduce(ones, op=["sum", "max"][rank], name="op"))
tell("RK305", lambda: _native.broadcast(ones, rank, "root"))
tell("RK301", lambda: (
    _native.broadcast(ones, 0, "kind") if rank else _native.allgather(ones, "kind")
))
integers = np.ones(4, np.int32)
tell("RK402" if rank else "RK310", lambda: _native.allreduce(
    integers if rank else ones, op="average", name="integers"
))
tell("RK401", lambda: _native.broadcast(ones, 7, "no such root"))
tell("RK406", lambda: _native.allreduce(ones, name="x", communicator_id=9))
tell("fine", lambda: _native.allreduce(ones, name="the job goes on"))
if rank == 0:
    _native.shutdown("its work is done")
else:
    tell("RK202", lambda: _native.allreduce(ones, name="alone"))
"""


def test_they_are_those_of_the_page(ringrun) -> None:
    finished = ringrun.run(SCRIPT)

    assert finished.returncode == 0, finished.stderr
    page = {entry.code: entry for entry in entries()}
    told = re.findall(
        r"^\[(\d)\] (\w+) \| (.*)$", finished.stdout.decode(), re.MULTILINE
    )
    assert len(told) == 11 + 12
    for rank, expected, text in told:
        if expected == "fine":
            assert text == "nothing"
            continue
        found = re.match(r"(?:\w+Error: )?\[(RK\d{3})\] ", text)
        assert found is not None and found[1] == expected, (rank, expected, text)
        assert page[expected].matches(text), (rank, text, page[expected].messages)
