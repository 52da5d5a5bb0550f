"""Jobs that go on when ringrun is killed. The engine and ringrun alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.elastic_ranks import PROLOGUE, ended
from support.lost_launcher import LostLauncher, launcher_of
from support.processes import is_alive, wait_until, wait_until_dead
from support.ringrun import Finished, Ringrun

from ring_keras.launch.frames import GREETING, FrameReader, encode

# Ranks meet until there is a file "enough", and note with whom in which generation.
SCRIPT = (
    PROLOGUE
    + """
def meet_in_turn():
    place = launcher_of(config).place
    launcher_of(config).note_joined()
    print("joined", place[0], flush=True)
    while True:
        waits = launcher_of(config).others_wait()
        own = [rank, (here / "enough").exists(), waits]
        facts = _native.allgather(np.array([own], np.int64), "facts")
        note(f"met.{rank}", f"{place[0]}: {facts[:, 0].tolist()}")
        if facts[:, 1].any():
            return True
        if facts[:, 2].any():
            _native.shutdown("others wait")
            return False
        time.sleep(0.01)

note(f"pid.{rank}", os.getpid())
done = False
while not done:
    join()
    try:
        done = meet_in_turn()
    except RuntimeError as error:
        assert str(error).startswith("PeerLostError"), error
        _native.shutdown("it lost a rank, or the store")
end()
"""
)


@pytest.fixture
def job(ringrun: Ringrun) -> Iterator[LostLauncher]:
    made = LostLauncher(ringrun)
    yield made
    made.close()


def await_met(ringrun: Ringrun, number: int, met: str) -> None:
    """Until a process has met these, in that generation."""
    path = ringrun.directory / f"met.{number}"
    wait_until(
        lambda: path.exists() and path.read_text() == met, f"{number} met {met}", 60
    )


def words_of(pid: int) -> list[str]:
    """A process's command."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def finish(ringrun: Ringrun, job: LostLauncher, code: int = 0) -> Finished:
    """The ringrun that has the job ends with that code, and leaves nothing."""
    finished = ringrun.finish(job.process)
    assert finished.returncode == code, finished.stderr.decode()
    wait_until(lambda: job.left() == [], "nothing is left")
    return finished


def test_ranks_go_on_with_another_launcher(ringrun: Ringrun, job: LostLauncher) -> None:
    output = ringrun.directory / "output"
    job.begin(SCRIPT, "--min-np", "1", "--output-dir", str(output))
    pids = ringrun.pids("pid.0", "pid.1")
    await_met(ringrun, 1, "1: [0, 1]")
    assert job.card.stat().st_mode & 0o777 == 0o600

    job.lose()
    job.take_over()
    await_met(ringrun, 1, "2: [0, 1]")
    (ringrun.directory / "enough").touch()

    finished = finish(ringrun, job)
    assert ended(ringrun, 0, 1) == {0: (pids[0], [0, 1]), 1: (pids[1], [0, 1])}
    assert b"[0] joined 2" in finished.stdout
    # The files of the first one go on.
    printed = (output / "rank.1" / "stdout").read_text()
    assert printed == "joined 1\njoined 2\n"
    assert not job.card.exists()


