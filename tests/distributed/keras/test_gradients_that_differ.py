"""Ranks whose gradients differ all learn so, whatever each was about to do."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support.log_texts import LogTexts

import ring_keras as ring
from ring_keras.errors import translated

VARIABLES = 3


def run_once(pool, worker, *args):
    """Runs it on ranks that are not used again: some have begun what others have
    not."""
    try:
        return pool.run(worker, args=args, timeout_s=40)
    finally:
        pool.kill()


def step(variables, used):
    """One step of a loop of one's own, whose loss depends on some variables."""
    tape = ring.DistributedGradientTape(tf.GradientTape(), bucket_size_bytes=8)
    with tape:
        loss = tf.add_n([tf.reduce_sum(variables[index] ** 2) for index in used])
    return tape.gradient(loss, variables)


def eager_worker(rank_1_uses):
    """Rank 1 takes another branch in the third step."""
    variables = [tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES)]
    everything = range(VARIABLES)
    for _ in range(2):
        step(variables, everything)
    with pytest.raises(ring.RankMismatchError) as caught:
        step(variables, rank_1_uses if ring.rank() == 1 else everything)
    return str(caught.value)


@pytest.mark.parametrize(
    "rank_1_uses",
    [
        [1, 2],
        pytest.param([0, 1], marks=pytest.mark.slow),
        pytest.param([1], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_missing_gradient_is_named_on_every_rank(rank_pool, rank_1_uses, size):
    messages = run_once(rank_pool(size), eager_worker, rank_1_uses)

    missing = min({0, 1, 2} - set(rank_1_uses))
    assert len(set(messages)) == 1
    assert f"gradient {missing} differs" in messages[0]
    assert f"rank 1 has 'v{missing}" in messages[0]
    assert "no gradient" in messages[0]


def traced_worker():
    """Rank 1 traces another step, while rank 0 replays the one it has."""
    variables = [tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES)]

    @tf.function
    def traced(fewer):
        return step(variables, range(VARIABLES - int(fewer)))

    for _ in range(3):
        traced(False)
    # On rank 1 the error of autograph, which has that of ring_keras in its text.
    with pytest.raises(Exception, match="RankMismatchError") as caught:
        traced(ring.rank() == 1)
    return str(caught.value)


def test_a_step_that_one_rank_traces_is_an_error_on_all(rank_pool):
    for message in run_once(rank_pool(2), traced_worker):
        assert "gradients/bucket0" in message and "differs across ranks" in message


def error_of_other_branches(branches):
    """Each rank takes one of its own, though all have taken all of them before."""
    for branch in [*branches, *branches]:
        branch()
    with pytest.raises(ring.RankMismatchError) as caught, translated():
        branches[ring.rank()]()
    branches[0]()  # They can go on.
    return str(caught.value)


def equal_buckets_worker(traces):
    """Two branches, whose buckets differ in nothing but the variables."""
    variables = [tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES)]
    function = tf.function if traces else lambda function: function
    return error_of_other_branches(
        [function(lambda used=used: step(variables, used)) for used in ([0, 1], [1, 2])]
    )


@pytest.mark.parametrize("traces", [True, False])
def test_two_known_plans_never_meet(rank_pool, traces):
    messages = rank_pool(2).run(equal_buckets_worker, args=(traces,), timeout_s=40)

    assert messages[0] == messages[1]
    if traces:
        assert "plan differs across ranks" in messages[0]
    else:
        assert "gradient 0 differs across ranks: rank 0 has 'v0" in messages[0]


def other_variables_worker(traces):
    """Two lists of sources that differ in one variable, of the same shape."""
    first, *others = (tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES))
    function = tf.function if traces else lambda function: function
    return error_of_other_branches(
        [function(lambda other=other: step([first, other], [0, 1])) for other in others]
    )


@pytest.mark.parametrize("traces", [True, False])
def test_plans_for_other_variables_never_meet(rank_pool, traces):
    for message in rank_pool(2).run(
        other_variables_worker, args=(traces,), timeout_s=40
    ):
        assert "plan differs across ranks" in message


def equal_models_worker():
    """Two models with one plan, as a CycleGAN has, each with an optimizer."""

    def trained():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))

        @tf.function(autograph=False)
        def train():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.ones([1, 2])))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )

        return train

    return error_of_other_branches([trained(), trained()])


def test_two_models_of_the_same_shape_never_meet(rank_pool):
    for message in rank_pool(2).run(equal_models_worker, timeout_s=40):
        assert "plan differs across ranks" in message


