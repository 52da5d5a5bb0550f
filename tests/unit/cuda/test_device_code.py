"""The device code, compiled by NVRTC's wheel; no GPU needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ring_keras import RingKerasError, _native

ROOT_DIR = Path(__file__).resolve().parent.parent.parent.parent
ARGUMENTS = ROOT_DIR / "tf_ops" / "cuda" / "device_arguments.h"
# As the launches look them up.
KERNELS = set(re.findall(r"V\(k\w+, (\w+),", ARGUMENTS.read_text()))

# A100, H100, B200.
CAPABILITIES = [80, 90, 100]


def test_kernels_are_listed() -> None:
    assert {"ring_keras_copy", "ring_keras_sum_bfloat16"} <= KERNELS


@pytest.mark.parametrize(
    "capability",
    [pytest.param(c, marks=pytest.mark.slow) for c in CAPABILITIES[:-1]]
    + CAPABILITIES[-1:],
)
def test_compiles_for_the_devices_own_architecture(capability: int) -> None:
    architecture = _native.device_architecture(capability)
    assert architecture == f"sm_{capability}"

    cubin = _native.compile_device_code(architecture)

    assert cubin.startswith(b"\x7fELF")
    sections = set(re.findall(rb"\.text\.(ring_keras_\w+)", cubin))
    assert {name.decode() for name in sections} == KERNELS


def test_compiles_ptx_for_devices_newer_than_the_compiler() -> None:
    architecture = _native.device_architecture(999)
    assert re.fullmatch(r"compute_\d+", architecture)

    text = _native.compile_device_code(architecture).decode()

    entries = re.split(r"\.entry (\w+)\(", text)
    bodies = dict(zip(entries[1::2], entries[2::2], strict=True))
    assert set(bodies) == KERNELS
    for name, body in bodies.items():
        # The wider side moves by 16 bytes at a time, the narrower by 8.
        expected = (16, 8) if "narrow" in name else (8, 16) if "widen" in name else None
        assert widest_accesses(body) == (expected or (16, 16)), name
        # Nothing of the arguments is copied.
        assert ".local" not in body, name


def widest_accesses(ptx: str) -> tuple[int, int]:
    """Bytes of the widest load and of the widest store of global memory."""
    widest = []
    for kind in ("ld", "st"):
        accesses = re.findall(rf"{kind}\.global\.(?:v(\d)\.)?[a-z](\d+)", ptx)
        widest.append(max(int(n or 1) * int(bits) // 8 for n, bits in accesses))
    return widest[0], widest[1]


def test_a_device_older_than_the_compiler_is_an_error() -> None:
    with pytest.raises(RingKerasError, match=r"compute capability 3\.0.*only newer"):
        _native.device_architecture(30)


def test_an_unknown_architecture_is_an_error() -> None:
    with pytest.raises(RingKerasError, match=r"for sm_1: .*gpu-architecture"):
        _native.compile_device_code("sm_1")


def test_without_a_driver_preparing_a_device_says_so() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("This machine has a GPU.")
    with pytest.raises(RingKerasError, match=r"libcuda\.so\.1.*NVIDIA's driver"):
        _native.prepare_device(0)
