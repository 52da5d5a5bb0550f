"""`horovod.run`: a function's results, by rank."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import ring_keras.horovod as horovod

SCRIPT = """
import os
import sys
import ring_keras.horovod as horovod

def work(factor, offset=0):
    if factor == 0:
        raise ValueError("nothing to do")
    import ring_keras.horovod.tensorflow as hvd
    hvd.init()
    total = hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
    interfaces = os.environ["RING_KERAS_INTERFACES"]
    return hvd.rank() * factor + offset, float(total), interfaces

if __name__ == "__main__":
    factor = int(sys.argv[1])
    options = {"num_proc": 2, "network_interfaces": ["eth0", "ib0"]}
    print(horovod.run(work, args=(factor,), kwargs={"offset": 1}, **options))
"""


def run_script(tmp_path, factor: int) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.run(
        [sys.executable, str(script), str(factor)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_results_come_back_by_rank(tmp_path):
    ended = run_script(tmp_path, 10)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[(1, 1.0, 'eth0,ib0'), (11, 1.0, 'eth0,ib0')]\n"


def test_a_failing_rank_raises(tmp_path):
    ended = run_script(tmp_path, 0)

    assert ended.returncode == 1
    assert "ValueError: nothing to do" in ended.stderr
    assert "RuntimeError: horovod.run() of <function work" in ended.stderr


@pytest.mark.parametrize(
    "options", [{"min_np": 1}, {"use_mpi": True}, {"host_discovery_script": "hosts"}]
)
def test_what_is_not_there_is_refused(options):
    (name,) = options
    with pytest.raises(NotImplementedError, match=f"{name}=None"):
        horovod.run(print, **options)
