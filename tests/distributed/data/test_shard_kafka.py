"""Each message that topics hold goes to one rank, and errors go to all."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from support.kafka_broker import Broker

COUNTS = [5, 0, 41, 17]
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def broker():
    made = Broker()
    made.write("refused", [2, 2, 0, 0])
    return made


def batches_of(topics, offsets, config, **kwargs):
    part = ring.data.shard_kafka(topics, offsets, config=config, resume=None, **kwargs)
    count = int(part.cardinality())
    batches = list(part.as_numpy_iterator())
    assert len(batches) == count
    return batches


def numbers_of(batches):
    return [[int(value) for value in batch["value"]] for batch in batches]


def all_worker(topic, path, config, batch_size):
    part = ring.data.shard_kafka(
        topic, path, config=config, batch_size=batch_size, resume=None
    )
    passes = [list(part.as_numpy_iterator()) for _ in range(2)]
    for batch in passes[0]:
        for number, key in zip(batch["value"], batch["key"], strict=True):
            assert key == b"key " + number
        assert set(batch["topic"]) <= {topic.encode()}
        assert (batch["timestamp_ms"] > 0).all()
        starts = {0: 0, 2: 5, 3: 46}
        for number, partition, offset in zip(
            *(batch[name] for name in ("value", "partition", "offset")), strict=True
        ):
            assert int(number) == starts[int(partition)] + offset
    assert numbers_of(passes[0]) == numbers_of(passes[1])
    return int(part.cardinality()), numbers_of(passes[0])


# Each size and each batch size often, all pairs of them in the slow quarters.
OFTEN = [(1, 100), (2, 4)]


@pytest.mark.parametrize(
    ("size", "batch_size"),
    [
        pytest.param(
            size,
            batch_size,
            marks=() if (size, batch_size) in OFTEN else pytest.mark.slow,
        )
        for size in (1, 2, 3, 4)
        for batch_size in (2, np.int64(4), 100)
    ],
)
def test_each_message_is_on_one_rank(rank_pool, broker, tmp_path, size, batch_size):
    topic = f"all-{size}-{batch_size}"
    broker.write(topic, COUNTS)

    results = rank_pool(size).run(
        all_worker,
        args=(topic, str(tmp_path / "new" / "offsets"), broker.config, batch_size),
    )

    assert len({count for count, _ in results}) == 1
    batches = [batch for _, batches in results for batch in batches]
    assert sorted(itertools.chain(*batches)) == list(range(TOTAL))
    sizes = set(map(len, batches))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert [count for count, _ in results] == [len(batches) for _, batches in results]


def later_worker(topic, directory, config, after):
    offsets = f"{directory}/{'later' if after else 'first'}.json"
    kwargs = {"after": f"{directory}/first.json"} if after else {}
    return numbers_of(batches_of([topic], offsets, config, batch_size=8, **kwargs))


def test_messages_that_come_later_are_of_a_later_job(rank_pool, broker, tmp_path):
    directory = str(tmp_path)
    ranks = rank_pool(2)

    def read(after=False):
        results = ranks.run(
            later_worker, args=("later", directory, broker.config, after)
        )
        return sorted(itertools.chain(*itertools.chain(*results)))

    broker.write("later", [20, 1, 0, 3])
    assert read() == list(range(24))
    broker.write("later", [0, 2, 9, 0], first=24)
    assert read() == list(range(24))
    assert read(after=True) == list(range(24, 35))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.json",
        "later.json",
    ]


def refused_worker(topic, path, config, kwargs):
    with pytest.raises((ring.RingKerasError, ValueError)) as caught:
        ring.data.shard_kafka(
            **{
                "topics": topic,
                "offsets": path,
                "config": config,
                "batch_size": 4,
                "resume": None,
                **kwargs,
            }
        )
    return type(caught.value).__name__, str(caught.value)


KEPT = {
    "topics": ["refused"],
    "ranks": 2,
    "batch_size": 4,
    "after": None,
    "offsets": [["refused", 0, 0, 2], ["refused", 1, 0, 2]],
    "first_step": None,
    "epochs": 0,
}


@pytest.mark.parametrize(
    ("change", "kwargs", "error", "message"),
    [
        ({"batch_size": 5}, {}, "ValueError", "batch_size=5, not 4"),
        ({"ranks": 3}, {}, "ValueError", "ranks=3, not 2"),
        (
            {},
            {"topics": ["refused", "other"]},
            "ValueError",
            "not ['other', 'refused']",
        ),
        ({"after": "x"}, {}, "ValueError", "after='x', not None"),
        ({}, {"after": "others"}, "ValueError", "after=None, not 'others'"),
        (None, {"after": "later"}, "ValueError", "ends at offset 7 of partition 0"),
        (None, {"after": "all"}, "ValueError", "have 0"),
        (None, {"after": "more"}, "ValueError", "not here: [('gone', 3)]"),
        (None, {"after": "nothing"}, "RingKerasError", "No such file"),
        ("{", {}, "ValueError", "was not written by"),
        ("[1]", {}, "ValueError", "was not written by"),
        ({"first_step": "3"}, {}, "ValueError", "'first_step'"),
        ({"offsets": [["refused", 0, 0, None]]}, {}, "ValueError", "'offsets'"),
        ({"offsets": [["refused", 0, 0, 2]] * 2}, {}, "ValueError", "'offsets'"),
        (None, {"batch_size": 0}, "ValueError", "at least 1"),
        (None, {"batch_size": 4.0}, "ValueError", "at least 1"),
        (None, {"topics": []}, "ValueError", "one at least"),
        (None, {"offsets": "s3://bucket/offsets"}, "ValueError", "not a URL"),
        (None, {"topics": "not-there"}, "RingKerasError", "of topic 'not-there'"),
        (None, {"config": {"no.such": 1}}, "RingKerasError", "no.such"),
        (None, {"config": {"auto.offset.reset": "latest"}}, "ValueError", "'latest'"),
        (None, {"config": {"group.instance.id": "a"}}, "ValueError", "no consumer"),
    ],
)
def test_what_cannot_be_read_is_refused_alike(
    rank_pool, broker, tmp_path, change, kwargs, error, message
):
    path = tmp_path / "offsets.json"
    if isinstance(change, str):
        path.write_text(change)
    elif change is not None:
        path.write_text(json.dumps({**KEPT, **change}))
    everything = KEPT["offsets"]
    for name, offsets in {
        "later": [["refused", 0, 0, 7], ["refused", 1, 0, 2]],
        "all": everything,
        "more": [*everything, ["gone", 3, 0, 1]],
    }.items():
        topics = sorted({topic for topic, *_ in offsets})
        content = {**KEPT, "topics": topics, "offsets": offsets}
        (tmp_path / name).write_text(json.dumps(content))
    if "after" in kwargs:
        kwargs = {"after": str(tmp_path / kwargs["after"])}
    if "config" in kwargs:
        kwargs = {"config": {**broker.config, **kwargs["config"]}}

    first, second = rank_pool(2).run(
        refused_worker, args=("refused", str(path), broker.config, kwargs)
    )

    assert first == second
    assert first[0] == error
    assert message in first[1]
    assert path.exists() == (change is not None)


def test_a_file_that_cannot_be_written_is_told_on_all_ranks(
    rank_pool, broker, tmp_path
):
    (tmp_path / "file").touch()
    arguments = ("refused", str(tmp_path / "file" / "offsets"), broker.config, {})

    first, second = rank_pool(2).run(refused_worker, args=arguments)

    assert first == second
    assert first[0] == "RingKerasError"


def test_one_message_a_batch_must_be_enough_for_all(rank_pool, broker, tmp_path):
    broker.write("odd", [3, 0, 0, 0])
    arguments = ("odd", str(tmp_path / "offsets"), broker.config, {"batch_size": 1})

    first, second = rank_pool(2).run(refused_worker, args=arguments)

    assert first == second
    assert "Take a larger batch_size" in first[1]
    assert not list(tmp_path.iterdir())


def differing_worker(path, config, by_rank):
    kwargs = by_rank[ring.rank()]
    if "resume" in kwargs:
        kwargs["resume"] = ring.data.Resume()
    return refused_worker("refused", path, config, kwargs)


@pytest.mark.parametrize(
    ("by_rank", "messages"),
    [
        ([{}, {"batch_size": 5}], ["batch_size=4", "batch_size=5"]),
        ([{}, {"topics": ["a"]}], ["topics=['refused']", "topics=['a']"]),
        ([{}, {"after": "/a"}], ["after=None", "/a'"]),
        ([{}, {"offsets": "/a"}], ["rank 1 has", "offsets='/a'"]),
        ([{}, {"resume": "one"}], ["resume=None, rank 1 has"]),
        ([{}, {"batch_size": None}], ["failed on rank 1: ValueError", "size=None"]),
        ([{"batch_size": -1}, {}], ["failed on rank 0: ValueError", "size=-1"]),
    ],
)
def test_arguments_are_the_same(rank_pool, broker, tmp_path, by_rank, messages):
    arguments = (str(tmp_path / "offsets"), broker.config, by_rank)

    first, second = rank_pool(2).run(differing_worker, args=arguments)

    assert first == second
    assert first[0] == "RankMismatchError"
    assert all(message in first[1] for message in messages)
    assert not list(tmp_path.iterdir())


def without_the_package_worker(path):
    kept = {n: m for n, m in sys.modules.items() if n.startswith("confluent_kafka")}
    sys.modules.pop("ring_keras.data.kafka_messages", None)
    if ring.rank() == 1:
        sys.modules.update(dict.fromkeys([*kept, "confluent_kafka"]))
    try:
        message = r'rank 1: ImportError.*install "ring-keras\[kafka\]"'
        with pytest.raises(ring.RankMismatchError, match=message):
            ring.data.shard_kafka("t", path, batch_size=2, config={}, resume=None)
    finally:
        sys.modules.pop("confluent_kafka", None)
        sys.modules.update(kept)


def test_a_rank_without_the_package_is_told_to_all(rank_pool, tmp_path):
    rank_pool(2).run(without_the_package_worker, args=(str(tmp_path / "offsets"),))


def unreadable_worker(topic, path, config):
    from ring_keras.data import kafka_messages

    errors = []
    part = ring.data.shard_kafka(
        topic,
        path,
        batch_size=4,
        config={**config, "error_cb": errors.append},
        resume=None,
    )
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(kafka_messages, "PATIENCE_S", 2.0)
        with pytest.raises(tf.errors.OpError) as caught:
            list(part)
    return str(caught.value), len(errors)


@pytest.mark.parametrize(
    ("first", "brokers", "message"),
    [
        (8, None, "cannot read offsets 8 to 11 of partition 0 of 'short-8-True'"),
        (0, None, "nothing came from 3 on for 2 s"),
        pytest.param(
            *(
                0,
                "127.0.0.1:9",
                "nothing came from 0 on for 2 s. Kafka says KafkaError",
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_messages_that_are_not_there_are_missed(
    rank_pool, broker, tmp_path, first, brokers, message
):
    topic = f"short-{first}-{brokers is None}"
    broker.write(topic, [3, 0, 0, 0])
    path = tmp_path / "offsets.json"
    offsets = [[topic, 0, first, 20]]
    job = {**KEPT, "topics": [topic], "ranks": 1, "offsets": offsets}
    path.write_text(json.dumps(job))
    config = broker.config if brokers is None else {"bootstrap.servers": brokers}

    ((said, errors),) = rank_pool(1).run(
        unreadable_worker, args=(topic, str(path), config)
    )

    assert message in said
    assert (errors > 0) == (brokers is not None)


def test_offsets_without_messages_are_told(rank_pool, broker, tmp_path):
    broker.write_in_transactions("holes", 1, list("01234567"), at_once=8)
    path = str(tmp_path / "offsets.json")

    ((said, _),) = rank_pool(1).run(
        unreadable_worker, args=("holes", path, broker.config)
    )

    assert "no message at offsets 8 to 11 of partition 1 of 'holes'" in said
    assert "a larger `batch_size`" in said


def test_batches_are_smaller_where_offsets_have_none(rank_pool, broker, tmp_path):
    values = [str(number) for number in range(9)]
    broker.write_in_transactions("marked", 2, values)
    path = str(tmp_path / "offsets.json")

    results = rank_pool(2).run(holes_worker, args=("marked", path, broker.config))

    assert sorted(itertools.chain(*itertools.chain(*results))) == list(range(9))


def holes_worker(topic, path, config):
    return numbers_of(batches_of(topic, path, config, batch_size=4))
