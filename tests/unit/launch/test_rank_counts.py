"""How many ranks there are, said as by ringrun, torchrun and accelerate."""

from __future__ import annotations

import sys

import pytest

from ring_keras.launch.cli import main
from ring_keras.launch.control_group import usable_cores


def ranks_of(capsys, options: str) -> int:
    """How many ranks a job of these options would have."""
    assert main([*options.split(), "--dry-run", sys.executable]) == 0
    return len(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    "options",
    [
        "-np 3",
        "-np3",
        "-np=3",
        "-n3",
        "--np 3",
        "--num-procs 3",
        "--num_processes 3",
        "--num_processes=3 --num_machines 1 --machine_rank 0",
        "--nproc-per-node 3",
        "--nproc_per_node=3",
        "--standalone --nproc-per-node=3",
        "--nnodes=1 --nproc-per-node=3",
        "--nnodes 1 --node_rank 0 --nproc_per_node 3",
        "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=3",
        "--rdzv_id 7 --rdzv_backend c10d --rdzv_endpoint a:1 --nproc_per_node 3",
        "--rdzv-id 7 -np 3",
    ],
)
def test_one_host_in_any_launchers_words(capsys, options: str) -> None:
    assert ranks_of(capsys, options) == 3


@pytest.mark.parametrize("option", ["-np", "--nproc-per-node", "--num_processes"])
def test_auto_is_a_rank_for_each_core_where_there_is_no_gpu(
    capfd, monkeypatch, option: str
) -> None:
    monkeypatch.setenv("RING_KERAS_DEVICE", "cpu")
    assert main([option, "auto", "--dry-run", sys.executable]) == 0
    shown = capfd.readouterr()
    assert len(shown.out.splitlines()) == usable_cores()
    assert "one for each core of this host" in shown.err


def test_auto_is_a_rank_for_each_slot_where_hosts_say_it(capsys) -> None:
    assert ranks_of(capsys, "-np auto -H localhost:3") == 3


def test_one_host_is_not_a_schedulers_others(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a.invalid,b.invalid")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    assert ranks_of(capsys, "--standalone --nproc-per-node 2") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-np 0", "must be an integer of at least 1, or auto, not 0"),
        ("-np0", "must be an integer of at least 1, or auto, not 0"),
        ("-np 2 --nproc-per-node 2", "-np and --nproc-per-node say the same"),
        ("-np auto --nproc-per-node 2", "-np and --nproc-per-node say the same"),
        ("-H a:2 --nproc-per-node 2", "-H names hosts, and --nproc-per-node"),
        ("-H a:2 --standalone", "-H names hosts, and --nproc-per-node"),
        ("--nnodes 2 --nproc-per-node 2", "also need --node-rank, --rendezvous"),
        ("--nnodes 2 --standalone --nproc-per-node 2", "--standalone is for one host"),
        ("--nnodes 1 --nproc-per-node 2 --rendezvous a:1", "also need --node-rank"),
        ("--num_machines 2 --num_processes 4", "also need --node-rank"),
        (
            "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint a:1",
            "also need --node-rank, --secret-file\n",
        ),
        ("--nnodes 2 --rdzv-id 7", "the secret in --secret-file does here"),
        ("--nnodes 2 --rendezvous a:1 --rdzv_endpoint a:1", "say the same"),
        ("-H a:2 --rdzv-endpoint a:1", "-H names hosts, and --nproc-per-node"),
        ("-np 2 --rdzv-backend etcd", "must be c10d or static, not etcd: hosts meet"),
        (
            "-np auto --nnodes 2 --node-rank 0 --nproc-per-node 1 --rendezvous a:1 "
            "--secret-file x",
            "-np is not for hosts without ssh",
        ),
        ("--standalone", "how many ranks? For two on this host: ringrun -np 2"),
        ("-np 2 --out-dir x", "--out-dir; did you mean --output-dir?"),
        ("-np 2 --grace_period 3", "--grace_period; did you mean --grace-period?"),
        ("-np 2 --max-restarts 3", "unrecognized arguments: --max-restarts\n"),
        ("-np 2 --bind cores", "--bind; did you mean --bind-to?"),
        (
            "-np 2 --bind-to core",
            "--bind-to: must be none or cores, not core; did you mean cores?",
        ),
        ("-np 2 --bind-to x", "--bind-to: must be none or cores, not x\n"),
    ],
)
def test_what_cannot_be_meant_is_answered(capsys, options: str, message: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*options.split(), "true"])
    assert message in capsys.readouterr().err
