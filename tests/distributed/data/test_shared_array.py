"""Arrays of which a host has one copy, however many ranks it has."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import os
import re
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks
from support.processes import wait_until
from support.ringrun import Ringrun

import ring_keras as ring

MAPPING = re.compile(r"/memfd:ring_keras_array \S+ (\w+) \(deleted\)$")
ROWS, COLUMNS = 1 << 18, 240  # Rows of 960 bytes: TensorFlow's memory is in 64s.


def memory() -> collections.Counter[str]:
    """How many bytes this process has a share in, of each shared array by its name."""
    shares: collections.Counter[str] = collections.Counter()
    name = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=1)
        if not first.endswith(":"):
            found = MAPPING.search(line)
            name = found and found[1]
            if name:
                shares[name] += 0
        elif name and first == "Pss:":
            shares[name] += int(rest[0].split()[0]) << 10
    return shares


def anonymous_nbytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)[1]) << 10


def structure() -> dict[str, object]:
    rng = np.random.default_rng(1)
    return {
        "pair": (rng.normal(size=(7, 5)), np.arange(6, dtype=np.uint8).reshape(2, 3).T),
        "list": [np.array(3), np.zeros((0, 3), np.int8), np.array(["ä", "text"])],
        "half": rng.normal(size=9).astype(np.float16),
        "brain": np.asarray(tf.cast(tf.range(5), tf.bfloat16)),
        "days": np.array(["2026-01-31"], "datetime64[D]"),
        "records": np.array([(1, 2.5)], [("number", "<i4"), ("value", "<f8")]),
    }


def every_kind_worker() -> int:
    loads = 0

    def load() -> dict[str, object]:
        nonlocal loads
        loads += 1
        return structure()

    shared, expected = ring.data.shared_array(load), structure()
    tf.nest.assert_same_structure(shared, expected)
    for ours, theirs in zip(*map(tf.nest.flatten, (shared, expected)), strict=True):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    x = shared["pair"][0]
    with pytest.raises(ValueError, match="read-only"):
        x[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        x.flags.writeable = True
    # What is computed from it is an ordinary array.
    for computed in (x * 2, x[[1, 2]], x.sum(axis=0), np.sqrt(abs(x))):
        assert type(computed) is np.ndarray
        assert computed.flags.writeable
    assert isinstance(x.sum(), float)
    for leaf in (x, x[2:4], x[:, 1], shared["half"], shared["brain"]):
        np.testing.assert_array_equal(tf.convert_to_tensor(leaf), leaf)
    assert tf.convert_to_tensor(x, tf.float32).dtype == tf.float32
    return loads


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.slow),
        2,
        pytest.param(3, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_have_what_the_first_one_loads(rank_pool, size):
    assert rank_pool(size).run(every_kind_worker) == [1] + [0] * (size - 1)


def files_worker(path: str) -> None:
    x = ring.data.shared_array(f"{path}/x.npy")
    both = ring.data.shared_array(Path(path, "both.npz"))
    np.testing.assert_array_equal(x, np.arange(12).reshape(3, 4))
    assert both.keys() == {"a", "b"}
    np.testing.assert_array_equal(both["b"], x * 2)
    # An array that the first rank alone has.
    mine = x + 1 if ring.rank() == 0 else None
    np.testing.assert_array_equal(ring.data.shared_array(mine), x + 1)
    part = ring.data.shard((x, both["b"]), remainder="keep")
    np.testing.assert_array_equal(part[1], part[0] * 2)
    everyones = np.concatenate(ring.allgather_object(part[0]))
    assert sorted(everyones.ravel()) == list(range(12))


def test_files_and_arrays_are_shared_too(rank_pool, tmp_path):
    x = np.arange(12).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    np.savez_compressed(tmp_path / "both.npz", a=x, b=x * 2)
    rank_pool(2).run(files_worker, args=[str(tmp_path)])


def one_copy_worker(use: str) -> tuple[int, int]:
    """How many bytes this rank's share of the array is, and how many others it has."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    before = anonymous_nbytes()
    x = ring.data.shared_array(lambda: np.ones((ROWS, COLUMNS), np.float32))
    if use == "numpy":
        assert x[:: ROWS // 64].sum() == 64 * COLUMNS
    elif use == "slices":
        dataset = tf.data.Dataset.from_tensor_slices(x)
        batches = iter(ring.data.shard(dataset).batch(64).with_options(options))
        assert next(batches).shape == (64, COLUMNS)
    elif use == "rows":
        rows = ring.data.shard(tf.data.Dataset.range(len(x)), seed=1).batch(64)
        dataset = rows.map(lambda row: tf.gather(x, row)).with_options(options)
        batches = iter(dataset)
        assert next(batches).shape == (64, COLUMNS)
    else:
        model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        y = np.zeros((ROWS, 1), np.float32)
        model.fit(x, y, batch_size=64, steps_per_epoch=3, verbose=0)
    assert x[::4, 0].sum() == ROWS / 4  # Of every page.
    ring.barrier()
    shares = memory()
    others = anonymous_nbytes() - before
    ring.barrier()
    assert len(shares) == 1
    return shares.total(), others


@pytest.mark.parametrize(
    "use",
    [
        "numpy",
        pytest.param("slices", marks=pytest.mark.slow),
        pytest.param("rows", marks=pytest.mark.slow),
        pytest.param("fit", marks=pytest.mark.slow),
    ],
)
def test_three_ranks_hold_one_copy(rank_pool, use):
    nbytes = ROWS * COLUMNS * 4

    shares, others = zip(*rank_pool(3).run(one_copy_worker, args=[use]), strict=True)

    assert nbytes <= sum(shares) < 1.01 * nbytes
    assert max(shares) < 0.4 * nbytes
    # TensorFlow has none beside it.
    assert max(others) < 0.5 * nbytes


def lifetime_worker() -> None:
    x = ring.data.shared_array(lambda: np.arange(3000.0).reshape(3, 1000))
    assert len(memory()) == 1
    view, tensor = x[1], tf.convert_to_tensor(x[2])
    del x
    gc.collect()
    assert view.sum() == np.arange(1000.0, 2000).sum()
    del view
    gc.collect()
    assert len(memory()) == 1
    np.testing.assert_array_equal(tensor, np.arange(2000.0, 3000))
    del tensor
    gc.collect()
    assert not memory()
    assert not any(map(MAPPING.search, open_files()))


def open_files() -> list[str]:
    names = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That by which they were listed.
            names.append(str(path.readlink()))
    return names


def test_memory_stays_as_long_as_a_view_of_it(rank_pool):
    rank_pool(2).run(lifetime_worker)


def failures_worker() -> None:
    def fail() -> None:
        raise OSError("no such disk")

    with pytest.raises(ring.RankMismatchError, match="failed on rank 0: OSError: no"):
        ring.data.shared_array(fail)
    with pytest.raises(ring.RankMismatchError, match=r"and dicts\. Received: int"):
        ring.data.shared_array(lambda: [1, 2])
    with pytest.raises(ring.RankMismatchError, match="Received: ndarray of Python ob"):
        ring.data.shared_array(lambda: np.array([[1], [2, 3]], object))
    np.testing.assert_array_equal(ring.data.shared_array(lambda: np.ones(2)), [1, 1])


def test_what_cannot_be_loaded_is_an_error_on_all_ranks(rank_pool):
    rank_pool(2).run(failures_worker)


def two_hosts_worker() -> tuple[str, ...]:
    ring.init(process_sets=[[0, 1], [2, 3]])
    host = ring.rank() // 2
    x = ring.data.shared_array(lambda: np.full(5, 7.0))
    names = list(memory())
    with pytest.raises(ring.RankMismatchError) as shapes:
        ring.data.shared_array(lambda: np.zeros(3 + host))
    assert "rank 0 has loaded <f8[3], rank 2 <f8[4]" in str(shapes.value)
    with pytest.raises(ring.RankMismatchError, match="rank 2 others of the same sh"):
        ring.data.shared_array(lambda: np.full(5, host))
    own = [ring.ProcessSet([0, 1]), ring.ProcessSet([2, 3])]
    ring.init(process_sets=own)
    y = ring.data.shared_array(lambda: np.full(5, host), process_set=own[host])
    assert (x == 7).all()
    assert (y == host).all()
    return tuple(names)


def test_the_first_rank_of_each_host_loads():
    env = [{"RING_KERAS_HOST_NAME": name} for name in ("a", "a", "b", "b")]

    a, a_too, b, b_too = run_ranks(two_hosts_worker, 4, env=env)

    assert a == a_too
    assert b == b_too
    assert a != b


def killed_worker() -> float:
    ring.init()
    x = ring.data.shared_array(lambda: np.arange(1e6))
    ring.barrier()
    if ring.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ring.PeerLostError):
        ring.barrier()
    ring.shutdown()
    child = os.fork()
    if child == 0:
        os._exit(0 if x[-1] == 1e6 - 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    return float(x.sum())


def test_an_array_outlives_the_rank_that_loaded_it():
    killed, other = run_ranks(killed_worker, 2, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert other.result == np.arange(1e6).sum()


_PR_SET_DUMPABLE = 4


def own_copy_worker() -> tuple[float, list[str]]:
    if os.environ["RING_KERAS_RANK"] == "0":
        # Then only those with CAP_SYS_PTRACE may look at what it has open.
        assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    ring.init()
    x = ring.data.shared_array(lambda: np.arange(1e4))
    return float(x.sum()), list(memory())


@pytest.mark.slow
def test_a_rank_that_may_not_map_the_memory_has_a_copy_of_its_own():
    without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    prefix = [[], without if os.geteuid() == 0 else []]

    outcomes = run_ranks(own_copy_worker, 2, command_prefix=prefix, check=False)

    assert all(one.ok for one in outcomes), outcomes
    (total, names), (other_total, other_names) = (one.result for one in outcomes)
    assert total == other_total == np.arange(1e4).sum()
    assert set(names).isdisjoint(other_names)
    assert "rank 1 loads a copy of its own, as it cannot map" in outcomes[1].stderr


_REPLACED = """
import re
import numpy as np, tensorflow as tf
import ring_keras as ring

number, loads = rank, 0
ring.init()

def load():
    global loads
    loads += 1
    return np.arange(1e5), np.full(3, 7)

x, y = ring.data.shared_array(load)
other = ring.data.shared_array(lambda: np.zeros(9))
state = ring.elastic.TensorFlowState([tf.Variable(0.0)], step=0, stop=0.0)
note(f"pid.{number}", os.getpid())

@ring.elastic.run
def train(state):
    while state.stop == 0:
        stops = tf.constant(float((here / "stop").exists()))
        state.stop = float(ring.allreduce(stops, name="stop"))
        state.step += 1
        state.commit()
        if ring.size() == 2:
            note(f"running.{number}.{ring.rank()}")
        time.sleep(0.01)

train(state)
assert (y == 7).all() and x.sum() == np.arange(1e5).sum() and not other.any()
maps = open("/proc/self/maps").read()
names = re.findall("ring_keras_array [0-9a-f]+ ([0-9a-f]+)", maps)
note(f"end.{number}", f"{loads} {sorted(names)}")
"""


@pytest.mark.slow
def test_a_rank_that_replaces_a_lost_one_maps_what_the_others_have(tmp_path):
    ringrun = Ringrun(tmp_path)
    try:
        options = ["--min-np", "1", "--max-np", "2"]
        options += ["--blacklist-cooldown-range", "0", "0"]
        job = ringrun.start(_REPLACED, *options, size=2)
        for number in (0, 1):
            ringrun.noted(f"running.{number}.{number}")

        os.kill(ringrun.pids("pid.0")[0], signal.SIGKILL)

        running = tmp_path / "running.2.1"
        wait_until(running.exists, "process 2 trains as rank 1", timeout_s=90)
        (tmp_path / "stop").touch()
        finished = ringrun.finish(job)
    finally:
        ringrun.close()
    assert finished.returncode == 0, finished.stderr.decode()
    loads, names = ringrun.noted("end.2").split(maxsplit=1)
    assert loads == "0"
    assert names == ringrun.noted("end.1").split(maxsplit=1)[1]
    assert names.count(",") == 1
