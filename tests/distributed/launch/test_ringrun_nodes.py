"""The same ringrun command on every host, without ssh; here all are this one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.elastic_ranks import GO_ON_UNTIL_2, LEAVE_IN_TURN, PROLOGUE, ended
from support.processes import is_alive, wait_until, wait_until_dead
from support.ringrun import Finished, Ringrun
from support.variants import variants

JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
note(f"ready{rank}", os.getpid())
"""
TRAIN = """
while True:
    _native.allreduce(np.ones(30000, np.float32), name="gradient")
"""


class Nodes:
    """Starts the nodes of one job."""

    def __init__(self, ringrun: Ringrun, directory: Path) -> None:
        self.ringrun = ringrun
        self.secret = directory / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(secrets.token_hex(32))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def start(
        self,
        script: str,
        node: int,
        *options: str,
        count: int = 2,
        ranks: int = 1,
        secret: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        return self.ringrun.start(
            script,
            *("--nnodes", str(count), "--node-rank", str(node)),
            *("--nproc-per-node", str(ranks)),
            *("--rendezvous", f"127.0.0.1:{self.port}"),
            *("--secret-file", str(secret or self.secret)),
            *options,
            size=None,
        )

    def run(self, script: str, ranks: Sequence[int], *options: str) -> list[Finished]:
        """Runs a job of nodes with so many ranks each."""
        started = [
            self.start(script, node, *options, count=len(ranks), ranks=count)
            for node, count in enumerate(ranks)
        ]
        return [self.ringrun.finish(process) for process in started]


@pytest.fixture
def nodes(ringrun: Ringrun, tmp_path: Path) -> Iterator[Nodes]:
    yield Nodes(ringrun, tmp_path)


def test_nodes_of_different_size_are_one_job(nodes: Nodes) -> None:
    script = JOIN + (
        "print(os.environ['HOROVOD_LOCAL_RANK'], os.environ['HOROVOD_CROSS_RANK'],"
        "_native.allreduce(np.full(2, rank + 1, np.float32), name='x'))\n"
        "_native.shutdown('done')\n"
    )

    first, second = nodes.run(script, [2, 1])

    assert (first.returncode, second.returncode) == (0, 0), first.stderr.decode()
    assert sorted(first.stdout.decode().splitlines()) == [
        "[0] 0 0 [6. 6.]",
        "[1] 1 0 [6. 6.]",
    ]
    assert second.stdout == b"[2] 0 1 [6. 6.]\n"
    assert first.stderr == second.stderr == b""


def test_nodes_have_one_order_of_sets(nodes: Nodes) -> None:
    printed = nodes.run("print(hash('a text'))", [1, 1])

    assert len({finished.stdout[4:] for finished in printed}) == 1


def test_nodes_that_encrypt_are_one_job(nodes: Nodes) -> None:
    script = JOIN + (
        "print(_native.allreduce(np.full(2, rank + 1, np.float32), name='x'))\n"
        "_native.shutdown('done')\n"
    )

    found = nodes.run(script, [1, 1], "--encrypt")

    for rank, finished in enumerate(found):
        assert finished.returncode == 0, finished.stderr.decode()
        assert finished.stdout == f"[{rank}] [3. 3.]\n".encode()
        assert finished.stderr == b""


@pytest.mark.parametrize("encrypting", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nodes_must_agree_on_encryption(nodes: Nodes, encrypting: int) -> None:
    options = [("--encrypt",) if node == encrypting else () for node in (0, 1)]
    started = [nodes.start("", node, *options[node]) for node in (0, 1)]

    for node, process in enumerate(started):
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 1
        text = finished.stderr.decode()
        other = r"the node at 127\.0\.0\.1" if node == 0 else "this node"
        pair = ("node 0", other) if encrypting == 0 else (other, "node 0")
        said = f"{pair[0]} encrypts, and {pair[1]} does not. Give ringrun --encrypt"
        assert re.search(said, text), text


@pytest.mark.parametrize("failing", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_every_node_ends_with_the_code_of_the_first_failure(
    nodes: Nodes, failing: int
) -> None:
    script = JOIN + f"if rank == {failing}: sys.exit(5)\n" + TRAIN

    found = nodes.run(script, [1, 1, 1])

    who = rf"rank {failing} \(host \S+, pid \d+\) exited with code 5 after"
    for finished in found:
        assert finished.returncode == 5
        assert re.search(who, finished.verdict)


def test_the_later_node_waits_for_node_0(nodes: Nodes) -> None:
    late = nodes.start("print(rank)", 1)
    wait_until(lambda: is_alive(late.pid), "it is there")
    first = nodes.start("print(rank)", 0)

    assert nodes.ringrun.finish(first).stdout == b"[0] 0\n"
    assert nodes.ringrun.finish(late).stdout == b"[1] 1\n"


def test_a_node_that_does_not_come_is_named(nodes: Nodes) -> None:
    options = ("--start-timeout", "2")
    started = [nodes.start("", node, *options, count=3) for node in (0, 1)]

    for process in started:
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 1
        assert "of 3 nodes, node 2 did not come to 127.0.0.1:" in finished.verdict
    alone = nodes.ringrun.finish(nodes.start("", 1, *options))
    assert alone.returncode == 1
    assert "no node 0 at 127.0.0.1:" in alone.verdict


def test_two_nodes_with_one_number_are_an_error_of_all(nodes: Nodes) -> None:
    started = [nodes.start("", node, count=3) for node in (0, 1, 1)]

    for process in started:
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 1
        assert "two nodes have --node-rank 1: on hosts " in finished.verdict


def test_nodes_must_agree_on_their_count(nodes: Nodes) -> None:
    started = [nodes.start("", 0, count=3), nodes.start("", 1, count=2)]

    for process in started:
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 1
        assert "started with --nnodes 2, and node 0 with --nnodes 3" in finished.verdict


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("--min-np 1", "", "no --min-np, and node 0 with --min-np 1"),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                ("", "--min-np 1", "--min-np 1, and node 0 with none"),
                (
                    "--min-np 1 --max-np 2",
                    "--min-np 1 --max-np 3",
                    "--min-np 1 --max-np 3, and node 0 with --min-np 1 --max-np 2",
                ),
                (
                    "--min-np 1 --elastic-timeout 600",
                    "--min-np 1 --elastic-timeout 30",
                    "--min-np 1 --elastic-timeout 30, and node 0 with --min-np 1",
                ),
                (
                    "--min-np 1 --reset-limit 0",
                    "--min-np 1 --reset-limit 7",
                    "--min-np 1 --reset-limit 7, and node 0 with --min-np 1 "
                    "--reset-limit 0",
                ),
            )
        ),
        (
            "--min-np 1 --max-np 2 --blacklist-cooldown-range 1 60",
            "--min-np 1 --max-np 2 --blacklist-cooldown-range 0 5.5",
            "--min-np 1 --max-np 2 --blacklist-cooldown-range 0 5.5, and node 0 with "
            "--min-np 1 --max-np 2",
        ),
    ],
)
def test_nodes_must_agree_on_how_ranks_may_change(
    nodes: Nodes, first: str, second: str, said: str
) -> None:
    options = [first.split(), second.split()]
    started = [nodes.start("", node, *options[node]) for node in (0, 1)]

    for process in started:
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 1
        who = r"node 1 \(host \S+\) was started with "
        expected = f"{who}{re.escape(said)}\\. Give the same on every node"
        assert re.search(expected, finished.verdict), finished.stderr.decode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--min-np 3", "--min-np must be from 1 to 2, the ranks of all nodes, not 3"),
        (
            "--min-np 1 --max-np 1",
            "--max-np must be at least 2, the ranks of all nodes",
        ),
    ],
)
def test_nodes_must_have_the_ranks_that_are_asked_for(
    nodes: Nodes, options: str, message: str
) -> None:
    found = nodes.run("", [1, 1], *options.split())

    assert [finished.returncode for finished in found] == [1, 1]
    assert all(message in finished.verdict for finished in found)


