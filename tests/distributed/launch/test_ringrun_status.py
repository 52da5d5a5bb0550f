"""The line that says how fast ranks train, and the log of what happens."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from support.terminal import REPORT

TRAIN = (
    REPORT
    + """
report(0, {})
note(f"began{rank}")
wait_for("began0"), wait_for("began1")
report(50, {"1": 1.0} if rank == 0 else {})
wait_for("seen")
print("a line")
wait_for("done")
"""
)


def test_a_terminal_shows_a_status_below_the_lines(ringrun, terminal) -> None:
    fd = terminal.fd
    process = ringrun.start(TRAIN, stdout=fd, stderr=fd)

    shown = terminal.read_until(rb"\r\x1b\[K?[^\r]*2 ranks \| [^\r\x1b]*% waiting")[0]
    (ringrun.directory / "seen").touch()
    # The line takes its place, and it is shown again below.
    terminal.read_until(rb"\r\x1b\[K[^\r\n]*\[[01]\][^\r\n]* a line\r\n2 ranks \| ")
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0
    assert re.search(
        rb"2 ranks \| \S+ steps/s \| slowest: rank 1, the others wait 20 ms a step \| "
        rb"\S+ examples/s \| 20% waiting",
        shown,
    ), shown


def test_a_narrow_terminal_shows_whole_parts(ringrun, terminal) -> None:
    terminal.set_columns(40)
    process = ringrun.start(TRAIN, stdout=terminal.fd, stderr=terminal.fd)

    # There is no room for who is slowest, and for half of it neither.
    terminal.read_until(
        rb"\r\x1b\[K2 ranks \| \S+ steps/s( \| \S+ examples/s)?( \| 20% waiting)\r"
    )
    (ringrun.directory / "seen").touch()
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0


JOIN = """
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.lifecycle.elastic_launcher import launcher_of
if rank == 1:
    wait_for("seen")
config = Config.from_environment()
place = {} if config.elastic_socket is None else launcher_of(config).join()
_native.init(**(config.init_options() | place))
wait_for("done")
"""


@pytest.mark.parametrize(
    "options", [[], pytest.param(["--min-np", "2"], marks=pytest.mark.slow)]
)
def test_a_terminal_shows_who_has_joined(ringrun, terminal, options) -> None:
    fd = terminal.fd
    process = ringrun.start(JOIN, *options, stdout=fd, stderr=fd)

    terminal.read_until(rb"starting 2 ranks \.\.\. 1 of 2 have joined \(\d+ s\)")
    (ringrun.directory / "seen").touch()
    # Once all are there, it goes, and nothing takes its place.
    terminal.read_until(rb"\r\x1b\[K\Z")
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0


@pytest.mark.slow
def test_a_terminal_shows_who_is_waited_for(ringrun, terminal) -> None:
    script = """
    import ring_keras as ring
    ring.init()
    if rank == 1:
        wait_for("named")
    ring.barrier()
    """
    process = ringrun.start(script, stdout=terminal.fd, stderr=terminal.fd)

    terminal.read_until(rb"waiting for rank 1: \d+ s \| 2 ranks \| ")
    (ringrun.directory / "named").touch()

    assert ringrun.finish(process).returncode == 0


@pytest.mark.parametrize("options", [[], ["--no-status"]])
def test_without_a_terminal_or_by_choice_there_is_none(
    ringrun, terminal, options: list[str]
) -> None:
    process = ringrun.start(
        'print("pipe", os.environ.get("RING_KERAS_REPORT_PIPE"))',
        *options,
        size=1,
        **({"stdout": terminal.fd, "stderr": terminal.fd} if options else {}),
    )

    finished = ringrun.finish(process)

    assert finished.returncode == 0
    if options:
        terminal.read_until(rb"pipe None")
    else:
        assert b"pipe None" in finished.stdout


def test_what_is_no_report_is_passed_over(ringrun, terminal) -> None:
    script = (
        REPORT
        + """
pipe = os.open(os.environ["RING_KERAS_REPORT_PIPE"], os.O_WRONLY)
strange = b'{"rank": 0, "steps": "x"}'
large = b'{"rank": 0, "steps": 1' + b"0" * 400 + b"}"
for line in (b"no json", b"[1]", b'{"rank": 7}', strange, large, b"x" * 9000):
    os.write(pipe, line + b"\\n")
