"""What Keras on torch has alone: cores, and modules of torch in a model."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext as nothing

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    data_of,
    state_of,
)
from support.torch_ranks import ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines


def local_module_worker():
    import keras

    import ring_keras as ring

    ring.init()
    keras.utils.set_random_seed(1 + ring.rank())
    own, common = (
        keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(4)) for _ in range(2)
    )
    model = keras.Sequential([keras.Input((4,)), common, own, keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer("sgd", local_layers=own)
    model.compile(optimizer, "mse")
    draws = np.random.default_rng(ring.rank())
    x = draws.normal(10 * ring.rank(), 1, (16, 4)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
    return [one.module.running_mean.numpy().copy() for one in (own, common)]


def test_buffers_of_local_modules_are_each_ranks_own():
    (own, common), (others, theirs) = ranks(local_module_worker, 2)

    assert (own != others).all()
    np.testing.assert_array_equal(common, theirs)


@pytest.mark.parametrize("chosen", [None, "2"])
def test_ranks_of_a_host_divide_its_cores(tmp_path, chosen):
    script = tmp_path / "script.py"
    script.write_text(
        "import ring_keras as ring, torch\n"
        "ring.init()\n"
        "ring.DistributedOptimizer('sgd')\n"
        "print('threads', torch.get_num_threads())\n"
    )
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    ended = subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", "-np", "2", sys.executable, script],
        env=env | {"KERAS_BACKEND": "torch"} | ({names[0]: chosen} if chosen else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    expected = chosen or max(1, len(os.sched_getaffinity(0)) // 2)
    assert ended.stdout.count(f"threads {expected}\n") == 2, ended.stdout


def wrapped_worker():
    """Modules of torch, with statistics and generators that Keras does not know."""
    import keras

    import ring_keras as ring

    torch.set_num_threads(1)
    ring.init()
    keras.utils.set_random_seed(1)
    x, y = data_of(ring.rank(), 16)
    norm = torch.nn.BatchNorm1d(4, momentum=None)  # Means over all batches.
    dropout = torch.nn.Dropout(0.5)
    drawn = []
    dropout.register_forward_hook(
        lambda module, given, made: drawn.append((made != 0).numpy())
    )
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.TorchModuleWrapper(norm, output_shape=(None, 4)),
            keras.layers.TorchModuleWrapper(dropout, output_shape=(None, 4)),
            keras.layers.Dense(1),
        ]
    )
    norm.running_mean.fill_(ring.rank())
    norm.register_buffer("cache", torch.zeros(2 + ring.rank()), persistent=False)
    norm.register_buffer("turns", torch.ones(2, dtype=torch.complex64) * ring.rank())
    model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    kept = [
        one.numpy().copy()
        for name, one in norm.state_dict().items()
        if "run" in name or "num" in name or name == "turns"
    ]
    masks = torch.rand(3).numpy(), drawn[0]
    return kept, masks, state_of(model), x


def test_buffers_of_modules_are_those_of_all_ranks():
    found = ranks(wrapped_worker, 2)

    assert_equal_on_all([kept for kept, *_ in found])
    assert_equal_on_all([state for _, _, state, _ in found])
    np.testing.assert_array_equal(found[0][1][0], found[1][1][0])
    assert (found[0][1][1] != found[1][1][1]).any(), "one seed for all"
    mean, variance, count, turns = found[0][0]
    assert not turns.any()
    batches = [x[8 * k : 8 * k + 8] for _, _, _, x in found for k in range(2)]
    own_means = [
        np.mean([b.mean(0) for b in batches[2 * r : 2 * r + 2]], 0) for r in (0, 1)
    ]
    own = [
        np.mean([b.var(0, ddof=1) for b in batches[2 * r : 2 * r + 2]], 0)
        for r in (0, 1)
    ]
    np.testing.assert_allclose(mean, np.mean(own_means, 0), rtol=1e-5, atol=1e-6)
    expected = np.mean(own, 0) + np.var(own_means, 0)
    np.testing.assert_allclose(variance, expected, rtol=1e-5)
    assert count == 2


def beside_distributed_worker(jit_compile):
    """From Keras 3.16 on `fit` averages over `torch.distributed`, where that is."""
    import keras
    import torch.distributed as dist

    import ring_keras as ring

    torch.set_num_threads(1)
    ring.init()
    rank = ring.rank()
    x, y = data_of(rank, 24)
    found = []
    for joins in (False, True):
        if joins:
            path = ring.broadcast_object(tempfile.mktemp())
            dist.init_process_group(
                "gloo", init_method=f"file://{path}", rank=rank, world_size=2
            )
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        jit = jit_compile and joins
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=jit)
        history = model.fit(
            *(x, y),
            batch_size=6,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(x, y),
        ).history
        # Alone, where Keras's own would wait for the other rank.
        alone = [model.evaluate(x, y, verbose=0)] if rank == 0 else []
        predicted = model.predict(x[:3], verbose=0) if rank == 0 else 0
        found.append((history, alone, np.asarray(predicted), state_of(model)))
    with pytest.raises(Exception, match="RK162") if wraps(keras) else nothing():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, y, verbose=0)
        model.fit(x, y, verbose=0, callbacks=[ring.callbacks.Distributed()])
    dist.destroy_process_group()
    return found


def values_of(found):
    history, alone, predicted, state = found
    return [*history.values(), *alone, predicted, *state]


def wraps(keras):
    """Whether Keras wraps models in `DistributedDataParallel` itself."""
    return hasattr(keras.Model, "_initialize_ddp")


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)  # torch compiles.
def test_models_are_averaged_once_where_torch_has_a_process_group(jit_compile):
    for before, beside in ranks(
        beside_distributed_worker, 2, jit_compile, timeout_s=500
    ):
        for one, other in zip(values_of(before), values_of(beside), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5 * jit_compile)
