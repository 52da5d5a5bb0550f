"""`RootOnly` as a context: what the root does is done on all ranks when they leave."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import pytest
from support import training

import ring_keras as ring


def context_worker(directory):
    path = Path(directory) / "unpacked"
    with ring.callbacks.RootOnly(root_rank=1) as is_root:
        assert is_root == (ring.rank() == 1)
        if is_root:
            assert not path.exists()
            time.sleep(0.5)  # The others are long at its end.
            path.write_text("all")
    assert path.read_text() == "all"

    with (
        pytest.raises((ZeroDivisionError, ring.RankMismatchError)) as caught,
        ring.callbacks.RootOnly() as is_root,
    ):
        if is_root:
            1 / 0  # noqa: B018
    # They are together again.
    assert ring.allgather_object(ring.rank()) == [*range(ring.size())]

    with pytest.raises(ZeroDivisionError), ring.callbacks.RootOnly():
        1 / 0  # noqa: B018

    model = training.build(1)
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    with pytest.raises(ValueError, match="callback=None"):
        model.fit(*training.arrays(), callbacks=[ring.callbacks.RootOnly()])
    return type(caught.value).__name__, str(caught.value)


def test_ranks_leave_when_the_root_is_through(rank_pool, tmp_path):
    first, *others = rank_pool(3).run(context_worker, args=(str(tmp_path),))

    assert first == ("ZeroDivisionError", "division by zero")
    for kind, text in others:
        assert kind == "RankMismatchError"
        assert "RootOnly failed on rank 0: ZeroDivisionError: division by zero" in text