def sparse_worker():
    """The gradients of one of the branches are all sparse."""
    table = tf.Variable(tf.ones([4, 2]), name="table")
    dense = tf.Variable([1.0, 2.0], name="dense")

    def branch(loss_of):
        @tf.function(autograph=False)
        def run():
            with ring.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = loss_of()
            return tape.gradient(loss, [table, dense])

        return run

    return error_of_other_branches(
        [
            branch(lambda: tf.reduce_sum(tf.gather(table, [1, 1]))),
            branch(lambda: tf.reduce_sum(tf.gather(table, [1, 1])) * dense[0]),
        ]
    )


def test_a_plan_without_buckets_meets_the_others(rank_pool):
    for message in rank_pool(2).run(sparse_worker, timeout_s=40):
        assert "allreduce 'gradients/bucket0'" in message
        assert "differs across ranks" in message


def heads(name="head"):
    """Variables of one shape, as of a model with a head for each task."""
    return [keras.Variable([[0.0]], name=f"{name}{number}") for number in range(2)]


def optimizer_worker(traces, wrap, accumulates):
    """Each rank trains another head, and Keras drops gradients that are None."""
    variables = heads()
    passes = 2 if accumulates else None
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=passes)
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(inner) if wrap else inner
    )

    def train():
        gradients = [None, None]
        gradients[ring.rank()] = tf.constant([[2.0]])
        optimizer.apply(gradients, variables)

    train = tf.function(train, autograph=False) if traces else train
    with pytest.raises(ring.RankMismatchError) as caught:
        for _ in range(2):
            train()
    return str(caught.value)


@pytest.mark.parametrize(
    ("traces", "wrap", "accumulates"),
    [
        (True, False, False),
        (False, True, True),
        pytest.param(False, False, False, marks=pytest.mark.slow),
        pytest.param(True, True, False, marks=pytest.mark.slow),
        pytest.param(True, False, True, marks=pytest.mark.slow),
    ],
)
def test_an_optimizer_names_gradients_of_other_variables(
    rank_pool, traces, wrap, accumulates
):
    arguments = traces, wrap, accumulates
    messages = run_once(rank_pool(2), optimizer_worker, *arguments)

    assert messages[0] == messages[1]
    assert "[RK311] gradient 0 " in messages[0]
    assert "rank 0 has 'head0' (float32 [1, 1])" in messages[0]
    assert "rank 1 has 'head1' (float32 [1, 1])" in messages[0] or wrap


class Heads(keras.Model):
    """Several layers of one shape, made in the order in which they are named."""

    def __init__(self, names, frozen=None):
        super().__init__(name="heads")
        self.parts = [keras.layers.Dense(1, name=name) for name in names]
        for part in self.parts:
            part.trainable = part.name != frozen

    def build(self, shape):
        for part in self.parts:
            part.build(shape)

    def call(self, x):
        return keras.ops.concatenate([part(x) for part in self.parts], axis=-1)


def frozen_worker(in_fit):
    """Each rank freezes another layer of a model."""
    names = ["a", "b", "c"]
    model = Heads(names, frozen=names[1 + ring.rank()])
    model.build((None, 4))
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = tf.random.normal([8, 4]), tf.random.normal([8, 3])
    with pytest.raises(ring.RankMismatchError) as caught, translated():
        if in_fit:
            model.fit(x, y, verbose=0)
        else:
            ring.broadcast_variables(model.weights)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, variables), variables)
    return str(caught.value)


