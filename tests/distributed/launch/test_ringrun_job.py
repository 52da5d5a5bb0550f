"""ringrun and the engine: who is blamed when ranks are in a job."""

import re

import pytest

# Errors are the core's own: to raise ours, TensorFlow would be imported.
JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None
_native.init(**Config.from_environment().init_options())
note(f"pid{rank}", os.getpid())
"""
# No rank can finish this one without the others.
WAIT = """
_native.allreduce(np.ones(3, np.float32), name="gradient")
"""


def test_ranks_find_each_other(ringrun):
    script = JOIN + (
        "print(_native.allreduce(np.full(2, rank + 1, np.float32), name='x'))\n"
        "_native.shutdown('done')\n"
    )

    for options in ([], ["--transport", "tcp"]):
        finished = ringrun.run(script, *options, size=3)
        assert finished.returncode == 0
        assert sorted(finished.stdout.decode().splitlines()) == [
            f"[{rank}] [6. 6.]" for rank in range(3)
        ]


def test_a_killed_rank_is_named_by_the_others_and_by_ringrun(ringrun):
    script = f"{JOIN}if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n{WAIT}"

    finished = ringrun.run(script, "--raw", size=3)

    assert finished.returncode == 137
    (pid,) = ringrun.pids("pid1")
    assert re.search(
        rf"rank 1 \(host \S+, pid {pid}\) was killed by SIGKILL after", finished.verdict
    )
    for rank in (0, 2):
        assert re.search(
            rf"^\[{rank}\] .*PeerLostError: .*rank 1 \(host \S+, pid {pid}\)",
            finished.stderr.decode(),
            re.MULTILINE,
        )


def test_a_rank_that_raises_is_blamed_though_others_exit_before_it(ringrun):
    script = (
        JOIN
        + f"""
if rank == 1:
    _native.shutdown("ValueError: no such file")
    wait_for("other_has_ended")
    sys.exit(9)
try:
    {WAIT.strip()}
finally:
    note("other_has_ended")
"""
    )

    finished = ringrun.run(script, size=2)

    assert finished.returncode == 9
    assert "rank 1 " in finished.verdict
    assert b"ValueError: no such file" in finished.stderr


@pytest.mark.slow
def test_a_stopped_rank_is_blamed_for_its_silence(ringrun):
    script = JOIN + (f"if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n{WAIT}")

    finished = ringrun.run(
        script,
        "--grace-period",
        "0.5",
        size=2,
        env={"RING_KERAS_HEARTBEAT_TIMEOUT_S": "2"},
    )

    assert finished.returncode == 137
    assert re.search(r"rank 1 \(.*\) has been silent for 2 s", finished.verdict)
