"""Scripts that train as one process does, and scripts with the usual mistakes."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.run_ranks import run_ranks

HEAD = """
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
ring.init()
r = np.random.default_rng(0)
x, y = r.normal(size=(37, 5)).astype("float32"), r.integers(0, 3, 37)
whole = tf.data.Dataset.from_tensor_slices((x, y))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""


def verify(script: Path, steps: str) -> tuple[int, str]:
    """On a rank."""
    from ring_keras.verify.command import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["--steps", steps, str(script)])
    return code, printed.getvalue()


def verified(directory: Path, script: str, steps: str = "4") -> tuple[int, list[str]]:
    """Rank 0's exit code, and the lines of its report."""
    file = directory / "train.py"
    file.write_text(HEAD + script + "\nprint('after fit')\n")
    (code, printed), *others = run_ranks(verify, 2, args=(file, steps), timeout_s=240)
    assert others == [(0, "")]
    assert "after fit" not in printed
    return code, printed.splitlines()


@pytest.mark.slow
def test_a_right_script(tmp_path: Path) -> None:
    # The last of its 4 steps has 4 + 3 examples; each rank begins with other weights.
    code, lines = verified(
        tmp_path,
        """
model = keras.Sequential([
    keras.layers.Reshape((5, 1, 1)), keras.layers.RandomTranslation(0.5, 0.0),
    keras.layers.Flatten(), keras.layers.Dense(8, activation="tanh"),
    keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(3),
])
optimizer = keras.optimizers.Adam(0.01 * ring.size())
model.compile(ring.DistributedOptimizer(optimizer), loss, steps_per_execution=2)
data = ring.data.shard(whole, seed=1, remainder="keep").batch(5)
callbacks = [
    ring.callbacks.BroadcastGlobalVariables(),
    keras.callbacks.ModelCheckpoint("/no/such/directory/model.keras"),
]
model.fit(data, epochs=2, verbose=0, validation_data=data, callbacks=callbacks)
""",
    )

    assert code == 0, lines
    assert lines == [
        "ring_keras.verify: 4 steps of 'sequential' on 2 ranks with 5 + 5 examples, "
        "and in one process with 10",
        "  note: dropout, noise and augmentation were switched off, as N ranks draw "
        "other numbers than one process: random_translation, dropout",
        "  note: 1 BatchNormalization were synchronized for the comparison. In your "
        "training each normalizes its own rank's batch, which one process would not "
        "do: ring_keras.layers.synchronize_batch_normalization(model)",
        "  note: the learning rate, once warm, is 2 times that of one process: 0.02",
        "ring_keras.verify: the ranks train as one process does",
    ]


@pytest.mark.slow
def test_a_gradient_that_is_rounding_alone_is_no_difference(tmp_path: Path) -> None:
    # That of the bias. With this seed one other order of the examples changes little.
    code, lines = verified(
        tmp_path,
        """
keras.utils.set_random_seed(35)
model = keras.Sequential([
    keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dense(3),
])
model.compile(ring.DistributedOptimizer(keras.optimizers.Adam(0.02)), loss)
data = ring.data.shard(whole, seed=1, remainder="keep").batch(5)
callbacks = [ring.callbacks.BroadcastGlobalVariables()]
model.fit(data, verbose=0, callbacks=callbacks)
""",
    )

    assert code == 0, lines


@pytest.mark.slow
def test_a_script_that_does_nothing_for_several_ranks(tmp_path: Path) -> None:
    code, lines = verified(
        tmp_path,
        """
model = keras.Sequential([keras.layers.Dense(3)])
model.compile("sgd", loss)
model.fit(whole.batch(5), verbose=0)
""",
    )

    assert code == 1
    found = [line.removeprefix("  DIFFERS: ") for line in lines[1:-1]]
    assert found[0].startswith("no optimizer of the model averages its gradients")
    assert "before the first step the ranks had not the same values" in found[1]
    assert "sequential/dense/kernel" in found[1]
    assert "rank 1's are off rank 0's by up to" in found[1]
    assert found[2].startswith("after step 1 the ranks had not the same values of")
    assert found[3].startswith(
        "the data are not sharded: each rank has about 40 examples an epoch, and one "
        "process has 40."
    )


