"""Gradients that travel between hosts while backward goes on, beside one process."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.back_ends import BACK_END, begin, needs_back_end
from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks

needs_back_end()
torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines

STEPS = 6
BATCH = 8
DEADLINE_S = 30


def ranks(worker, size, *args):
    """On a host of its own each."""
    common = WITHOUT_TENSORFLOW | {"KERAS_BACKEND": BACK_END}
    env = [common | {"RING_KERAS_HOST_NAME": f"host{rank}"} for rank in range(size)]
    return run_ranks(worker, size, args=args, env=env)


def part_of(rank, size):
    """This rank's rows of each global batch."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(STEPS, BATCH, 5)).astype("float32")
    mine = x[:, rank::size].reshape(-1, 5)
    return mine, mine.sum(1, keepdims=True)


def model_of(ring, keras, cls=None, layers=3, more=()):
    keras.utils.set_random_seed(1)
    cls = cls or keras.Sequential
    model = cls(
        [
            keras.Input((5,)),
            *(keras.layers.Dense(7, activation="tanh") for _ in range(layers)),
            *more,
            keras.layers.Dense(1, name="last"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    # Each variable travels alone.
    model.compile(ring.DistributedOptimizer(optimizer, bucket_size_bytes=1), loss="mse")
    return model


def fit(model, data, size, **options):
    x, y = data
    history = model.fit(
        x, y, batch_size=BATCH // size, shuffle=False, verbose=0, **options
    )
    return history.history["loss"], [np.asarray(w) for w in model.get_weights()]


def assert_as_one_process(worker, *args):
    (expected,) = ranks(worker, 1, *args)
    found = ranks(worker, 2, *args)
    for loss, weights in found:
        np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
        for got, other, one in zip(weights, found[0][1], expected[1], strict=True):
            np.testing.assert_array_equal(got, other)
            np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-6)


def normalized_worker():
    """Its layers communicate in backward, too."""
    ring = begin()
    import keras

    normalized = keras.layers.BatchNormalization
    if ring.size() > 1:
        normalized = ring.layers.SyncBatchNormalization
    keras.utils.set_random_seed(1)
    more = [normalized(), keras.layers.Dense(5, activation="tanh"), normalized()]
    model = model_of(ring, keras, more=more)
    return fit(model, part_of(ring.rank(), ring.size()), ring.size(), epochs=3)


def test_synchronized_layers_between_hosts():
    assert_as_one_process(normalized_worker)


def early_worker():
    """In which steps the last layer's gradient was all ranks' within backward."""
    ring = begin()
    import keras

    seen = []

    class Looks(keras.layers.Layer):
        """Before the others, so that backward comes to it last."""

        def call(self, x):
            x = x.detach().requires_grad_()
            x.register_hook(self.look)
            return x

        def look(self, _):
            bias = model.get_layer("last").bias.value
            # Of the first step no rank knows what it makes.
            deadline = time.monotonic() + (DEADLINE_S if seen else 1.0)
            while bias.grad.item() != 2.0 and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append(bias.grad.item())

    model = keras.Sequential(
        [
            keras.Input((5,)),
            Looks(),
            keras.layers.Dense(7),
            keras.layers.Dense(1, name="last"),
        ]
    )
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(0.0), bucket_size_bytes=1
    )
    model.compile(optimizer, loss=lambda y, predicted: y * predicted)
    x, y = part_of(ring.rank(), 1)
    fit(model, (x[: 3 * BATCH], np.full_like(y[: 3 * BATCH], 1 + 2 * ring.rank())), 1)
    return seen


def test_a_gradient_is_all_ranks_before_backward_is_over():
    assert ranks(early_worker, 2) == [[1, 2, 2], [3, 2, 2]]


def skipping_fit(ring, on_all, hook=lambda model: None):
    import keras

    class Skips(keras.layers.Layer):
        skips = False

        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(7)

        def build(self, shape):
            self.inner.build(shape)

        def call(self, x):
            return x if self.skips else self.inner(x)

    class Decides(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            layer.skips = batch % 3 == 2 and (on_all or ring.rank() == 1)

    keras.utils.set_random_seed(2)
    layer = Skips()
    model = model_of(ring, keras, more=[layer])
    hook(model)
    data = part_of(ring.rank(), ring.size())
    try:
        return fit(model, data, ring.size(), epochs=2, callbacks=[Decides()])
    except ring.RingKerasError as error:
        return str(error)


def skipping_worker(on_all):
    """A layer that some steps leave out, on all ranks or on the last one alone."""
    return skipping_fit(begin(), on_all)


def test_steps_may_leave_layers_out():
    assert_as_one_process(skipping_worker, True)


def test_ranks_whose_steps_leave_out_other_layers_hear_of_it():
    for said in ranks(skipping_worker, 2, False):
        assert isinstance(said, str)
        assert "[RK311]" in said or "[RK310]" in said, said


def twice_worker(since):
    """Backward comes twice to gradients, from some step on."""
    ring = begin()
    import keras

    class Twice(keras.Sequential):
        steps = 0

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.steps += 1
            if self.steps > since and loss.requires_grad:
                (0.5 * loss).backward(retain_graph=True)
            return loss

    model = model_of(ring, keras, Twice)
    try:
        return fit(model, part_of(ring.rank(), ring.size()), ring.size(), epochs=2)
    except ring.RingKerasError as error:
        return str(error)


def test_a_step_may_run_backward_twice():
    assert_as_one_process(twice_worker, 0)


def test_a_gradient_that_changes_on_its_way_is_an_error():
    for said in ranks(twice_worker, 2, 3):
        assert isinstance(said, str)
        assert "RK681" in said


def hooked_worker():
    """A hook of the program's own changes gradients, from the second epoch on.

    The weights, and those of a model whose gradients travel when backward is over.
    """
    ring = begin()
    import keras

    class AfterBackward(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    class Hooks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                for variable in self.model.trainable_variables:
                    variable.value.register_post_accumulate_grad_hook(self.cut)

        @staticmethod
        def cut(parameter):
            parameter.grad.clamp_(-0.05, 0.05)

    found = []
    for cls in (keras.Sequential, AfterBackward):
        model = model_of(ring, keras, cls)
        data = part_of(ring.rank(), ring.size())
        found.append(fit(model, data, ring.size(), epochs=3, callbacks=[Hooks()]))
    return found


def test_a_hook_of_the_programs_own_changes_gradients_before_they_travel():
    for (loss, weights), (loss_after, weights_after) in ranks(hooked_worker, 2):
        assert loss == loss_after
        for one, other in zip(weights, weights_after, strict=True):
            np.testing.assert_array_equal(one, other)


def skipping_and_hooked_worker():
    """The same as without hooks, which the last rank alone has."""
    ring = begin()

    def hook(model):
        if ring.rank() == 1:
            for variable in model.trainable_variables:
                variable.value.register_post_accumulate_grad_hook(lambda _: None)

    return skipping_fit(ring, True, hook)


def test_steps_may_leave_layers_out_where_one_rank_has_hooks():
    assert_as_one_process(skipping_and_hooked_worker)


def scaled_worker():
    """The optimizer is given other gradients than backward made, from then on."""
    ring = begin()
    import keras

    class Scales(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.loss_scale_factor = 4.0

    model = model_of(ring, keras)
    data = part_of(ring.rank(), ring.size())
    return fit(model, data, ring.size(), epochs=3, callbacks=[Scales()])


def test_an_optimizer_may_scale_gradients_later():
    assert_as_one_process(scaled_worker)


def frozen_and_joined_worker():
    """In turn, while the last rank's data have ended."""
    ring = begin()
    import keras

    class Freezes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.layers[1].trainable = batch % 2 == 0

    model = model_of(ring, keras)
    x, y = part_of(0, 1)
    if ring.size() > 1:  # The batches of one process, and of half of them one rank's.
        keep = STEPS * BATCH // (1 + ring.rank())
        x, y = x[:keep], y[:keep]
        x, y = ring.data.join((x, y))
    _, weights = fit(model, (x, y), 1, callbacks=[Freezes()])
    return weights


def test_layers_may_be_frozen_where_a_ranks_data_have_ended():
    one, other = ranks(frozen_and_joined_worker, 2)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def failing_worker():
    """Rank 1 fails when its last layer's gradient travels, and all train once more."""
    ring = begin()
    import keras

    class Fails(keras.layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            if self.calls == 4 and ring.rank() == 1:
                x = x.detach().requires_grad_()
                x.register_hook(self.fail)
            return x

        def fail(self, _):
            raise ArithmeticError("no gradient")

    model = model_of(ring, keras, more=[Fails()])
    data = part_of(ring.rank(), ring.size())
    said = None
    try:
        fit(model, data, ring.size())
    except Exception as error:
        said = str(error)
    return said, fit(model, data, ring.size())


def test_a_rank_that_fails_within_backward():
    (other, again), (own, again_there) = ranks(failing_worker, 2)
    assert "rank 1 cannot take part" in other
    assert "no gradient" in own
    for one, two in zip(again[1], again_there[1], strict=True):
        np.testing.assert_array_equal(one, two)


def frozen_at_times_worker():
    ring = begin()
    import keras

    class Freezes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.layers[1].trainable = batch % 3 == 0

    model = model_of(ring, keras)
    data = part_of(ring.rank(), ring.size())
    return fit(model, data, ring.size(), epochs=2, callbacks=[Freezes()])


def test_layers_may_be_frozen_between_steps():
    assert_as_one_process(frozen_at_times_worker)
