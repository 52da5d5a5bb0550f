"""Samples of tars and of TFRecords, of which each rank reads whole files."""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from support.object_stores import KINDS

import ring_keras as ring

DOCS = (Path(__file__).parents[3] / "docs/data.md").read_text()
# Of samples, by file.
COUNTS = [5, 3, 4]


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:
        directory = tarfile.TarInfo("images")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def image(number: int) -> bytes:
    return tf.io.encode_jpeg(tf.fill([8, 8, 3], tf.cast(number, tf.uint8))).numpy()


def tars() -> dict[str, bytes]:
    """By name, numbered images and their classes."""
    numbers = itertools.count()
    return {
        f"train-{file}.tar": tar_of(
            {
                f"{number:04}.{ending}": content
                for number in itertools.islice(numbers, count)
                for ending, content in (
                    ("jpg", image(number)),
                    ("cls", b"%d" % (number % 2)),
                )
            }
        )
        for file, count in enumerate(COUNTS)
    }


def samples_of(path, endings):
    samples = ring.data.read_tar(str(path), endings).as_numpy_iterator()
    return [tuple(sample.values()) for sample in samples]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_sample_is_what_has_one_name(tmp_path, mode):
    files = {
        "./a/1.jpg": b"1",
        "./a/1.seg.png": b"one",
        "./a/1.txt": b"no",
        "./b/1.seg.png": b"two",
        "./b/1.jpg": b"",
        "README": b"none",
        "v1.0/c.jpg": b"3",
        "v1.0/c.seg.png": b"three",
    }
    path = tmp_path / "samples.tar"
    path.write_bytes(tar_of(files, mode))

    assert samples_of(path, ["jpg", "seg.png"]) == [
        (b"./a/1", b"1", b"one"),
        (b"./b/1", b"", b"two"),
        (b"v1.0/c", b"3", b"three"),
    ]
    assert samples_of(path, []) == [(b"./a/1",), (b"./b/1",), (b"v1.0/c",)]
    with pytest.raises(tf.errors.OpError, match=r"no file that ends with \['txt'\]"):
        samples_of(path, ["jpg", "txt"])


def test_what_is_cut_off_is_an_error(tmp_path):
    path = tmp_path / "samples.tar"
    path.write_bytes(tar_of({"1.jpg": b"1" * 2000})[:2000])

    with pytest.raises(tf.errors.OpError, match="unexpected end of data"):
        samples_of(path, ["jpg"])


@pytest.mark.parametrize("where", ["between samples", "in a header", "flipped"])
def test_a_tar_without_its_end_is_an_error(tmp_path, where):
    content = bytearray(tar_of({"1.jpg": b"1", "2.jpg": b"2"}))
    # A header and a block of content each, after the directory's header.
    second = 3 * 512
    assert content[second : second + 5] == b"2.jpg"
    if where == "flipped":
        content[second] ^= 1
    else:
        del content[second + (100 if where == "in a header" else 0) :]
    path = tmp_path / "samples.tar"
    path.write_bytes(content)

    with pytest.raises(tf.errors.OpError, match="cut off or damaged, 1536 bytes"):
        samples_of(path, ["jpg"])


def block(section: str, number: int) -> str:
    text = DOCS.split(f"## {section}\n")[1].split("\n## ")[0]
    return text.split("```python\n")[1 + number].split("```")[0]


def documented_worker(path, code):
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(1e-5)), loss)
    names = {"ring": ring, "tf": tf, "path": path, "model": model}
    exec(code, names)
    keys = [sample["__key__"] for sample in names["samples"].as_numpy_iterator()]
    return [weight.tobytes() for weight in model.get_weights()], keys


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        1,
        2,
        3,
    ],
)
def test_what_the_docs_show_of_tars_runs(rank_pool, tmp_path, size):
    for name, content in tars().items():
        (tmp_path / name).write_bytes(content)

    results = rank_pool(size).run(
        documented_worker, args=(str(tmp_path), block("Tars and TFRecords", 0))
    )

    assert all(weights == results[0][0] for weights, _ in results)
    keys = sorted(itertools.chain(*(keys for _, keys in results)))
    assert keys == [b"%04d" % number for number in range(sum(COUNTS))]


def remote_worker(address, code):
    import fsspec

    files = KINDS["s3"].file_system(address)
    if ring.rank() == 0:
        files.mkdir("bucket")
        for name, content in tars().items():
            files.pipe_file(f"bucket/{name}", content)
        for number in range(3):
            with fsspec.open(f"s3://bucket/train-{number}.tfrecord", "wb") as file:
                file.write(records_of([f"{number}-{n}" for n in range(number)]))
    ring.barrier(name="written")
    names = {"ring": ring, "tf": tf, "fsspec": fsspec}
    exec(code, names)
    tars_of_rank = ring.data.shard_files("s3://bucket/train-*.tar", seed=1)
    samples = tars_of_rank.interleave(lambda name: ring.data.read_tar(name, ["cls"]))
    keys = [sample["__key__"] for sample in samples.as_numpy_iterator()]
    return keys, list(names["examples"].as_numpy_iterator())


def records_of(contents: list[str]) -> bytes:
    name = f"ram://records-{len(contents)}"  # It appends to what is there.
    with tf.io.TFRecordWriter(name) as writer:
        for content in contents:
            writer.write(content)
    return tf.io.gfile.GFile(name, "rb").read()


@pytest.mark.slow
def test_files_in_an_object_store(rank_pool):
    if missing := KINDS["s3"].missing():
        pytest.skip(f"needs the extra test-remote: there is no {missing}")
    code = block("Tars and TFRecords", 1)
    with KINDS["s3"].served() as (address, _):
        results = rank_pool(2).run(remote_worker, args=(address, code))

    keys, examples = (
        sorted(itertools.chain(*parts)) for parts in zip(*results, strict=True)
    )
    assert keys == [b"%04d" % number for number in range(sum(COUNTS))]
    assert examples == [b"1-0", b"2-0", b"2-1"]
