"""The compiled libraries need, export and share what they should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import ring_keras

PACKAGE_DIR = Path(ring_keras.__file__).resolve().parent
CORE = PACKAGE_DIR / "libring_keras_core.so"

# Of the C and C++ run-time libraries, on x86-64 and arm64.
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libdl|libm|libgcc_s|libpthread|librt|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+"
)


def output_of(*command: str | Path) -> list[str]:
    ended = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60
    )
    return ended.stdout.splitlines()


def needed_by(library: Path) -> list[str]:
    lines = output_of("readelf", "--dynamic", "--wide", library)
    return [re.findall(r"\[(.*)\]", line)[0] for line in lines if "(NEEDED)" in line]


def adapters() -> list[Path]:
    found = [*PACKAGE_DIR.glob("libring_keras_tf_*.so"), *PACKAGE_DIR.glob("_native.*")]
    return [path for path in found if path.suffix == ".so"]


def test_core_needs_only_the_system() -> None:
    strangers = [n for n in needed_by(CORE) if not SYSTEM_LIBRARIES.fullmatch(n)]
    assert not strangers


def test_core_wants_no_symbol_of_tensorflow_or_python() -> None:
    undefined = output_of("nm", "--dynamic", "--undefined-only", "--demangle", CORE)
    foreign = re.compile(r"\b(tensorflow|tsl|absl|xla|Eigen|_?Py[A-Z]\w+)\b")
    assert undefined
    assert not [symbol for symbol in undefined if foreign.search(symbol)]


def test_core_exports_only_its_interface() -> None:
    lines = output_of("nm", "--dynamic", "--defined-only", "--demangle", CORE)
    symbols = [line.split(maxsplit=2)[2] for line in lines]
    assert any(symbol.startswith("ring_keras::Runtime::Get(") for symbol in symbols)
    assert not [symbol for symbol in symbols if "ring_keras::" not in symbol]


@pytest.mark.parametrize("library", adapters(), ids=lambda path: path.name)
def test_adapter_shares_the_core_beside_it(library: Path) -> None:
    assert CORE.name in needed_by(library)
    dynamic = output_of("readelf", "--dynamic", "--wide", library)
    assert [line for line in dynamic if "[$ORIGIN]" in line]
    defined = output_of("nm", "--dynamic", "--defined-only", "--demangle", library)
    assert not [line for line in defined if "ring_keras::Runtime::" in line]


def test_there_are_two_adapters() -> None:
    assert len(adapters()) == 2
