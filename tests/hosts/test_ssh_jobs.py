"""Jobs on several hosts, which a real ssh reaches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import is_alive
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
_native.init(**Config.from_environment().init_options())
"""

# What a training does to weights, without TensorFlow's seconds. The sums are exact:
# hosts add up their own ranks first, so others would be rounded otherwise than on
# one host.
TRAIN = (
    JOIN
    + """
import hashlib, socket
data = np.random.default_rng(rank)
weights = np.zeros(5000, np.float32)
for step in range(20):
    for bucket in (slice(0, 3), slice(3, 900), slice(900, 5000)):
        gradient = data.integers(-99, 99, weights[bucket].shape).astype(np.float32)
        total = _native.allreduce(gradient, "sum", f"bucket{bucket.start}")
        weights[bucket] -= total / size
print(socket.gethostname(), _native.topology()[2:])
print("weights", hashlib.sha256(weights.tobytes()).hexdigest())
_native.shutdown("done")
"""
)


def on(hosts: SshHosts, *names: str) -> list[str]:
    return ["-H", ",".join(names), "--ssh-args", hosts.ssh_args]


def test_another_program_in_place_of_ssh(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    called = tmp_path / "called"
    shell = tmp_path / "shell"
    shell.write_text(
        f'#!/bin/sh\nshift\necho "$1" >> {called}\nexec ssh {hosts.ssh_args} "$@"\n'
    )
    shell.chmod(0o700)

    finished = ringrun.run(
        TRAIN, "-H", "node0:1,node1:1", "--remote-shell", f"{shell} -v", size=None
    )

    assert finished.returncode == 0, finished.stderr.decode()
    assert len(weights_in(finished.stdout)) == 1
    assert called.read_text() == "node1\n"
    hosts.wait_until_empty()


def weights_in(output: bytes) -> set[str]:
    return set(re.findall(r"\[\d\] weights (\w+)", output.decode()))


def test_two_hosts_train_as_one_does(ringrun: Ringrun, hosts: SshHosts) -> None:
    finished = ringrun.run(TRAIN, *on(hosts, "node0:2", "node1:2"), size=None)

    assert finished.returncode == 0, finished.stderr.decode()
    assert sorted(
        line for line in finished.stdout.decode().splitlines() if "weights" not in line
    ) == [
        "[0] node0 (0, 2, 0, 2)",
        "[1] node0 (1, 2, 0, 2)",
        "[2] node1 (0, 2, 1, 2)",
        "[3] node1 (1, 2, 1, 2)",
    ]
    alone = ringrun.run(TRAIN, size=4)
    assert len(weights_in(alone.stdout)) == 1
    assert weights_in(finished.stdout) == weights_in(alone.stdout)
    hosts.wait_until_empty()


@pytest.mark.parametrize("version", [4, 6])
def test_hosts_meet_and_connect_over_ipv4_or_ipv6(
    ringrun: Ringrun, hosts: SshHosts, version: int
) -> None:
    addresses = hosts.addresses if version == 4 else hosts.ipv6_addresses
    script = JOIN + (
        "print(os.environ['RING_KERAS_STORE_ADDRESS'].rpartition(':')[0])\n"
        "_native.allreduce(np.ones(90000, np.float32), name='x')\n"
        "links = Path(f'/proc/{os.getpid()}/net/tcp6').read_text()\n"
        "note(f'links{rank}', links.count(' 01 '))\n"
        "_native.barrier()\n"
        "_native.shutdown('done')\n"
    )
    options = [] if version == 4 else ["--launcher-address", addresses[0]]

    finished = ringrun.run(
        script, *on(hosts, "node0:1", "node1:1"), *options, size=None
    )

    host = addresses[0] if version == 4 else f"[{addresses[0]}]"
    assert sorted(finished.stdout.decode().splitlines()) == [
        f"[{rank}] {host}" for rank in (0, 1)
    ], finished.stderr.decode()
    # With its peer, and with the store: or one of them would be over IPv4.
    for rank in (0, 1):
        assert (int(ringrun.noted(f"links{rank}")) > 2) == (version == 6)


def test_a_launchers_address_that_no_host_reaches(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    options = [*on(hosts, "node1:1"), "--launcher-address", "127.0.0.1"]

    finished = ringrun.run('note("started")', *options, size=1)

    assert finished.returncode == 1
    assert (
        "no address of this host is reached by all: of 127.0.0.1, node1 ("
        f"{hosts.addresses[1]}, {hosts.ipv6_addresses[1]}) reaches none"
    ) in finished.verdict
    assert not (ringrun.directory / "started").exists()
    hosts.wait_until_empty()


def test_hosts_of_different_slots_from_a_file(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("node1 slots=1\nnode2:2  # ours\nnode0\n")
    script = """
    import socket
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = [os.environ[f"HOROVOD_{name}"] for name in names]
    print(socket.gethostname(), *numbers, os.environ["TF_NUM_INTRAOP_THREADS"])
    """
    options = ["--hostfile", str(tmp_path / "hosts"), "--ssh-args", hosts.ssh_args]

    finished = ringrun.run(script, *options, size=None)

    cores = len(os.sched_getaffinity(0))
    assert sorted(finished.stdout.decode().splitlines()) == [
        f"[0] node1 0 4 0 1 0 3 {cores}",
        f"[1] node2 1 4 0 2 1 3 {max(1, cores // 2)}",
        f"[2] node2 2 4 1 2 0 1 {max(1, cores // 2)}",
        f"[3] node0 3 4 0 1 2 3 {cores}",
    ]


def test_environment_directory_and_secret(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    script = """
    token = Path(os.environ["RING_KERAS_TOKEN_FILE"])
    mode = oct(token.stat().st_mode & 0o777)
    names = ("OURS", "CHOSEN", "TMPDIR", "RING_KERAS_HOST_NAME")
    print(Path.cwd(), mode, *[os.environ.get(name) for name in names])
    secret = token.read_text()
    for commands in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret not in commands.read_text(errors="replace")
        except OSError:
            pass
    """
    options = [*on(hosts, "node1:1"), "-x", "CHOSEN=by option"]
    env = {"OURS": "from \udcff ringrun", "RING_KERAS_HOST_NAME": "mine"}

    finished = ringrun.run(script, *options, size=1, env=env)

    assert finished.returncode == 0, finished.stderr.decode()
    assert finished.stdout == (
        f"[0] {Path.cwd()} 0o600 ".encode()
        + b"from \xff ringrun by option None node1\n"
    )


def test_output_passes_as_it_is_and_into_files_here(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    # More than may be under way at once.
    script = r"""
    os.write(1, b"no utf-8 \xff\r\n" + b"x" * (1 << 20) + b"\n")
    os.write(2, b"errors\nno newline")
    """
    logs = tmp_path / "logs"
    options = [*on(hosts, "node1:1", "node2:1"), "--output-dir", str(logs)]

    finished = ringrun.run(script, *options)

    line = b"x" * (1 << 20)
    assert sorted(finished.stdout.split(b"\n")) == sorted(
        [
            b"[0] no utf-8 \xff",
            b"[0] " + line,
            b"[1] no utf-8 \xff",
            b"[1] " + line,
            b"",
        ]
    )
    assert sorted(finished.stderr.splitlines()) == [
        f"[{rank}] {text}".encode()
        for rank in (0, 1)
        for text in ("errors", "no newline")
    ]
    for rank in (0, 1):
        folder = logs / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"no utf-8 \xff\r\n" + line + b"\n"
        assert (folder / "stderr").read_bytes() == b"errors\nno newline"


def test_the_failing_rank_is_named_with_its_host(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    script = JOIN + (
        "if rank == 2: note('pid', os.getpid()); sys.exit(5)\n"
        "_native.allreduce(np.ones(3, np.float32), name='gradient')\n"
    )

    finished = ringrun.run(script, *on(hosts, "node0:1", "node1:2"), size=None)

    assert finished.returncode == 5
    pid = ringrun.noted("pid")
    assert re.search(
        rf"rank 2 \(host node1, pid {pid}\) exited with code 5 after", finished.verdict
    )
    hosts.wait_until_empty()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_rank(
    ringrun: Ringrun, hosts: SshHosts, number: signal.Signals
) -> None:
    script = """
    def stop(number, frame):
        print("got", signal.Signals(number).name)
        sys.exit(0)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    note(f"ready{rank}")
    wait_to_be_ended()
    """
    process = ringrun.start(script, *on(hosts, "node1:1", "node2:1"))
    for rank in (0, 1):
        ringrun.noted(f"ready{rank}")

    process.send_signal(number)

    finished = ringrun.finish(process)
    assert finished.returncode == 128 + number
    assert sorted(finished.stdout.decode().splitlines()) == [
        f"[{rank}] got {number.name}" for rank in (0, 1)
    ]
    assert finished.verdict == f"ringrun: stopped by {number.name}"
    hosts.wait_until_empty()


def test_what_ranks_leave_behind_is_killed_on_each_host(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    script = """
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    """

    finished = ringrun.run(script, *on(hosts, "node1:1", "node2:1"))

    assert finished.returncode == 0
    hosts.wait_until_empty()


@pytest.mark.slow
def test_a_terminal_that_is_held_up_holds_up_the_ranks_but_no_ping(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    # More than the pipe and what may be under way hold, and lines of ringrun's own.
    script = """
    note(f"pid{rank}", os.getpid())
    for number in range(200):
        print(number, "x" * 10000)
        print(number, file=sys.stderr)
    note(f"done{rank}")
    """
    process = ringrun.start(
        script,
        "-v",
        *on(hosts, "node0:1", "node1:1"),
        size=None,
        env={"RING_KERAS_HEARTBEAT_TIMEOUT_S": "3"},
    )
    (pid,) = ringrun.pids("pid1")
    # Nobody reads for longer than the silence after which a host is given up.
    time.sleep(1.3 * (3 + 5))
    assert is_alive(pid)
    assert not (ringrun.directory / "done1").exists()

    finished = ringrun.finish(process)
    assert finished.returncode == 0, finished.verdict
    for rank in (0, 1):
        assert finished.stdout.count(b"[%d] " % rank) == 200
        assert finished.stderr.count(b"\n[%d] " % rank) >= 199


@pytest.mark.slow
def test_horovods_run_calls_a_function_on_each_host(
    hosts: SshHosts, tmp_path: Path
) -> None:
    script = tmp_path / "call.py"
    script.write_text(
        "import socket\n"
        "from ring_keras.horovod import run\n"
        "def call(greeting):\n"
        "    return greeting + socket.gethostname()\n"
        "if __name__ == '__main__':\n"
        "    options = dict(hosts='node0:1,node1:1', ssh_port=22)\n"
        "    print(run(call, ('I am ',), num_proc=2, **options))\n"
    )
    env = os.environ | {"PATH": hosts.search_path(tmp_path / "bin")}

    done = subprocess.run(
        hosts.on(0, sys.executable, str(script)),
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert done.stdout == "['I am node0', 'I am node1']\n", done.stderr
    hosts.wait_until_empty()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_digits_are_learned_on_two_hosts(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    example = Path(__file__).parents[2] / "examples" / "keras_digits.py"
    process = ringrun.start_raw(
        *on(hosts, "node0:2", "node1:2"),
        *(sys.executable, str(example), f"--output={tmp_path / 'digits.keras'}"),
    )

    finished = ringrun.finish(process, timeout_s=500)

    assert finished.returncode == 0, finished.stderr.decode()[-4000:]
    printed = finished.stdout.decode()
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 4 rank\(s\)\n", printed)
    assert float(accuracy) >= 97
    # From the same training in one process, on the ranks' batches together.
    (differs,) = re.findall(r"differs by (\S+) in the first epoch", printed)
    assert float(differs) < 1e-5