def test_ranks_of_any_node_may_be_lost(nodes: Nodes) -> None:
    ringrun, script = nodes.ringrun, PROLOGUE + GO_ON_UNTIL_2
    started = [nodes.start(script, n, "--min-np", "2", ranks=2) for n in (0, 1)]
    pids = ringrun.pids("pid.0", "pid.1", "pid.2", "pid.3")

    os.kill(pids[0], signal.SIGKILL)
    os.kill(pids[3], signal.SIGKILL)

    for process in started:
        finished = ringrun.finish(process)
        assert finished.returncode == 0, finished.stderr.decode()
    assert ended(ringrun, 1, 2) == {1: (pids[1], [1, 2]), 2: (pids[2], [1, 2])}


def test_a_job_outlives_a_node(nodes: Nodes) -> None:
    ringrun, script = nodes.ringrun, PROLOGUE + GO_ON_UNTIL_2
    started = [nodes.start(script, n, "--min-np", "2", count=3) for n in range(3)]
    pids = ringrun.pids("pid.0", "pid.1", "pid.2")

    started[1].kill()

    first, lost, last = (ringrun.finish(process) for process in started)
    assert (first.returncode, last.returncode) == (0, 0), first.stderr.decode()
    assert lost.returncode == -signal.SIGKILL
    assert re.search(
        r"with its host: node 1 \(host \S+\) was lost", first.stderr.decode()
    )
    assert ended(ringrun, 0, 2) == {0: (pids[0], [0, 2]), 2: (pids[2], [0, 2])}
    wait_until_dead([pids[1]])