@pytest.mark.parametrize("in_fit", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_layers_frozen_on_one_rank_alone_are_named(rank_pool, in_fit):
    messages = run_once(rank_pool(2), frozen_worker, in_fit)

    assert messages[0] == messages[1]
    assert "[RK311] gradient 2 is of different variables" in messages[0]
    assert "rank 0 has 'heads/c/kernel' (float32 [4, 1])" in messages[0]
    assert "rank 1 has 'heads/b/kernel' (float32 [4, 1])" in messages[0]


def other_order_worker(how):
    """One rank makes its layers in another order, as going through a set may do."""
    process_set = ring.add_process_set([1, 2]) if how == "process set" else None
    if process_set is not None and not process_set.included():
        return None
    names = ["age", "job", "pay"]
    model = Heads(names[::-1] if ring.rank() == ring.size() - 1 else names)
    x, y = tf.random.normal([8, 4]), tf.random.normal([8, 3])
    if how != "fit":
        model.build((None, 4))
    with pytest.raises(ring.RankMismatchError) as caught, translated():
        if how == "fit":
            model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            model.fit(x, y, verbose=0)
        elif how == "broadcast":
            ring.broadcast_variables(model.weights)
        elif how == "tape":
            with ring.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            tape.gradient(loss, model.trainable_variables)
        else:
            optimizer = ring.DistributedOptimizer(
                keras.optimizers.SGD(0.1), process_set=process_set
            )
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
    return str(caught.value)


@pytest.mark.parametrize(
    "how",
    [
        "fit",
        "process set",
        pytest.param("broadcast", marks=pytest.mark.slow),
        pytest.param("tape", marks=pytest.mark.slow),
        pytest.param("loop", marks=pytest.mark.slow),
    ],
)
def test_layers_made_in_another_order_are_refused(rank_pool, how):
    size = 3 if how == "process set" else 2
    first, second = run_once(rank_pool(size), other_order_worker, how)[-2:]

    assert first == second
    assert "[RK335]" in first
    assert f"rank {size - 2} has 'heads/age/kernel', rank {size - 1} " in first
    assert "has 'heads/pay/kernel'" in first


def numbered_worker():
    """Rank 1 has made a model before, so that Keras gives its layers other numbers."""
    if ring.rank() == 1:
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    layers = [keras.layers.Dense(4) for _ in range(3)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(tf.random.normal([8, 4]), tf.random.normal([8, 4]), verbose=0)
    ring.broadcast_variables(model.weights)
    return [weight.path for weight in model.weights], [
        weight.numpy().tobytes() for weight in model.weights
    ]


@pytest.mark.slow
def test_other_numbers_of_layers_are_none_of_that(rank_pool):
    (first, weights), (second, others) = rank_pool(2).run(numbered_worker)

    assert first != second
    assert weights == others


class Named(keras.Model):
    """Two layers, below the model's own name."""

    def __init__(self, name):
        super().__init__(name=name)
        self.parts = [keras.layers.Dense(2, name=name) for name in ("one", "two")]

    def call(self, x):
        return self.parts[1](self.parts[0](x))


def other_model_worker():
    """What is said of a model that is named after its rank."""
    keras.utils.set_random_seed(1)
    model = Named("first" if ring.rank() == 0 else "second")
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with LogTexts() as texts:
        model.fit(tf.ones((4, 3)), tf.ones((4, 2)), verbose=0)
    return [text for text in texts if "RK351" in text]


def test_a_model_may_have_another_name_on_each_rank(rank_pool):
    assert rank_pool(2).run(other_model_worker) == [[], []]


def other_heads_worker():
    """A loop that leaves out variables without a gradient; a head for each rank."""
    keras.utils.set_random_seed(1)
    trunk = keras.layers.Dense(3, name="trunk")
    heads = [keras.layers.Dense(1, name=name) for name in ("age", "pay")]
    for layer, width in ((trunk, 4), (heads[0], 3), (heads[1], 3)):
        layer.build((None, width))
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    variables = [v for layer in (trunk, *heads) for v in layer.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(heads[ring.rank()](trunk(tf.ones((2, 4)))))
    pairs = zip(tape.gradient(loss, variables), variables, strict=True)
    pairs = [(g, v) for g, v in pairs if g is not None]
    with LogTexts() as texts:
        for _ in range(2):
            optimizer.apply_gradients(pairs)
    return [text for text in texts if "RK351" in text]


def test_variables_of_other_names_are_told_of_once(rank_pool):
    first, second = rank_pool(2).run(other_heads_worker)

    (line,) = first
    assert "[RK351] gradients" in line
    assert "at position 2 rank 0 has 'age/kernel', rank 1 has 'pay/kernel'" in line
    assert second == []


def two_sets_worker():
    """Some train a variable among themselves, and then all train it."""
    pair = ring.add_process_set([0, 1])
    variable = tf.Variable(3.0 - ring.rank())
    gradients = []
    for process_set in (pair, None):
        if process_set is None or process_set.included():
            with ring.DistributedGradientTape(
                tf.GradientTape(), process_set=process_set
            ) as tape:
                loss = variable * variable
            gradients.append(float(tape.gradient(loss, variable)))
    ring.remove_process_set(pair)
    return gradients, float(variable)


def test_ranks_that_have_begun_in_another_set_begin_in_this_one(rank_pool):
    first, second, third = rank_pool(3).run(two_sets_worker)

    # Each took the step at its own value, and has the first one's since.
    assert first == second == ([5.0, pytest.approx(14 / 3)], 3.0)
    assert third == ([pytest.approx(14 / 3)], 3.0)


def own_layers_worker():
    """Each rank has layers of its own, named as others are elsewhere in the list."""
    names = ["a", "b"] if ring.rank() == 0 else ["b", "a"]
    model = Heads([*names, "common"])
    model.build((None, 4))
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.Adam(0.1), local_layers=model.parts[:2]
    )
    x, y = tf.random.normal([8, 4]), tf.random.normal([8, 3])
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
    return [weight.numpy().tolist() for weight in model.weights]


def test_layers_of_each_rank_may_be_in_any_order(rank_pool):
    first, second = rank_pool(2).run(own_layers_worker)

    assert first[:2] != second[:2]
    assert first[4:] == second[4:]
