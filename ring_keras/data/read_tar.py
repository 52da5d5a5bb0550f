"""Samples of tar files, as WebDataset has them."""

import itertools
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ring_keras.data.file_systems import opened

__all__ = ["read_tar"]

# The sample, with its directories, and the ending, from the first dot on.
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")


def read_tar(name: str | tf.Tensor, endings: Sequence[str]) -> tf.data.Dataset:
    """Returns the samples of a tar file.

    A sample consists of consecutive files whose names differ only in their endings: the
    first dot and everything after it:

    ```python
    files = ring.data.shard_files("s3://bucket/train-*.tar", seed=1)
    samples = files.interleave(
        lambda name: ring.data.read_tar(name, ["jpg", "cls"]),
        cycle_length=4, num_parallel_calls=4)
    train = samples.shuffle(1000).map(decode).batch(32).prefetch(2)
    model.fit(ring.data.join(train), ...)
    ```

    Examples:
        >>> import tarfile
        >>> with ring.callbacks.RootOnly() as is_root:
        ...     if is_root:
        ...         np.savetxt("1.txt", x[0])
        ...         with tarfile.open("train.tar", "w") as tar:
        ...             tar.add("1.txt")
        >>> [sample["__key__"] for sample in
        ...  ring.data.read_tar("train.tar", ["txt"]).as_numpy_iterator()]
        [b'1']

    Args:
        name: The name of the file, compressed or not: a string, or a scalar in a
            function of tf.data. It is on this host, or a URL that TensorFlow or fsspec
            knows.
        endings: The endings to read, without the first dot. Every sample must have
            them. Other files are skipped.

    Returns:
        A dataset of dicts of strings: "__key__", the sample's name, and for each ending
        the contents of the file. Reading a truncated file, a damaged header, or a
        sample without an ending raises an error.
    """
    endings = list(endings)
    spec = tf.TensorSpec([], tf.string)
    return tf.data.Dataset.from_generator(
        lambda name: _samples(bytes(name).decode(), endings),
        args=[name],
        output_signature=dict.fromkeys(("__key__", *endings), spec),
    )


class _Member(tarfile.TarInfo):
    """A member whose header is whole: tarfile itself takes a broken one for the end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise tarfile.ReadError(
                f"cut off or damaged, {archive.offset} bytes from its start: {error}"
            ) from None


def _samples(name: str, endings: list[str]) -> Iterator[dict[str, Any]]:
    with (
        opened(name) as file,
        tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member) as tar,
    ):
        members = ((member, _NAME.fullmatch(member.name)) for member in tar)
        named = ((m, *match.groups()) for m, match in members if match and m.isfile())
        for key, group in itertools.groupby(named, lambda one: one[1]):
            contents = {
                ending: tar.extractfile(member).read()  # type: ignore[union-attr]
                for member, _, ending in group
                if ending in endings
            }
            missing = [ending for ending in endings if ending not in contents]
            if missing:
                raise ValueError(
                    f"ring_keras.data.read_tar: in {name}, sample {key!r} has no file "
                    f"that ends with {missing}. Write them next to each other, or "
                    "leave such samples out."
                )
            yield {"__key__": key, **contents}