def test_a_node_that_was_lost_is_not_taken_back(nodes: Nodes) -> None:
    ringrun = nodes.ringrun
    script = PROLOGUE + (
        "join()\n"
        "note(f'pid.{rank}', os.getpid())\n"
        "meet_until_lost()\n"
        "join()\n"
        "note(f'again.{rank}')\n"
        "wait_for('refused')\n"
        "end()\n"
    )
    started = [nodes.start(script, n, "--min-np", "1") for n in (0, 1)]
    ringrun.pids("pid.0", "pid.1")
    started[1].kill()
    ringrun.noted("again.0")

    late = ringrun.finish(nodes.start(script, 1, "--min-np", "1"))

    assert late.returncode == 1
    assert re.search(
        r"node 1 \(host \S+\) was lost, and a job that runs takes none back",
        late.verdict,
    )
    (ringrun.directory / "refused").touch()
    assert ringrun.finish(started[0]).returncode == 0


def test_nodes_that_are_too_few_end_with_one_verdict(nodes: Nodes) -> None:
    script = PROLOGUE + GO_ON_UNTIL_2.replace("!= 2", "!= 1")
    options = ("--min-np", "3")
    started = [nodes.start(script, n, *options, count=3) for n in range(3)]
    pids = nodes.ringrun.pids("pid.0", "pid.1", "pid.2")

    os.kill(pids[2], signal.SIGKILL)

    for process in started:
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 75, finished.stderr.decode()
        assert "fewer than --min-np 3 ranks are left (2)" in finished.verdict


@pytest.mark.parametrize(("least", "code"), [("1", 3), ("2", 75)])
def test_the_first_that_left_is_the_cause_on_all_nodes(
    nodes: Nodes, least: str, code: int
) -> None:
    found = nodes.run(PROLOGUE + LEAVE_IN_TURN, [1, 1], "--min-np", least)

    for finished in found:
        assert finished.returncode == code, finished.stderr.decode()
        assert re.search(r"rank 1\b.* exited with code 3", finished.verdict)


@pytest.mark.parametrize("node", variants([1], [0]))
def test_a_nodes_only_rank_is_replaced_there(nodes: Nodes, node: int) -> None:
    script = PROLOGUE + (
        "_, members = join()\n"
        "print('process', rank)\n"  # Before it may be killed.
        "note(f'pid.{rank}', os.getpid())\n"
        "if rank < 2:\n"
        "    meet_until_lost()\n"
        "    while join()[1] == 1:\n"
        "        launcher_of(config).note_joined()\n"
        "        wait_until(launcher_of(config).others_wait, 'a replacement')\n"
        "        _native.shutdown('others wait')\n"
        "end()\n"
    )
    options = ("--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0")
    started = [nodes.start(script, number, *options) for number in (0, 1)]
    pids = nodes.ringrun.pids("pid.0", "pid.1")

    os.kill(pids[node], signal.SIGKILL)

    found = [nodes.ringrun.finish(process) for process in started]
    for finished in found:
        assert finished.returncode == 0, finished.stderr.decode()
    assert ended(nodes.ringrun, 1 - node)[1 - node] == (pids[1 - node], [1 - node, 2])
    printed = found[node].stdout.decode()
    assert printed == f"[{node}] process {node}\n[2] process 2\n"


