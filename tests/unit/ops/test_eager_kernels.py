"""Names without end are told of, once."""

from ring_keras.ops.eager_kernels import MOST_NAMES, Names


def test_many_names_are_told_of_once() -> None:
    names = Names()
    often = [f"gradient{i}" for i in range(MOST_NAMES - 1)]
    assert not any(names.note(name) for _ in range(3) for name in often)
    assert names.note("loss_1")
    assert not any(names.note(f"loss_{i}") for i in range(2 * MOST_NAMES))