def test_what_only_the_first_launcher_needs_is_not_missed(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    events, output = ringrun.directory / "logs" / "events", ringrun.directory / "output"
    token, hosts = ringrun.directory / "token", ringrun.directory / "hosts"
    events.parent.mkdir()
    token.touch(mode=0o600)
    token.write_text("of the test")
    here = socket.gethostname()
    hosts.write_text(f"{here} slots=2\n")
    job.begin(
        SCRIPT,
        *("--min-np", "2", "--hostfile", str(hosts), "--event-log", str(events)),
        *("--metrics-port", "0", "--metrics-token-file", str(token)),
        *("--output-dir", str(output / "of" / "it")),
        size=None,
    )
    await_met(ringrun, 1, "1: [0, 1]")

    job.lose()
    events.unlink()
    events.parent.rmdir()
    token.unlink()
    hosts.write_text(f"{here} slots=1\n")
    output.rename(ringrun.directory / "moved")
    output.touch()
    job.take_over("-v")
    await_met(ringrun, 1, "2: [0, 1]")
    (ringrun.directory / "enough").touch()

    finished = finish(ringrun, job)
    said = finished.stderr.decode()
    assert b"[0] joined 2" in finished.stdout
    assert f"--metrics-token-file {token}: " in said
    assert f"--event-log {events}: No such file or directory; the job goes on" in said
    assert f"--output-dir {output}/of/it: Not a directory; the job goes on" in said
    assert (
        f"rank 1 (pid {ringrun.pids('pid.1')[0]}) exited with code 0" in said
    )  # By -v.


def test_an_output_that_cannot_go_on_is_shown_alone(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    output, hosts = ringrun.directory / "output", ringrun.directory / "hosts"
    hosts.write_text(f"{socket.gethostname()} slots=2\n")
    options = ["--min-np", "2", "--hostfile", str(hosts), "--output-dir", str(output)]
    job.begin(SCRIPT, *options, size=None)
    await_met(ringrun, 1, "1: [0, 1]")

    job.lose()
    hosts.unlink()
    (output / "rank.0").rename(output / "moved")
    (output / "rank.0").touch()
    job.take_over("--end")

    finished = finish(ringrun, job)
    said = finished.stderr.decode()
    assert "stopped by SIGTERM" in finished.verdict
    assert f"cannot write {output}/rank.0/stdout (File exists)" in said
    assert f"--hostfile: {hosts}: No such file or directory; the job goes on" in said


def test_the_front_says_how_to_go_on(ringrun: Ringrun, job: LostLauncher) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")

    os.kill(launcher_of(job.process.pid), signal.SIGKILL)

    finished = ringrun.finish(job.process)
    assert finished.returncode == 128 + signal.SIGKILL
    assert f"ringrun --take-over {job.card}" in finished.verdict
    assert all(map(is_alive, ringrun.pids("pid.0", "pid.1")))
    job.take_over("--end")
    assert "stopped by SIGTERM" in finish(ringrun, job).verdict


def test_a_rank_is_replaced_under_the_third_launcher(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    cooldown = ("--blacklist-cooldown-range", "0", "0")
    job.begin(SCRIPT, "--min-np", "1", "--max-np", "2", *cooldown)
    await_met(ringrun, 0, "1: [0, 1]")
    for generation in (2, 3):
        job.lose()
        job.take_over()
        await_met(ringrun, 0, f"{generation}: [0, 1]")

    os.kill(*ringrun.pids("pid.1"), signal.SIGKILL)

    path = ringrun.directory / "met.0"
    wait_until(lambda: path.read_text().endswith(": [0, 2]"), "another one comes", 60)
    (ringrun.directory / "enough").touch()
    finished = finish(ringrun, job)
    assert b"elastic: started process 2 " in finished.stderr
    assert b"took the job over, as its launcher of term 3" in finished.stderr


def test_what_is_not_where_another_launcher_runs_is_done_without(
    ringrun: Ringrun, job: LostLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    nodes = ringrun.directory / "nodes"
    nodes.write_text(f"{os.uname().nodename}\n" * 2)
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    monkeypatch.setenv("PBS_JOBID", "7")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job.begin(SCRIPT, "--min-np", "1", "--metrics-port", str(port), size=None)
    await_met(ringrun, 0, "1: [0, 1]")

    job.lose()
    nodes.unlink()
    with socket.create_server(("127.0.0.1", port)):
        job.take_over()
        await_met(ringrun, 0, "2: [0, 1]")
        (ringrun.directory / "enough").touch()
        finished = finish(ringrun, job)

    assert b"metrics are not served any more: this host cannot" in finished.stderr


def test_who_dies_while_there_is_no_launcher_is_lost(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "2", size=3)
    pids = ringrun.pids("pid.0", "pid.1", "pid.2")
    await_met(ringrun, 0, "1: [0, 1, 2]")

    job.lose()
    os.kill(pids[0], signal.SIGKILL)
    wait_until_dead(pids[:1])
    job.take_over()

    await_met(ringrun, 1, "2: [1, 2]")
    (ringrun.directory / "enough").touch()
    finished = finish(ringrun, job)
    assert f"pid {pids[0]}) was killed by SIGKILL" in finished.stderr.decode()


@pytest.mark.parametrize(("code", "said"), [(0, ""), (3, "[RK801] rank 0 (")])
def test_a_job_may_end_while_there_is_no_launcher(
    ringrun: Ringrun, job: LostLauncher, code: int, said: str
) -> None:
    script = f"note('pid.0', os.getpid())\nwait_for('enough')\nsys.exit({code})"
    job.begin(script, "--min-np", "1", size=1)
    pids = ringrun.pids("pid.0")

    job.lose()
    (ringrun.directory / "enough").touch()
    wait_until_dead(pids)
    job.take_over()

    assert said in finish(ringrun, job, code).verdict


def test_a_job_leaves_the_card_of_another_one_alone(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")
    job.lose()
    before = job.card.read_text()

    second = ["-np", "1", "--min-np", "1", "--card", str(job.card), "true"]
    refused = ringrun.finish(ringrun.start_raw(*second))

    assert refused.returncode == 2
    assert "already, and its job may still have ranks" in refused.stderr.decode()
    assert job.card.read_text() == before
    job.take_over()
    (ringrun.directory / "enough").touch()
    finish(ringrun, job)
    assert not job.card.exists()


@pytest.mark.slow
def test_ranks_end_if_no_other_launcher_comes(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1", outage_s="1")
    pids = ringrun.pids("pid.0", "pid.1")
    job.lose()
    assert all(map(is_alive, pids))

    wait_until(lambda: job.left() == [], "the agent has given up", 60)
    card = job.card.read_text()
    job.take_over()

    finished = ringrun.finish(job.process)
    assert finished.returncode == 1
    assert f"[RK822] cannot take the job over: no agent of {job.card} is there" in (
        finished.verdict
    )
    assert job.card.read_text() == card  # It may be the network.


@pytest.mark.slow
@pytest.mark.parametrize("heirs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_that_was_stopped_ends_alone(
    ringrun: Ringrun, job: LostLauncher, heirs: bool
) -> None:
    job.begin(SCRIPT, "--min-np", "1", *["--heirs"] * heirs)
    pids = ringrun.pids("pid.0", "pid.1")
    await_met(ringrun, 0, "1: [0, 1]")
    job.await_card()
    first = job.process
    launcher = launcher_of(first.pid)

    os.kill(launcher, signal.SIGSTOP)
    if not heirs:
        job.take_over()
    await_met(ringrun, 0, "2: [0, 1]")
    os.kill(launcher, signal.SIGCONT)

    finished = ringrun.finish(first)
    assert finished.returncode == 1
    assert "[RK824] another launcher, of term 2, has taken" in finished.verdict
    assert json.loads(job.card.read_text())["term"] == 2
    (ringrun.directory / "enough").touch()
    wait_until(lambda: job.left() == [], "the job has ended", 60)
    assert ended(ringrun, 0, 1) == {0: (pids[0], [0, 1]), 1: (pids[1], [0, 1])}


@pytest.mark.slow
def test_one_that_paused_for_long_leaves_ranks_to_the_next(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1", outage_s="5")
    pids = ringrun.pids("pid.0", "pid.1")
    await_met(ringrun, 0, "1: [0, 1]")
    job.lose()
    job.take_over()
    await_met(ringrun, 0, "2: [0, 1]")
    launcher = launcher_of(job.process.pid)

    os.kill(launcher, signal.SIGSTOP)
    time.sleep(13)  # The agent closes the line after 10 s.
    os.kill(launcher, signal.SIGCONT)
    finished = ringrun.finish(job.process)

    assert "all ranks are cut off" in finished.stderr.decode()
    assert job.card.exists()
    job.take_over()
    await_met(ringrun, 0, "3: [0, 1]")
    (ringrun.directory / "enough").touch()
    finish(ringrun, job)
    assert ended(ringrun, 0, 1) == {0: (pids[0], [0, 1]), 1: (pids[1], [0, 1])}


def test_a_signal_ends_the_job_as_ever(ringrun: Ringrun, job: LostLauncher) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")

    job.process.send_signal(signal.SIGINT)

    assert "stopped by SIGINT" in finish(ringrun, job, 130).verdict
    assert not job.card.exists()


def test_who_is_stopped_before_it_has_the_job_says_so(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    pids = ringrun.pids("pid.0", "pid.1")
    await_met(ringrun, 0, "1: [0, 1]")
    job.lose()
    agent = [p for p in job.left() if "ring_keras.launch.agent" in words_of(p)]

    for pid in agent:
        os.kill(pid, signal.SIGSTOP)
    job.take_over("--end")
    wait_until(
        lambda: any("ring_keras.launch.call" in words_of(p) for p in job.left()),
        "it calls the agent",
    )
    job.process.send_signal(signal.SIGINT)
    finished = ringrun.finish(job.process)
    for pid in agent:
        os.kill(pid, signal.SIGCONT)

    assert finished.returncode == 128 + signal.SIGINT
    assert "it was stopped by SIGINT before it had the job" in finished.verdict
    assert all(map(is_alive, pids))
    job.take_over("--end")
    assert "stopped by SIGTERM" in finish(ringrun, job).verdict


ENDS = """
def save(*_):
    note(f"begun.{rank}")
    if rank == 0:
        wait_for("may_save")
        note("saved")
        sys.exit(0)
signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, lambda *_: note(f"terminated.{rank}"))
note(f"pid.{rank}", os.getpid())
deadline = time.monotonic() + 100
while time.monotonic() < deadline:
    time.sleep(0.05)
"""


@pytest.mark.slow  # Ranks take 15 s to end.
def test_nobody_goes_on_with_a_job_that_was_ending(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(ENDS, "--min-np", "1", "--heirs", "--grace-period", "15")
    pids = ringrun.pids("pid.0", "pid.1")
    job.await_card()
    job.process.send_signal(signal.SIGINT)
    ringrun.noted("begun.0")
    ringrun.noted("begun.1")

    job.lose()
    job.take_over("--end")

    finished = ringrun.finish(job.process)
    assert finished.returncode == 1
    assert "its ranks are ending" in finished.verdict
    assert all(map(is_alive, pids))
    (ringrun.directory / "may_save").touch()
    ringrun.noted("saved")
    # Rank 1 is killed at the end of the grace period.
    wait_until(lambda: job.left() == [], "nothing is left", 60)
    assert not [*ringrun.directory.glob("terminated.*")]
    assert not job.card.with_name(f"{job.card.name}.log").exists()


def test_a_job_that_cannot_begin_leaves_no_card(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(
        "", "--min-np", "1", "-H", f"{os.uname().nodename}:2,no.invalid:1", size=3
    )

    finished = ringrun.finish(job.process)

    assert finished.returncode == 1
    assert "[RK810] cannot start the ranks: " in finished.stderr.decode()
    assert job.left() == []
    assert not job.card.exists()


def test_who_has_not_the_secret_takes_nothing(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")
    first = job.process
    forged = ringrun.directory / "forged"
    forged.touch(mode=0o600)
    forged.write_text(
        json.dumps({**json.loads(job.card.read_text()), "token": "ab" * 32})
    )

    job.take_over(card=forged)

    finished = ringrun.finish(job.process)
    assert finished.returncode == 1
    assert (
        "it does not take the call. Is the secret the same there?" in finished.verdict
    )
    (ringrun.directory / "enough").touch()
    assert ringrun.finish(first).returncode == 0


def test_an_agent_serves_no_launcher_of_an_old_term(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")
    card = json.loads(job.card.read_text())
    secret = ringrun.directory / "secret"
    secret.touch(mode=0o600)
    secret.write_text(card["token"])
    address = card["agents"][0]["address"]
    call = [sys.executable, "-m", "ring_keras.launch.call", address, str(secret)]
    with subprocess.Popen(
        call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as caller:
        assert caller.stdin is not None
        assert caller.stdout is not None
        caller.stdin.write(encode({"type": "take_over", "term": 1}))
        said = b""
        while data := caller.stdout.read(1 << 16):
            said += data
    reader = FrameReader(greeted=False)
    assert said.startswith(GREETING)
    hello, superseded = (
        message
        for message in reader.feed(said)
        if isinstance(message, dict) and message["type"] != "ping"
    )
    assert isinstance(hello, dict)
    assert hello["term"] == 1
    assert not hello["ending"]
    assert superseded == {"type": "superseded", "term": 1}
    (ringrun.directory / "enough").touch()
    finish(ringrun, job)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-np", "2", "--card", "c", "true"], "--card is for elastic jobs"),
        (
            [*("-H", "localhost:1,a:1", "--min-np", "1", "--card", "c"), "true"],
            "localhost means another one",
        ),
        (
            [
                *("-H", "a:1", "--remote-shell", "env", "--min-np", "1"),
                *("--card", "c", "true"),
            ],
            "--card does not work where a scheduler, or --remote-shell",
        ),
        (["-np", "1", "--min-np", "1", "--card", "no/c", "true"], "No such file"),
        (["--take-over", "c", "true"], "--take-over takes no command"),
        (["--take-over", "c", "--dry-run"], "leave out --dry-run. Only --end,"),
        (["--take-over", "c", "--end", "-np2"], "leave out -np. Only --end,"),
        (
            # What would be so without them, too.
            ["--take-over=c", "-v", "--num-processes", "2", "--grace-period=10"],
            "leave out --num-processes, --grace-period. Only --end,",
        ),
        (["--end", "-np", "2", "true"], "--end needs --take-over FILE"),
    ],
)
def test_what_cannot_be_is_said(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from ring_keras.launch.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(options)

    assert left.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_card_that_others_can_read_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from ring_keras.launch.cli import main

    card = tmp_path / "card"
    assert main(["--take-over", str(card)]) == 1
    card.touch(mode=0o644)
    assert main(["--take-over", str(card)]) == 1
    card.chmod(0o600)
    card.write_text("{}")
    assert main(["--take-over", str(card)]) == 1

    said = capfd.readouterr().err.split("\n")
    assert "No such file or directory. A job that has ended well has no card" in said[0]
    assert "others than you can read or write it" in said[1]
    assert "is no card of a job" in said[2]


def test_an_agent_starts_another_launcher(ringrun: Ringrun, job: LostLauncher) -> None:
    log = ringrun.directory / "card.log"
    job.begin(SCRIPT, "--min-np", "1", "--heirs", size=3)
    pids = ringrun.pids("pid.0", "pid.1", "pid.2")
    await_met(ringrun, 0, "1: [0, 1, 2]")

    job.lose()
    os.kill(pids[0], signal.SIGKILL)
    await_met(ringrun, 1, "2: [1, 2]")
    # The next one, too.
    successor = [p for p in job.left() if "ring_keras.launch.successor" in words_of(p)]
    os.kill(min(successor), signal.SIGKILL)
    await_met(ringrun, 1, "3: [1, 2]")
    (ringrun.directory / "enough").touch()

    wait_until(lambda: job.left() == [], "the job has ended", 60)
    assert ended(ringrun, 1, 2) == {1: (pids[1], [1, 2]), 2: (pids[2], [1, 2])}
    said = log.read_text()
    assert "took the job over, as its launcher of term 2" in said
    assert f"pid {pids[0]}) was killed by SIGKILL" in said
    assert "took the job over, as its launcher of term 3" in said
    assert "[1] joined 3" in said
    assert not job.card.exists()


def test_no_other_launcher_while_there_is_one(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(SCRIPT, "--min-np", "1")
    await_met(ringrun, 0, "1: [0, 1]")
    job.await_card()
    first = job.process

    job.take_over("--by-majority")

    finished = ringrun.finish(job.process)
    assert finished.returncode == 1
    assert "[RK822] cannot take the job over: all agents that are" in finished.verdict
    (ringrun.directory / "enough").touch()
    assert ringrun.finish(first).returncode == 0


def test_a_discovery_script_is_asked_on(ringrun: Ringrun, job: LostLauncher) -> None:
    script = ringrun.directory / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho {os.uname().nodename}:$(cat {script}.slots)\n")
    script.chmod(0o755)
    slots = script.with_name("hosts.sh.slots")
    slots.write_text("1")
    cooldown = ("--blacklist-cooldown-range", "0", "0")
    options = ("--host-discovery-script", str(script), "--min-np", "1", "--max-np", "2")
    job.begin(SCRIPT, *options, *cooldown, "--launcher-address", "127.0.0.1", size=1)
    await_met(ringrun, 0, "1: [0]")

    job.lose()
    job.take_over()
    slots.write_text("2")

    path = ringrun.directory / "met.1"
    wait_until(lambda: path.exists() and path.read_text()[2:] == " [0, 1]", "both", 60)
    (ringrun.directory / "enough").touch()
    assert b"has come" not in finish(ringrun, job).stderr
