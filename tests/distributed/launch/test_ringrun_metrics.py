"""What Prometheus gets; with the client library where that is installed."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest
from support.processes import wait_until

from ring_keras.launch import metrics
from ring_keras.launch.metrics import check_metrics

REPORT = """
import json
totals = dict(steps=5 + rank, process_set=0, examples=40, duration_s=2,
              input_s=0.25, compute_s=1, wait_s=0.5, exposed_s=0.25, bytes=1000)
waits = {"waited_for_s": {"1": 0.5} if rank == 0 else {}, "waits_for_s": {}}
line = json.dumps({"rank": rank, **totals, **waits})
pipe = os.open(os.environ["RING_KERAS_REPORT_PIPE"], os.O_WRONLY)
os.write(pipe, line.encode() + b"\\n")
note(f"reported{rank}")
wait_for("done")
"""


def get(url: str, **headers: str) -> str:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("token", [None, "open-sesame"])
def test_prometheus_gets_what_ranks_report(ringrun, tmp_path, token) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    options = ["--metrics-port", "0"]
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    if token:
        file = tmp_path / "token"
        file.write_text(f"{token}\n")
        file.chmod(0o600)
        options += ["--metrics-host", "0.0.0.0", "--metrics-token-file", str(file)]
        headers["Authorization"] = f"Bearer {token}"
    process = ringrun.start(REPORT, *options)
    said = process.stderr.readline().decode()
    port = re.search(r"metrics are at http://[\d.]+:(\d+)/metrics\n", said)[1]
    url = f"http://127.0.0.1:{port}/metrics"
    ringrun.noted("reported0"), ringrun.noted("reported1")

    def collected() -> dict[tuple[str | None, ...], float]:
        families = parser.text_string_to_metric_families(get(url, **headers))
        labels = ("rank", "host", "other")
        return {
            (sample.name, *map(sample.labels.get, labels)): sample.value
            for family in families
            for sample in family.samples
        }

    # The launcher may not have read them yet.
    wait_until(lambda: len(collected()) == 17, "metrics of both ranks")
    samples = collected()
    if token:
        for wrong in ({}, {"Authorization": "Bearer x"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(url, **wrong)
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0
    here = socket.gethostname()
    assert samples["ring_keras_steps_total", "1", here, None] == 6
    assert samples["ring_keras_wait_seconds_total", "0", here, None] == 0.5
    assert samples["ring_keras_collective_bytes_total", "0", here, None] == 1000
    assert samples["ring_keras_waited_for_seconds_total", "0", None, "1"] == 0.5


@pytest.fixture
def port() -> int:
    """Of a server in this process, that has no reports."""
    pytest.importorskip("prometheus_client")
    options = metrics.MetricsOptions("127.0.0.1", 0, None)
    return metrics.MetricsServer(options, dict, str).port


@pytest.mark.slow
def test_who_connects_and_says_nothing_keeps_nobody_out(port, monkeypatch) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 300)
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            for _ in range(40)
        ]
        assert "ring_keras_steps" in get(f"http://127.0.0.1:{port}/metrics")
        # The oldest were cut.
        for connection in silent[: 40 + 1 - metrics._MOST_CONNECTIONS]:
            assert connection.recv(1) == b""
        wait_until(
            lambda: threading.active_count() - before <= metrics._MOST_CONNECTIONS,
            "no more threads than connections",
        )


def test_who_sends_a_byte_at_a_time_is_cut(port, monkeypatch) -> None:
    monkeypatch.setattr(metrics, "_LONGEST_REQUEST_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), 30) as connection:

        def is_cut() -> bool:
            try:
                connection.send(b"G")
            except OSError:
                return True
            return False

        wait_until(is_cut, "the end of the connection")


def test_a_port_that_is_taken_is_told_at_the_start(ringrun) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = ringrun.run('note("started")', "--metrics-port", str(port))

    assert finished.returncode == 1
    assert "Address already in use" in finished.verdict
    assert not (ringrun.directory / "started").exists()


def test_metrics_for_everybody_are_refused(tmp_path) -> None:
    pytest.importorskip("prometheus_client")
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)

    with pytest.raises(ValueError, match=r"0\.0\.0\.0 is not the loopback interface"):
        check_metrics("0.0.0.0", 9400, None)
    with pytest.raises(ValueError, match="readable by its owner alone, mode 0600"):
        check_metrics("0.0.0.0", 9400, token)
    with pytest.raises(ValueError, match="must be an address, not localhost"):
        check_metrics("localhost", 9400, None)
    token.chmod(0o600)
    assert check_metrics("0.0.0.0", 9400, token).token == "secret"
    assert check_metrics("::1", 9400, None).token is None


def test_a_missing_client_library_is_named(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)

    with pytest.raises(ValueError, match=r"pip install 'ring-keras\[prometheus\]'"):
        check_metrics("127.0.0.1", 9400, None)
    assert check_metrics(None, None, None) is None