def test_another_secret_does_not_get_in(nodes: Nodes, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text(secrets.token_hex(32))
    first = nodes.start("print(rank)", 0)
    stranger = nodes.ringrun.finish(nodes.start("", 1, secret=other))

    assert stranger.returncode == 1
    assert b"does not let this node in" in stranger.stderr
    second = nodes.ringrun.finish(nodes.start("print(rank)", 1))
    finished = nodes.ringrun.finish(first)
    assert (finished.returncode, second.returncode) == (0, 0)
    assert b"dropped a connection from 127.0.0.1: it has not" in finished.stderr


def test_whoever_sends_nonsense_is_dropped(nodes: Nodes) -> None:
    first = nodes.start("print(rank)", 0)
    address = ("127.0.0.1", nodes.port)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(address, 1):
            return True
        return False

    wait_until(answers, "node 0 listens")
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x08\x00\1" + b"x" * 2048,  # Longer than an untrusted peer may send.
        b"\x00\x00\x00\x11\1" + b'{"type":"hello"}',
        b"\x00\x00\x00\x07\2\0\0\0\0\0x",
    ):
        with socket.create_connection(address, 10) as peer:
            peer.settimeout(30)
            peer.sendall(nonsense)
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(4096):
                    pass
    second = nodes.ringrun.finish(nodes.start("print(rank)", 1))
    assert nodes.ringrun.finish(first).stdout == b"[0] 0\n"
    assert second.stdout == b"[1] 1\n"


@pytest.mark.parametrize("killed", [0, 1])
def test_a_node_is_killed(nodes: Nodes, killed: int) -> None:
    started = [nodes.start(JOIN + TRAIN, node) for node in (0, 1)]
    ranks = nodes.ringrun.pids("ready0", "ready1")

    os.kill(started[killed].pid, signal.SIGKILL)

    finished = nodes.ringrun.finish(started[1 - killed])
    assert finished.returncode == 1
    message = (
        "node 1 (host " if killed else f"node 0 at 127.0.0.1:{nodes.port} was lost"
    )
    assert message in finished.stderr.decode()
    assert "was lost: the connection was closed" in finished.stderr.decode()
    wait_until_dead(ranks)


@pytest.mark.parametrize(("asked", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_to_any_node_ends_all(
    nodes: Nodes, asked: int, number: signal.Signals
) -> None:
    script = JOIN + (
        "def stop(number, frame):\n"
        "    print('got', signal.Signals(number).name)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "note(f'armed{rank}')\n"
        "wait_to_be_ended()\n"
    )
    started = [nodes.start(script, node) for node in (0, 1)]
    for node in (0, 1):
        nodes.ringrun.noted(f"armed{node}")

    started[asked].send_signal(number)

    for node, process in enumerate(started):
        finished = nodes.ringrun.finish(process)
        assert finished.returncode == 128 + number
        printed = finished.stdout.decode()
        assert printed == f"[{node}] got {number.name}\n", finished


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nnodes 2", "also need --node-rank, --nproc-per-node, --rendezvous, --sec"),
        ("{all} --node-rank 2", "--node-rank must be from 0 to 1 with --nnodes 2"),
        ("{all} --nproc-per-node 0", "must be an integer of at least 1"),
        ("{all} --rendezvous here", "--rendezvous must be HOST:PORT, not here"),
        ("{all} --secret-file /nowhere", "--secret-file=/nowhere: cannot read it"),
        ("{all} -np 2", "-np is not for hosts without ssh"),
        ("{all} -H a:2", "-H is not for hosts without ssh"),
        ("{all} -p 2222", "-p is for hosts that are reached through ssh"),
        ("{all} --ssh-args=-v", "--ssh-args is for hosts that are reached"),
        ("{all} --launcher-address ::1", "--launcher-address is for hosts that"),
        ("{all} --max-np 2", "--max-np with --nnodes also needs --min-np"),
        ("{all} --min-np 0", "--min-np must be at least 1, not 0"),
        (
            "{all} --min-np 1 --max-np 2 --host-discovery-script hosts.sh",
            "--host-discovery-script names hosts that come and go, and --nnodes counts",
        ),
        ("{all} --rendezvous 192.0.2.99:4711", "192.0.2.99:4711: "),
        ("{all} --rendezvous 0.0.0.0:4711", "give one address of node 0's host"),
    ],
)
def test_bad_options_are_refused(nodes: Nodes, options: str, message: str) -> None:
    every = (
        "--nnodes 2 --node-rank 0 --nproc-per-node 1 --rendezvous 127.0.0.1:4711 "
        f"--secret-file {nodes.secret}"
    )
    arguments = options.format(all=every).split()
    finished = nodes.ringrun.finish(nodes.ringrun.start_raw(*arguments, "true"))
    assert finished.returncode in (1, 2)
    assert message in finished.stderr.decode()
    assert b"Traceback" not in finished.stderr


def test_a_secret_that_others_can_read_is_refused(nodes: Nodes) -> None:
    nodes.secret.chmod(0o644)
    finished = nodes.ringrun.finish(nodes.start("", 0))
    assert finished.returncode == 2
    assert "--secret-file=" in finished.stderr.decode()
    assert "mode 0600" in finished.stderr.decode()