report(0, {})
report(3, {})
wait_for("seen")
"""
    )
    process = ringrun.start(script, size=1, stdout=terminal.fd, stderr=terminal.fd)

    terminal.read_until(rb"1 rank \| \S+ steps/s")
    (ringrun.directory / "seen").touch()

    assert ringrun.finish(process).returncode == 0


def test_the_event_log_has_each_start_and_end(ringrun, tmp_path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text('{"kind": "of an earlier job"}\n')
    script = """
    if rank == 1:
        note("pid1", os.getpid())
        sys.exit(3)
    wait_for_the_end_of("pid1")
    """

    finished = ringrun.run(script, "--event-log", str(log))

    assert finished.returncode == 3
    first, *events = map(json.loads, log.read_text().splitlines())
    assert first == {"kind": "of an earlier job"}
    here = socket.gethostname()
    assert [(e["kind"], e["rank"], e["text"]) for e in events[:4]] == [
        ("membership", 0, f"rank 0 (host {here}) was started"),
        ("membership", 1, f"rank 1 (host {here}) was started"),
        ("fault", 1, f"rank 1 (host {here}) exited with code 3"),
        ("membership", 0, f"rank 0 (host {here}) exited with code 0"),
    ]
    assert (events[4]["kind"], events[4]["rank"]) == ("fault", None)
    assert f"ringrun: {events[4]['text']}" == finished.verdict
    assert all(abs(event["time"] - time.time()) < 600 for event in events)


def test_an_event_log_that_cannot_be_written_is_told_at_the_start(ringrun) -> None:
    finished = ringrun.run('note("started")', "--event-log", "/no/such/file")

    assert finished.returncode == 2
    assert b"--event-log /no/such/file: No such file" in finished.stderr
    assert not (ringrun.directory / "started").exists()


def test_a_pipe_gets_all_events(ringrun, tmp_path) -> None:
    os.mkfifo(tmp_path / "events")
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["cat", tmp_path / "events"], stdout=read)
    try:
        script = "note('begun')\nwait_for('go')"
        process = ringrun.start(script, "--event-log", str(tmp_path / "events"), size=1)
        ringrun.noted("begun")
        (tmp_path / "go").touch()

        finished = ringrun.finish(process)
        assert finished.returncode == 0, finished.stderr.decode()
        reader.wait(timeout=30)
    finally:
        reader.kill()
    texts = [
        json.loads(line)["text"] for line in (tmp_path / "read").open(encoding="utf-8")
    ]
    here = socket.gethostname()
    assert texts == [
        f"rank 0 (host {here}) was started",
        f"rank 0 (host {here}) exited with code 0",
    ]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_pipe_that_nobody_reads_does_not_hold_up_the_job(
    ringrun, tmp_path, is_open
) -> None:
    pipe = tmp_path / "events"
    os.mkfifo(pipe)
    script = """
    import json
    reports = os.open(os.environ["RING_KERAS_REPORT_PIPE"], os.O_WRONLY)
    event = {"time": 0, "kind": "x", "text": "y" * 50}
    line = json.dumps({"rank": 0, "event": event}).encode() + b"\\n"
    for _ in range(15_000):  # More than the pipe and ringrun hold.
        os.write(reports, line)
    note("begun")
    wait_to_be_ended()
    """
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if is_open else None
    try:
        process = ringrun.start(script, "--event-log", str(pipe), size=1)
        ringrun.noted("begun")

        process.send_signal(signal.SIGTERM)

        finished = ringrun.finish(process, timeout_s=30)
    finally:
        if reader is not None:
            os.close(reader)
    assert finished.returncode == 128 + signal.SIGTERM
    said = finished.stderr.decode()
    assert said.count(f"{pipe} does not take events as fast as they come") == 1, said
    assert said.count(f"{pipe} has not taken the last events") == 1, said


@pytest.mark.slow
def test_ranks_report_from_fit_and_when_they_leave(ringrun, terminal) -> None:
    script = """
    import keras, numpy as np
    import ring_keras as ring
    ring.init()
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = (here / "seen").exists()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), Stop()]
    x, y = np.ones((64, 4)), np.ones((64, 1))
    model.fit(x, y, batch_size=8, epochs=10**6, verbose=0, callbacks=callbacks)
    ring.shutdown()
    ring.init()  # Reports go on in the next membership.
    note(f"again{rank}")
    wait_for("done")
    """
    process = ringrun.start(script, stdout=terminal.fd, stderr=terminal.fd)

    terminal.read_until(
        rb"2 ranks \| \S+ steps/s \| [^\r]*\S+ examples/s \| \d+% waiting"
    )
    (ringrun.directory / "seen").touch()
    ringrun.noted("again0"), ringrun.noted("again1")
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0
