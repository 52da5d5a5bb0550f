"""The public names and their signatures are the ones on record.

After a change that is meant, write the record anew and review its diff:
`python tests/unit/test_api.py`.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ring_keras

RECORD = Path(__file__).with_name("api.txt")
MODULES = [
    "ring_keras",
    "ring_keras.callbacks",
    "ring_keras.data",
    "ring_keras.data.service",
    "ring_keras.elastic",
    "ring_keras.errors",
    "ring_keras.layers",
    "ring_keras.monitoring",
    "ring_keras.schedules",
    "ring_keras.verify",
]


def describe() -> str:
    """One line per public name."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        names = module.__all__ if hasattr(module, "__all__") else dir(module)
        for name in sorted(names):
            lines.append(f"{module_name}.{name}{_signature(getattr(module, name))}")
    return "\n".join(lines) + "\n"


def _signature(value: object) -> str:
    if not callable(value) or isinstance(value, ring_keras.ReduceOp):
        return ""
    if isinstance(value, enum.EnumMeta):
        return f": one of {', '.join(value)}"
    if inspect.isclass(value) and issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f": exception of {bases}"
    signature = inspect.signature(value)
    # Types are mypy's; here they would only differ between Python versions.
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


def test_public_names_and_signatures() -> None:
    assert describe() == RECORD.read_text(), (
        "The public API has changed. If that is meant: python tests/unit/test_api.py"
    )


def test_all_is_what_the_stub_lists() -> None:
    assert sorted(ring_keras.__all__) == sorted(dir(ring_keras))


def test_import_brings_no_tensorflow() -> None:
    code = (
        "import sys, ring_keras; dir(ring_keras); ring_keras.__version__; "
        "sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_an_optimizer_brings_no_callback_that_nobody_has_listed() -> None:
    code = (
        "import sys, ring_keras as ring; ring.DistributedOptimizer('sgd'); "
        "ring.callbacks.Distributed(); others = 'backup', 'elastic', 'launch', "
        "'preemption', 'tensorboard'; print([name for name in sys.modules "
        "if name.startswith('ring_keras.') and any(one in name for one in others)])"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], timeout=120)
    assert printed.decode().strip() == "[]"


if __name__ == "__main__":
    RECORD.write_text(describe())