@pytest.mark.slow
def test_gradients_added_up_and_a_rate_scaled_twice(tmp_path: Path) -> None:
    code, lines = verified(
        tmp_path,
        """
model = keras.Sequential([keras.layers.Dense(3)])
rate = 0.01 * ring.size()
model.compile(
    ring.DistributedOptimizer(keras.optimizers.Adam(rate), op=ring.Sum), loss
)
callbacks = [ring.callbacks.Distributed(base_lr=rate, warmup_epochs=2)]
data = ring.data.shard(whole, seed=1).batch(5)
model.fit(data, verbose=0, callbacks=callbacks)
""",
    )

    assert code == 1
    rate, step = [line for line in lines if "DIFFERS" in line]
    assert "the learning rate is scaled twice: to 0.04, which is 2 x 2 times" in rate
    assert "DIFFERS: step 1: '" in step
    assert "it is 2 times as large: gradients are added up over the ranks" in step
    assert "op=ring_keras.Sum" in step


TAPE = """
class Taped(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with ring.DistributedGradientTape(
            tf.GradientTape(), backward_passes_per_step=2, op=OP
        ) as tape:
            value = loss(y, self(x, training=True))
        gradients = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": value}
"""


@pytest.mark.slow
@pytest.mark.parametrize("op", ["ring.Sum", "ring.Average"])
@pytest.mark.parametrize(
    "model",
    [
        "model = keras.Sequential([keras.layers.Dense(3)])\n"
        "sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)\n"
        "model.compile(ring.DistributedOptimizer(sgd, op=OP), loss)\n",
        TAPE
        + "model = Taped([keras.layers.Dense(3)])\n"
        + "model.compile(keras.optimizers.SGD(0.1))\n",
    ],
    ids=["optimizer", "tape"],
)
def test_gradients_of_several_passes(tmp_path: Path, model: str, op: str) -> None:
    # What is left of the last of three steps must not be taken for noise.
    code, lines = verified(
        tmp_path,
        f"""
OP = {op}
keras.utils.set_random_seed(1)
{model}
data = ring.data.shard(whole, seed=1).batch(5)
model.fit(data, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariables()])
""",
        steps="3",
    )

    assert code == (op == "ring.Sum"), lines
    if code:
        assert any("step 2" in line and "2 times as large" in line for line in lines)


@pytest.mark.slow
def test_data_shuffled_apart_and_a_part_of_the_model_left_out(tmp_path: Path) -> None:
    code, lines = verified(
        tmp_path,
        """
keras.utils.set_random_seed(ring.rank())
class Apart(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.other = keras.layers.Dense(3), keras.layers.Dense(3)
        self.own = keras.optimizers.SGD(0.1)
    def call(self, x):
        return self.one(x) + self.other(x)
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x, y, self(x))
        variables = self.trainable_variables
        gradients = tape.gradient(value, variables)
        gradients[:2] = [ring.allreduce(g, name=str(i))
                         for i, g in enumerate(gradients[:2])]
        self.own.apply(gradients, variables)
        return {"loss": value}
model = Apart()
model(x[:1])
model.own.build(model.trainable_variables)
ring.broadcast_variables(model.weights)
model.compile(loss=loss)
data = whole.shuffle(37).shard(ring.size(), ring.rank()).batch(5)
model.fit(data, verbose=0)
""",
    )

    assert code == 1
    found = [line for line in lines if "DIFFERS" in line]
    assert "no optimizer of the model averages" in found[0]
    assert "dense_1/" in found[1]
    assert "examples were on more than one rank: are they shuffled before" in found[2]
    assert "DIFFERS: step 1: 'dense_1/" in found[3] or "/dense_1/" in found[3]


