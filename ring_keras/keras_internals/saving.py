"""A model as a file, without a file system, and what such a file has of it."""

import contextlib
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from ring_keras.keras_internals.names import SAVE_VARIABLES
from ring_keras.keras_internals.optimizers import inner_optimizers, optimizers_of
from ring_keras.keras_internals.replacing import replace, replacement, restore

__all__ = [
    "FileGroup",
    "archive_without_weights",
    "file_groups",
    "run_through_weights_file",
    "weights_file",
    "with_inner",
    "with_weights",
    "write_groups",
]


def weights_file(model: keras.Model) -> memoryview:
    """What `model.save_weights` would write now: weights and the optimizer's state.

    Args:
        model: A built one.

    Returns:
        The contents of a ".weights.h5", which do not change with the model.
    """
    saving = keras.src.saving.saving_lib
    file = io.BytesIO()
    store = saving.H5IOStore(file, mode="w")
    saving._save_state(model, store, None, "", set())
    store.close()
    return file.getbuffer()


def run_through_weights_file(model: keras.Model) -> None:
    """Does all that `weights_file` does, and keeps nothing.

    For ranks that take part in another one's file.
    """
    saving: Any = keras.src.saving.saving_lib
    store: Any = saving.H5IOStore

    class Forgetful(store):  # type: ignore[misc]
        """Makes no file."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: Any = None) -> "_Nothing":
            return _Nothing()

    saving._save_state(model, Forgetful(), None, "", set())


class _Nothing(dict[str, Any]):
    """Keeps none of what it is given."""

    def __setitem__(self, name: str, value: Any) -> None:
        pass


@dataclass
class FileGroup:
    """What one layer or optimizer has in a file of weights.

    Attributes:
        path: In the file.
        metadata: What Keras notes there, if anything.
        values: By their names there. In a model's groups: what is saved, variables in
            place of their values.
    """

    path: str
    metadata: dict[str, str] | None
    values: dict[str, Any] = field(default_factory=dict)


def file_groups(model: keras.Model) -> list[FileGroup]:
    """What `weights_file` writes, in its order, with the variables themselves."""
    return _walk(model, None)


def write_groups(
    file: Path | io.BytesIO,
    groups: list[FileGroup],
    value_of: Callable[[Any], Any],
) -> None:
    """A file of weights, as Keras writes it; one value at a time is in memory for it.

    Args:
        file: That is to be written.
        groups: In their order.
        value_of: Gives the array for what stands in a group.
    """
    store = keras.src.saving.saving_lib.H5IOStore(file, mode="w")
    with contextlib.closing(store):
        for group in groups:
            noted = {} if group.metadata is None else {"metadata": group.metadata}
            entry = store.make(group.path, **noted)
            for name, value in group.values.items():
                entry[name] = value_of(value)


def archive_without_weights(model: keras.Model) -> bytes:
    """What `model.save("x.keras")` would write now, but for the weights.

    Raises:
        Exception: If the model, or something in it, cannot be described.
    """
    saving = keras.src.saving.saving_lib
    config, metadata = saving._serialize_model_as_json(model)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("metadata.json", metadata)
        archive.writestr("config.json", config)
        assets = saving.DiskIOStore("assets", archive=archive, mode="w")
        try:
            _walk(model, assets)
        finally:
            assets.close()
    return file.getvalue()


def with_weights(archive: bytes, weights: bytes) -> bytes:
    """The whole of what `archive_without_weights` gives."""
    file = io.BytesIO(archive)
    with zipfile.ZipFile(file, "a") as whole:
        whole.writestr("model.weights.h5", weights)
    return file.getvalue()


def _walk(model: keras.Model, assets: Any) -> list[FileGroup]:
    """Has Keras save a model's state, optimizers their variables as such."""
    saving: Any = keras.src.saving.saving_lib
    store: Any = saving.H5IOStore
    groups: list[FileGroup] = []

    class Recorder(store):  # type: ignore[misc]
        """Keeps what it is given, and makes no file."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: Any = None) -> dict[str, Any]:
            groups.append(FileGroup(path, metadata))
            return groups[-1].values

    plain = keras.optimizers.Optimizer.save_own_variables
    earlier: list[tuple[keras.optimizers.Optimizer, Any]] = []
    try:
        for optimizer in with_inner(optimizers_of(model)):
            if type(optimizer).save_own_variables is not plain:
                continue  # Whoever looks at the groups finds that they are others.
            earlier.append((optimizer, replacement(optimizer, SAVE_VARIABLES)))
            replace(optimizer, SAVE_VARIABLES, _saver_of(optimizer))
        saving._save_state(model, Recorder(), assets, "", set())
    finally:
        for optimizer, before in earlier:
            restore(optimizer, SAVE_VARIABLES)
            if before is not None:
                replace(optimizer, SAVE_VARIABLES, before)
    return groups


def _saver_of(optimizer: keras.optimizers.Optimizer) -> Callable[[Any], None]:
    def save(store: Any) -> None:
        for index, variable in enumerate(optimizer.variables):
            store[str(index)] = variable

    return save


def with_inner(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> Iterator[keras.optimizers.Optimizer]:
    """These, and those in them, each once."""
    waiting = list(optimizers)
    seen: set[int] = set()
    while waiting:
        optimizer = waiting.pop()
        if id(optimizer) not in seen:
            seen.add(id(optimizer))
            yield optimizer
            waiting += inner_optimizers(optimizer)
