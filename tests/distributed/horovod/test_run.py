"""`horovod.run`: a function's results, by rank."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

import ring_keras.horovod as horovod

SCRIPT = """
import os
import ring_keras.horovod as horovod

def work(factor, offset=0):
    if factor == 0:
        raise ValueError("nothing to do")
    import ring_keras.horovod.tensorflow as hvd
    hvd.init()
    total = hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
    interfaces = os.environ["RING_KERAS_INTERFACES"]
    return hvd.rank() * factor + offset, float(total), interfaces

options = {"num_proc": 2, "network_interfaces": ["eth0", "ib0"]}
# Horovod takes it where all ranks are here, too.
options["ssh_port"] = 2222
print(horovod.run(work, args=(10,), kwargs={"offset": 1}, **options), flush=True)
horovod.run(work, args=(0,), **options)
"""


@pytest.mark.slow
def test_results_come_back_by_rank_and_a_rank_that_fails_raises(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ended.stdout == "[(1, 1.0, 'eth0,ib0'), (11, 1.0, 'eth0,ib0')]\n"
    assert ended.returncode == 1, ended.stderr
    assert "ValueError: nothing to do" in ended.stderr
    assert re.search(r"RankFailedError: rank [01] \(", ended.stderr)


@pytest.mark.parametrize(
    "options", [{"min_np": 1}, {"use_mpi": True}, {"host_discovery_script": "hosts"}]
)
def test_what_is_not_there_is_refused(options):
    (name,) = options
    with pytest.raises(NotImplementedError, match=f"{name}=None"):
        horovod.run(print, **options)