@pytest.mark.slow
def test_a_script_without_fit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:], __name__)")
    command = [sys.executable, "-m", "ring_keras.verify", str(script), "--flag"]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert ended.stdout == "['--flag'] __main__\n"
    assert ended.returncode == 2
    assert "called no model.fit()" in ended.stderr


def trains(op: str, more_callbacks: Sequence[object] = ()) -> None:
    import keras
    import numpy as np

    import ring_keras as ring

    r = np.random.default_rng(ring.rank())
    x = r.normal(size=(8, 5)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(ring.DistributedOptimizer(optimizer, op=getattr(ring, op)), "mse")
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), *more_callbacks]
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks)
    raise AssertionError("it is ended before")


def trains_heads_in_another_order() -> None:
    """On rank 1, where neither has a name of its own; each rank trains one."""
    import keras
    import numpy as np

    import ring_keras as ring

    class Heads(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            for name in ["a", "b"] if ring.rank() == 0 else ["b", "a"]:
                setattr(self, name, keras.layers.Dense(1, kernel_initializer="zeros"))

        def build(self, shape: object) -> None:
            self.a.build(shape)
            self.b.build(shape)

        def call(self, x: object) -> object:
            return keras.ops.concatenate([self.a(x), self.b(x)], axis=-1)

    model = Heads()
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.random.default_rng(ring.rank()).normal(size=(4, 5)).astype("float32")
    y = np.zeros((4, 2), np.float32)
    y[:, ring.rank()] = 1
    model.fit(x, y, batch_size=4, verbose=0)
    raise AssertionError("it is ended before")


def compares_functions() -> list[list[str]]:
    """In a job that goes on."""
    import ring_keras as ring

    ring.init()
    found = []
    for op in ("Average", "Sum"):
        comparison = ring.verify.compare(lambda op=op: trains(op), steps=2)
        assert comparison.title.startswith("2 steps of 'sequential")
        found.append(comparison.findings)
    found.append(ring.verify.compare(trains_heads_in_another_order).findings)
    with pytest.raises(ring.RingKerasError, match=r"no step .* on ranks \[0, 1\]"):
        ring.verify.compare(lambda: None)
    assert len(ring.allgather_object(0)) == 2
    return found


def compares_what_raises() -> list[str]:
    """On rank 1, before its `fit` and in it."""
    import keras

    import ring_keras as ring

    def breaks(*_: object, **__: object) -> None:
        if ring.rank() == 1:
            raise OSError("no such data")

    def trains_until_it_breaks() -> None:
        callback = keras.callbacks.LambdaCallback(on_train_batch_begin=breaks)
        trains("Average", [callback])

    ring.init()
    rank, told = ring.rank(), []
    of_others = {
        breaks: ring.PeerLostError,
        trains_until_it_breaks: ring.RankMismatchError,
    }
    for train, error in of_others.items():
        error = OSError if rank == 1 else error
        with pytest.raises(error, match="no such data") as raised:
            ring.verify.compare(train)
        assert not ring.is_initialized()
        told.append(str(raised.value))
        assert rank == 1 or "rank 1" in told[-1]
        ring.init()
    return told


@pytest.mark.slow
def test_a_function(tmp_path: Path) -> None:
    one, other = run_ranks(compares_functions, 2, timeout_s=240)
    assert one == other
    right, [added_up], crossed = one
    assert right == []
    assert "it is 2 times as large: gradients are added up" in added_up
    assert "in the same order on every rank" in crossed[0]
    assert not any("added up" in text for text in crossed)


def test_a_function_that_raises_on_one_rank_ends_it_on_all() -> None:
    told, own = run_ranks(compares_what_raises, 2, timeout_s=120)
    assert "its `train` raised OSError: no such data" in told[0]
    assert "its fit() raised OSError: no such data" in told[1]
    assert own == ["no such data"] * 2
