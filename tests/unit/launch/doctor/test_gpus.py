"""GPUs and who reaches whose memory, by the stand-in for NVIDIA's driver."""

from __future__ import annotations

from support.doctor import findings_of
from support.stand_in import stand_in_environment


def test_all_reach_each_other() -> None:
    found = findings_of("gpus", env=stand_in_environment())

    assert found["GPUs"]["state"] == "ok"
    assert found["GPUs"]["found"] == "4: Stand-in"
    assert found["GPU peer access"]["state"] == "ok"
    assert found["CUDA driver"]["state"] == "ok"


def test_some_do_not() -> None:
    env = stand_in_environment(STAND_IN_NO_PEER="0-3,3-0")

    found = findings_of("gpus", env=env)["GPU peer access"]

    assert found["state"] == "warning"
    assert "no way from GPU 0 to 3, 3 to 0" in found["found"]
    assert found["measured"] == {"pairs_without": 2}
    assert found["fix"] == "nvidia-smi topo -p2p r"


def test_more_ranks_than_gpus() -> None:
    env = stand_in_environment(CUDA_VISIBLE_DEVICES="1")

    found = findings_of("gpus", env=env)
    on_cpu = findings_of("gpus", env=env | {"RING_KERAS_DEVICE": "cpu"})

    assert found["GPUs"]["state"] == "failure"
    assert found["GPUs"]["fix"] == "ringrun -np 1 ..."
    assert found["GPU peer access"]["state"] == "not applicable"
    assert on_cpu["GPUs"]["state"] == "ok"


def test_nccl_in_dev_shm_needs_more() -> None:
    with_gpus = findings_of("shm_mount", env=stand_in_environment())["/dev/shm"]
    without = findings_of("shm_mount")["/dev/shm"]

    needed = with_gpus["measured"]["needed_bytes"], without["measured"]["needed_bytes"]
    assert needed == (1 << 30, 2 << 20)
