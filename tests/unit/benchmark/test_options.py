"""The benchmark's command line."""

from __future__ import annotations

import pytest

from ring_keras.benchmark.options import parse


def test_defaults() -> None:
    options = parse([])

    assert options.collective.name == "allreduce"
    assert options.sizes_bytes[0] == 4
    assert options.sizes_bytes[-1] == 64 << 20
    assert (options.dtype, options.op) == ("float32", "sum")


def test_sizes() -> None:
    options = parse(["--min-bytes", "1K", "--max-bytes", "5KiB", "--factor", "2"])

    assert options.sizes_bytes == (1024, 2048, 4096)


def test_a_small_factor_still_makes_progress() -> None:
    options = parse(["--min-bytes", "1", "--max-bytes", "4", "--factor", "1.1"])

    assert options.sizes_bytes == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-bytes", "8", "--max-bytes", "4"], "must not exceed --max-bytes"),
        (["--max-bytes", "4T"], "invalid size value: '4T'"),
        (["--max-bytes", "0"], "invalid size value: '0'"),
        (["--factor", "1"], "invalid factor above 1 value: '1'"),
        (["--iterations", "0"], "invalid positive integer value: '0'"),
        (["--dtype", "int32", "--op", "average"], "takes no integers"),
        (["broadcast", "--buffers", "in-place"], "allreduce on NumPy arrays only"),
        (["--buffers", "shared", "--tensorflow"], "allreduce on NumPy arrays only"),
        (["--device", "gpu", "--tensorflow"], "without --tensorflow"),
        (["--device", "gpu", "--buffers", "new"], "allreduce on NumPy arrays only"),
        (["gather"], "invalid choice: 'gather'"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)

    assert message in capsys.readouterr().err
