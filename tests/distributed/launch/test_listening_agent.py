"""An agent that waits for a launcher: who gets one, and what others cost."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import is_alive, wait_until, wait_until_dead
from support.ringrun import Ringrun

from ring_keras.launch.frames import GREETING, encode


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return make_secret(tmp_path / "secret")


def make_secret(file: Path) -> Path:
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


class Waiting:
    """An agent that waits on this host.

    Args:
        secret: The file with it.
        directory: For what it says.
    """

    def __init__(self, secret: Path, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._log = directory / "said"
        command = ["nohup", sys.executable, "-m", "ring_keras.launch.listening_agent"]
        self.process = subprocess.Popen(
            [*command, "--listen", self.address, "--secret-file", str(secret)],
            stderr=self._log.open("wb"),
        )
        wait_until(lambda: "an agent waits at" in self.said, "it listens")

    @property
    def said(self) -> str:
        return self._log.read_text()

    def children(self) -> list[int]:
        """Processes of those who have called, one each."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [pid for pid in map(int, path.read_text().split()) if is_alive(pid)]

    def call(self, secret: Path) -> subprocess.Popen[bytes]:
        """The launcher's end of a line to it."""
        command = [sys.executable, "-m", "ring_keras.launch.call", self.address]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, str(secret)], stdin=pipe, stdout=pipe, stderr=pipe
        )

    def knock(self) -> socket.socket:
        """A connection of somebody who has not said a word."""
        return socket.create_connection(("127.0.0.1", self.port), 30)


@pytest.fixture
def waiting(secret: Path, tmp_path: Path) -> Iterator[Waiting]:
    agent = Waiting(secret, tmp_path)
    yield agent
    agent.process.kill()
    agent.process.wait(30)


def greeted(call: subprocess.Popen[bytes]) -> bool:
    assert call.stdout is not None
    return call.stdout.read(len(GREETING)) == GREETING


def test_a_caller_with_the_secret_gets_an_agent(waiting: Waiting, secret: Path) -> None:
    calls = [waiting.call(secret) for _ in range(2)]

    assert all(greeted(call) for call in calls)
    assert len(waiting.children()) == 2
    for call in calls:
        assert call.communicate(timeout=30)[1] == b""
        assert call.returncode == 0
    wait_until(lambda: not waiting.children(), "no agent is left")


def test_a_caller_with_another_secret_gets_none(
    waiting: Waiting, tmp_path: Path, secret: Path
) -> None:
    call = waiting.call(make_secret(tmp_path / "another"))

    stdout, stderr = call.communicate(timeout=30)

    assert call.returncode == 1
    assert stdout == b""
    assert b"Is the secret the same there?" in stderr
    wait_until(lambda: "it has not the secret" in waiting.said, "it says so")
    again = waiting.call(secret)
    assert greeted(again)
    again.communicate(timeout=30)


def test_a_caller_finds_out_who_has_not_the_secret(
    tmp_path: Path, secret: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "ring_keras.launch.call", address]
        call = subprocess.Popen(
            [*command, str(secret)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        server.settimeout(30)
        peer, _ = server.accept()
        with peer:
            peer.sendall(encode({"type": "challenge", "nonce": "0"}))
            # In the clear, as if both had shown that they hold it.
            peer.sendall(encode({"type": "welcome", "proof": "0" * 64}) + GREETING)
            stdout, stderr = call.communicate(b"my weights", timeout=30)
            with contextlib.suppress(ConnectionResetError):
                peer.settimeout(30)
                said = b""
                while data := peer.recv(1 << 16):
                    said += data
                assert b"my weights" not in said
    assert call.returncode == 1
    assert stdout == b""
    assert b"the agent at 127.0.0.1:" in stderr


@pytest.mark.parametrize("count", [40, 80])
def test_strangers_cost_no_process_and_keep_no_launcher_out(
    waiting: Waiting, secret: Path, count: int
) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(waiting.knock()) for _ in range(count)]
        for stranger in strangers:
            stranger.settimeout(30)
        # All that may stay have been taken, the last of them too.
        assert b'"challenge"' in strangers[-1].recv(1 << 10)
        assert waiting.children() == []
        call = waiting.call(secret)
        assert greeted(call)
        assert len(waiting.children()) == 1
        # What was said to them is all that the oldest have got.
        for stranger in strangers[: max(0, count + 1 - 64)]:
            while stranger.recv(1 << 10):
                pass
        call.communicate(timeout=30)
    wait_until(lambda: not waiting.children(), "nothing is left of the call")
    assert waiting.said.count("\n") == 1, waiting.said


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode({"type": "answer", "nonce": "1", "proof": "0" * 64}),
        encode({"type": "answer", "nonce": "1" * 4000, "proof": "0"}),
        encode({"type": "plan"}) * 100,
    ],
    ids=["http", "a wrong proof", "a long answer", "a plan"],
)
def test_who_says_something_else_is_dropped(
    waiting: Waiting, secret: Path, said: bytes
) -> None:
    with waiting.knock() as stranger, contextlib.suppress(ConnectionResetError):
        stranger.settimeout(30)
        stranger.sendall(said)
        while stranger.recv(1 << 10):
            pass
    assert waiting.children() == []
    call = waiting.call(secret)
    assert greeted(call)
    call.communicate(timeout=30)


def test_one_that_is_asked_to_end_ends_its_agents(
    waiting: Waiting, secret: Path
) -> None:
    call = waiting.call(secret)
    assert greeted(call)
    agents = waiting.children()

    os.kill(waiting.process.pid, signal.SIGTERM)

    assert waiting.process.wait(30) == 128 + signal.SIGTERM
    wait_until_dead(agents)
    call.communicate(timeout=30)


def test_one_that_nohup_protects_takes_calls(waiting: Waiting, secret: Path) -> None:
    os.kill(waiting.process.pid, signal.SIGHUP)

    call = waiting.call(secret)

    assert greeted(call)
    call.communicate(timeout=30)
    assert waiting.process.poll() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-H 192.0.2.9:1", "--agent-port also needs --secret-file"),
        ("--secret-file {secret} -np 1", "needs -H, --hostfile or --host-discovery"),
        ("-H 192.0.2.9:1 --secret-file /nowhere", "/nowhere: cannot read it"),
        (
            "-H 192.0.2.9:1 --secret-file {secret} -p 22",
            "-p is for agents that ringrun starts",
        ),
        ("-H 192.0.2.9:1 --secret-file {secret} --agent-port 0", "from 1 to 65535"),
        ("--nnodes 2 --secret-file {secret}", "also need --node-rank"),
    ],
)
def test_bad_options_are_refused(
    ringrun: Ringrun, secret: Path, options: str, message: str
) -> None:
    arguments = ["--agent-port", "4712", *options.format(secret=secret).split()]

    finished = ringrun.finish(ringrun.start_raw(*arguments, "true"))

    assert finished.returncode == 2
    assert message in finished.stderr.decode()


def test_a_dry_run_shows_the_call(ringrun: Ringrun, secret: Path) -> None:
    options = ["-H", "192.0.2.9:1", "--agent-port", "4712", "--secret-file"]

    finished = ringrun.finish(
        ringrun.start_raw("--dry-run", *options, str(secret), "true")
    )

    call = f"-m ring_keras.launch.call 192.0.2.9:4712 {secret}"
    assert call in finished.stdout.decode()
