"""Lets `import horovod` find the modules of `ring_keras.horovod`, in one process."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ring_keras.config import Config, scheduled_rank

__all__ = ["IMPORT_DIRECTORY", "install"]

IMPORT_DIRECTORY = str(Path(__file__).with_name("as_horovod"))
"""On a process's PYTHONPATH it makes the first `import horovod` call `install`."""

_NAME = "horovod"
_TARGET = "ring_keras.horovod"

_THERE_IS = (
    "it has horovod.tensorflow, horovod.tensorflow.keras, horovod.keras and "
    "horovod.torch."
)
_RETIRED = {
    "mxnet": "Apache MXNet was retired in 2023. Move the model to PyTorch "
    "(horovod.torch) or to Keras 3 (ring_keras)."
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of ours by Horovod's names: the same objects, not copies."""

    def __init__(self) -> None:
        self._own_specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Also says of a module that is not here what is."""
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        ours = fullname.replace(_NAME, _TARGET, 1)
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:
            found = None
        if found is None:
            instead = _RETIRED.get(fullname.split(".")[1], _THERE_IS)
            raise ModuleNotFoundError(
                "[RK430] "
                f"ring_keras, which stands in for Horovod here, has no {fullname}; "
                f"{instead}",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module of ours."""
        module = importlib.import_module(spec.name.replace(_NAME, _TARGET, 1))
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives it back what the import system has overwritten; it has run before."""
        spec = module.__spec__
        if spec is not None:
            module.__spec__ = self._own_specs.pop(spec.name)


def install() -> None:
    """From now on `import horovod` and what is below it are ours.

    Rank 0 says so on standard error.

    Raises:
        ImportError: If Horovod itself is installed: a script that got one in place
            of the other would not do what it says.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    elsewhere = [path for path in sys.path if path != IMPORT_DIRECTORY]
    real = importlib.machinery.PathFinder.find_spec(_NAME, elsewhere)
    if real is not None:
        raise ImportError(
            "[RK711] "
            "ring_keras was asked to stand in for Horovod, and Horovod is installed: "
            f"{real.origin or real.name}. Uninstall it, or start the script without "
            "--horovod.",
            name=_NAME,
        )
    sys.meta_path.insert(0, _Finder())
    own = scheduled_rank() or Config.from_environment()
    if own.rank == 0:
        print(
            "ring_keras: `import horovod` gives ring_keras.horovod in this job",
            file=sys.stderr,
            flush=True,
        )
