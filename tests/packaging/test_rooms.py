"""The rooms of tf_ops/ and of ring_keras/ use each other in one direction only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent.parent

# What a room may include besides itself.
ALLOWED = {
    "common": set(),
    "tls": {"common"},
    "rendezvous": {"common", "tls"},
    "transport": {"common", "tls"},
    "reduce": {"common"},
    "cuda": {"common"},
    "monitoring": {"common"},
    "collectives": {"common", "transport", "reduce", "cuda", "monitoring"},
    "matching": {"common", "transport", "collectives"},
    "runtime": {
        "common",
        "rendezvous",
        "transport",
        "tls",
        "reduce",
        "cuda",
        "collectives",
        "matching",
        "monitoring",
    },
}
# These three see what the core exports: the runtime, what a request is made of, the
# store's server, devices.
ALLOWED["kernels"] = ALLOWED["bindings"] = ALLOWED["torch"] = {
    "collectives",
    "common",
    "cuda",
    "monitoring",
    "reduce",
    "rendezvous",
    "runtime",
    "tls",
}

# Outside headers, by how their paths begin, and the one room that has them.
OWNERS = {
    "Eigen": "kernels",
    "absl": "kernels",
    "tensorflow": "kernels",
    "tsl": "kernels",
    "unsupported": "kernels",
    "xla": "kernels",
    "ATen": "torch",
    "c10": "torch",
    "torch": "torch",
    "pybind11": "bindings",
    "Python.h": "bindings",
    # Tens of thousands of lines each.
    "arm_neon.h": "reduce",
    "immintrin.h": "reduce",
    "x86intrin.h": "reduce",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def includes_of(room: str) -> Iterator[tuple[str, str]]:
    """Each file of the room with each path that it includes."""
    for path in sorted((ROOT_DIR / "tf_ops" / room).rglob("*")):
        if path.suffix in {".h", ".cc", ".inc"}:
            for included in INCLUDE.findall(path.read_text()):
                yield str(path.relative_to(ROOT_DIR)), included


def test_every_room_is_listed() -> None:
    rooms = {p.name for p in (ROOT_DIR / "tf_ops").iterdir() if p.is_dir()}
    assert rooms == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_includes_only_rooms_below(room: str) -> None:
    strays = []
    for file, included in includes_of(room):
        parts = included.split("/")
        if parts[0] == "tf_ops" and parts[1] not in ALLOWED[room] | {room}:
            strays.append(f"{file} includes {included}")
    assert not strays


@pytest.mark.parametrize("room", ALLOWED)
def test_includes_outside_headers_only_where_they_belong(room: str) -> None:
    strays = []
    for file, included in includes_of(room):
        if OWNERS.get(included.split("/")[0], room) != room:
            strays.append(f"{file} includes {included}")
    assert not strays


# Python

PACKAGE_DIR = ROOT_DIR / "ring_keras"

# What lies at the top: what everyone may need, and none of which needs a room.
FACE = {
    "__init__",
    "_autograph",
    "_call_order",
    "_causes",
    "_codes",
    "_libraries",
    "_native",
    "_requirements",
    "_version",
    "config",
    "errors",
}

# What a room may import besides itself and the face. The order is that of reading:
# each room knows only rooms above it in this list.
PYTHON_ALLOWED: dict[str, set[str]] = {
    "keras_internals": set(),
    "network": set(),
    "job": set(),
    "values": {"job"},
    # Collectives in what JAX compiles.
    "jax": {"job", "values"},
    "devices": {"job", "network"},
    "autotune": {"job"},
    "schedules": {"job"},
    "monitoring": {"job"},
    "tensorboard": {"monitoring"},
    "schedulers": {"network"},
    "lifecycle": {"autotune", "job", "monitoring", "schedulers"},
    "states": {"job", "keras_internals", "values"},
    "ops": {"job", "keras_internals", "values"},
    "optimizers": {"job", "keras_internals", "ops", "states", "values"},
    "layers": {"job", "keras_internals", "ops", "optimizers", "states", "values"},
    "training": {
        "job",
        "keras_internals",
        "layers",
        "monitoring",
        "ops",
        "optimizers",
        "states",
        "values",
    },
    "elastic": {
        "job",
        "keras_internals",
        "lifecycle",
        "ops",
        "optimizers",
        "states",
        "training",
        "values",
    },
}
PYTHON_ALLOWED["callbacks"] = PYTHON_ALLOWED["training"] | {
    "elastic",
    "lifecycle",
    "training",
}
# The optimizer, which brings callbacks to `fit`.
PYTHON_ALLOWED["fit"] = {
    "callbacks",
    "job",
    "keras_internals",
    "ops",
    "optimizers",
    "values",
}
PYTHON_ALLOWED["data"] = PYTHON_ALLOWED["training"] | {
    "lifecycle",
    "network",
    "training",
}
# What each back end of Keras has of its own. init() and the public face load it by
# its name.
PYTHON_ALLOWED["backends"] = {
    "callbacks",
    "data",
    "devices",
    "fit",
    "jax",
    "job",
    "keras_internals",
    "layers",
    "lifecycle",
    "schedules",
    "states",
    "training",
    "values",
}
PYTHON_ALLOWED["inference"] = {
    "data",
    "job",
    "keras_internals",
    "ops",
    "optimizers",
    "states",
    "training",
    "values",
}
BELOW_THE_PUBLIC_FACE = set(PYTHON_ALLOWED) - {"tensorboard"}
# Starts ranks, is none, and must not take TensorFlow's seconds to start.
PYTHON_ALLOWED["launch"] = {"network"}
PYTHON_ALLOWED["rendezvous"] = set()
# The same on somebody else's engine; what Ray, Spark and Dask have in common.
PYTHON_ALLOWED["engines"] = {"launch", "network", "schedulers"}
PYTHON_ALLOWED["functions"] = {"engines", "launch"}
PYTHON_ALLOWED["dask"] = {"engines", "launch", "schedulers"}
PYTHON_ALLOWED["ray"] = {"engines", "launch", "schedulers"}
# Its estimator trains, too.
PYTHON_ALLOWED["spark"] = PYTHON_ALLOWED["dask"] | {
    "callbacks",
    "data",
    "fit",
    "job",
    "keras_internals",
    "lifecycle",
    "ops",
    "optimizers",
    "values",
}
# The engine under torch.distributed.
PYTHON_ALLOWED["torch"] = {"job", "lifecycle", "network", "values"}
# Programs and skins: they may use the public face, which has all that is above.
PYTHON_ALLOWED["benchmark"] = {"autotune", "job", "schedulers"}
PYTHON_ALLOWED["horovod"] = BELOW_THE_PUBLIC_FACE | {"functions", "ray", "spark"}
PYTHON_ALLOWED["verify"] = set(BELOW_THE_PUBLIC_FACE)
# No room, but a program: `python -m ring_keras`.
PYTHON_ALLOWED["__main__"] = {"launch"}

# The public face has every room behind it: only those above all rooms may use it.
USE_THE_PUBLIC_FACE = {"benchmark", "horovod", "verify", "data/service/__main__"}

# Those that run without TensorFlow, and what must not be imported there at all,
# not even inside a function.
WITHOUT_TENSORFLOW = {
    "launch",
    "network",
    "rendezvous",
    "tensorboard",
    "config",
    "_version",
}
BRINGS_TENSORFLOW = {"tensorflow", "keras", "ring_keras.errors"}

# Those that Keras's other back ends have, too: here `ring_keras.errors` may be, which
# brings TensorFlow only where that is the back end.
OF_ALL_BACK_ENDS = WITHOUT_TENSORFLOW | {
    "_requirements",
    "autotune",
    "engines",
    "functions",
    "jax",
    "job",
    "lifecycle",
    "monitoring",
    "schedulers",
    "torch",
    "values",
}


def modules() -> Iterator[tuple[str, str, Path]]:
    """Each module's room, its name within the package, and its file."""
    for path in sorted(PACKAGE_DIR.rglob("*.py")):
        name = str(path.relative_to(PACKAGE_DIR).with_suffix(""))
        yield name.split("/")[0], name, path


