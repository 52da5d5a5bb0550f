"""What the plugin answers, from files on disk through TensorBoard's data provider."""

from __future__ import annotations

import json
import time

import pytest
from support.synthetic_run import (
    BEGAN_AT,
    STEPS_PER_UPDATE,
    even,
    slow_compute,
    updates,
    write_run,
)
from tensorboard.backend import application
from tensorboard.backend.event_processing import (
    data_provider,
    plugin_event_multiplexer,
)
from tensorboard.plugins import base_plugin
from werkzeug.test import Client
from werkzeug.wrappers import Response

from ring_keras.tensorboard.plugin import RingPlugin

EVENT = {"time": BEGAN_AT, "rank": 2, "kind": "stall", "text": "waited 61 s"}


class Board:
    """TensorBoard's Python backend on a folder."""

    def __init__(self, logdir):
        # The sizes with which TensorBoard reads plugins that it does not know.
        self._multiplexer = plugin_event_multiplexer.EventMultiplexer(
            size_guidance={"tensors": 10}, tensor_size_guidance={"scalars": 1000}
        )
        self._logdir = logdir
        provider = data_provider.MultiplexerDataProvider(self._multiplexer, str(logdir))
        plugin = RingPlugin(base_plugin.TBContext(data_provider=provider))
        app = application.TensorBoardWSGI([plugin], data_provider=provider)
        self._client = Client(app, Response)
        self.reload()

    def reload(self):
        self._multiplexer.AddRunsFromDirectory(str(self._logdir))
        self._multiplexer.Reload()

    def get(self, path):
        return self._client.get(f"/data/plugin/ring/{path}")

    def json(self, path):
        response = self.get(path)
        assert response.status_code == 200, response.text
        return json.loads(response.text)

    def listing(self):
        return json.loads(self._client.get("/data/plugins_listing").text)["ring"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs")
    write_run(directory, updates(slow_compute), (EVENT,))
    return directory


def test_a_long_run_is_read_whole(logdir):
    board = Board(logdir)
    assert board.json("runs") == ["train"]
    overview = board.json("overview?run=train")
    # TensorBoard would have kept ten records of one tag.
    assert overview["means"]["steps"] == [10 * n for n in range(1, 201)]
    assert overview["means"]["compute"][0] == pytest.approx(0.05, rel=0.02)
    assert overview["means"]["wait"][-1] == pytest.approx(0.015, rel=0.1)
    assert overview["headline"].startswith("Rank 3 (host b) is slow: its compute")
    assert overview["stragglers"][0]["reason"] == "compute"
    assert overview["events"] == [EVENT]
    assert overview["buckets"][0]["name"] == "gradients/bucket0"
    assert len(overview["losses"]["epoch_loss"]["values"]) == 200
    assert overview["losses"]["epoch_loss, validation"]["values"] == [0.25]


def test_heat_maps_and_steps(logdir):
    board = Board(logdir)
    map_ = board.json("heat_map?run=train&value=waited_for")
    assert map_["ranks"] == [0, 1, 2, 3]
    assert map_["hosts"] == ["a", "a", "b", "b"]
    assert map_["seconds"][3][-1] == pytest.approx(0.02, rel=0.1)
    assert map_["seconds"][0][-1] == 0
    step = board.json("step?run=train&step=7")
    assert [rank["last_rank"] for rank in step["ranks"]] == [3, 3, 3, None]
    assert board.json("step?run=train&step=8")["ranks"] == []


def test_a_run_that_is_still_going(tmp_path):
    series = updates(even, count=40)
    write_run(tmp_path, series[:20])
    board = Board(tmp_path)
    assert len(board.json("overview?run=train")["means"]["steps"]) == 20
    # Another file, as of a job that was started again in the same folder; their
    # names have the second in them.
    time.sleep(1.1)
    write_run(tmp_path, series[20:])
    board.reload()
    steps = board.json("overview?run=train")["means"]["steps"]
    assert steps[-1] == 40 * STEPS_PER_UPDATE


def test_a_job_that_begins_anew_in_the_same_folder(tmp_path):
    def first(rank, step):
        return (0.070 if rank == 1 else 0.050), 0.001

    write_run(tmp_path, updates(first, count=100), (EVENT,))
    time.sleep(1.1)
    second = updates(even, count=10)
    later = {**EVENT, "time": BEGAN_AT + 1000}
    write_run(tmp_path, second, (later,), began_at=BEGAN_AT + 1000, size_of_steps=2)
    board = Board(tmp_path)
    overview = board.json("overview?run=train")
    assert overview["headline"].startswith("No rank holds the others up: the ranks")
    assert overview["stragglers"] == []
    assert overview["means"]["steps"] == [10 * n for n in range(1, 11)]
    assert board.json("heat_map?run=train")["steps"] == overview["means"]["steps"]
    assert max(one["waited_for"] for one in overview["by_rank"]) < 0.001
    # Its own word on step 7, and what happened in both.
    assert len(board.json("step?run=train&step=7")["ranks"]) == 2
    assert overview["events"] == [EVENT, later]


def test_since_when_is_within_the_session(tmp_path):
    write_run(tmp_path, updates(even, count=100))
    time.sleep(1.1)
    series = updates(slow_compute, count=160)[60:]
    write_run(tmp_path, series, began_at=BEGAN_AT + 1000)
    overview = Board(tmp_path).json("overview?run=train")
    # It went on at step 600, from a backup.
    assert overview["means"]["steps"] == [10 * n for n in range(1, 161)]
    assert "since step 1,191;" in overview["headline"]


@pytest.mark.slow
def test_256_ranks(tmp_path):
    write_run(tmp_path, updates(slow_compute, size=256, count=130))
    board = Board(tmp_path)
    overview = board.json("overview?run=train")
    assert overview["stragglers"][0]["who"].startswith("Rank 3 ")
    assert len(board.json("heat_map?run=train")["seconds"]) == 256


@pytest.mark.parametrize(
    "path", ["overview", "heat_map?run=train&value=x", "step?run=train&step=x"]
)
def test_a_question_that_is_none(logdir, path):
    response = Board(logdir).get(path)
    assert response.status_code == 400
    assert "Received" in response.text


def test_a_folder_without_our_data(tmp_path):
    board = Board(tmp_path)
    assert not board.listing()["enabled"]
    assert board.json("runs") == []
    headline = board.json("overview?run=x")["headline"]
    assert headline.startswith("No step has been measured yet.")


def test_tensorboard_shows_a_tab(logdir):
    listing = Board(logdir).listing()
    assert listing["enabled"]
    assert listing["tab_name"] == "Ring"
    assert listing["loading_mechanism"]["type"] == "IFRAME"