def imports_of(path: Path) -> Iterator[str]:
    """The full names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import hides its room"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_python_room_is_listed() -> None:
    rooms = {path.parent.name for path in PACKAGE_DIR.glob("*/__init__.py")}
    assert rooms - FACE == set(PYTHON_ALLOWED) - {"__main__"}


def test_nothing_else_lies_at_the_top() -> None:
    files = {path.stem for path in PACKAGE_DIR.glob("*.py*") if path.is_file()}
    assert files <= FACE | {"__main__"}


@pytest.mark.parametrize("rooms", [ALLOWED, PYTHON_ALLOWED], ids=["C++", "Python"])
def test_the_order_has_no_circle(rooms: dict[str, set[str]]) -> None:
    seen: set[str] = set()
    for room, allowed in rooms.items():
        assert allowed <= seen, f"{room} knows a room that is listed after it"
        seen.add(room)


@pytest.mark.parametrize("room", [*PYTHON_ALLOWED, *sorted(FACE)])
def test_imports_only_rooms_below(room: str) -> None:
    strays = []
    for own, name, path in modules():
        if own != room:
            continue
        for imported in imports_of(path):
            package, _, rest = imported.partition(".")
            target = rest.split(".")[0]
            if package != "ring_keras" or target in {
                room,
                *PYTHON_ALLOWED.get(room, ()),
            }:
                continue
            if target in PYTHON_ALLOWED:
                strays.append(f"{name} imports {imported}")
            elif target not in FACE | {"__version__"} and not (
                {room, name} & USE_THE_PUBLIC_FACE
            ):
                strays.append(f"{name} imports {imported}, the public face")
    assert not strays


def test_no_two_files_know_each_other() -> None:
    """Nor do more in a circle, and be it for types alone."""
    paths = {
        ".".join(["ring_keras", *name.split("/")]).removesuffix(".__init__"): path
        for _, name, path in modules()
    }
    known: dict[str, set[str]] = {}
    for module, path in paths.items():
        known[module] = set()
        for imported in imports_of(path):
            while imported and imported not in paths:
                imported = imported.rpartition(".")[0]
            # The public face has every file behind it.
            known[module] |= {imported} - {"", "ring_keras", module}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(f"{' knows '.join(reversed(error.args[1]))}: a circle")


@pytest.mark.parametrize("room", sorted(WITHOUT_TENSORFLOW))
def test_needs_no_tensorflow(room: str) -> None:
    strays = [
        f"{name} imports {imported}"
        for own, name, path in modules()
        if own == room
        for imported in imports_of(path)
        for prefix in BRINGS_TENSORFLOW
        if f"{imported}.".startswith(f"{prefix}.")
    ]
    assert not strays


@pytest.mark.parametrize("room", sorted(OF_ALL_BACK_ENDS))
def test_needs_no_back_end(room: str) -> None:
    strays = [
        f"{name} imports {imported}"
        for own, name, path in modules()
        if own == room
        for imported in imports_of(path)
        if imported.split(".")[0] in {"tensorflow", "keras"}
    ]
    assert not strays
    # Nor do they build on rooms that do.
    assert PYTHON_ALLOWED.get(room, set()) <= OF_ALL_BACK_ENDS
