"""The optimizer stays an ordinary one, and the graph leaves room to overlap."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras.job.process_set import generation
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions

BLOCKER = textwrap.dedent(
    """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "ring_keras":
                raise ImportError("ring_keras is not installed here")

    sys.meta_path.insert(0, Blocker())
    import keras
    model = keras.models.load_model(sys.argv[1])
    print(type(model.optimizer).__module__, type(model.optimizer).__name__)
    print(int(model.optimizer.iterations))
    """
)


def saved_file_worker(directory):
    """Trains, saves on rank 0, and makes every kind of copy."""
    model = training.build(1)
    optimizer = keras.optimizers.Adam(0.01)
    same = ring.DistributedOptimizer(optimizer)
    hook = vars(same)["_clip_gradients"]
    assert same is optimizer
    assert ring.DistributedOptimizer(same) is optimizer
    assert vars(same)["_clip_gradients"] is hook, "hooked twice"
    training.compile_model(model, optimizer)
    training.fit(
        model,
        ring.data.shard(training.dataset(16)),
        4,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.LearningRateWarmup(0.01, 10),
        ],
    )
    for duplicate in (
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        pickle.loads(pickle.dumps(model)).optimizer,
    ):
        assert type(duplicate) is keras.optimizers.Adam
        assert "_clip_gradients" not in vars(duplicate)
    if ring.rank() == 0:
        model.save(f"{directory}/model.keras")
    return keras.saving.serialize_keras_object(optimizer)["module"]


@pytest.mark.slow
def test_the_saved_file_loads_without_this_package(rank_pool, tmp_path):
    modules = rank_pool(2).run(saved_file_worker, args=(str(tmp_path),))

    assert modules == ["keras.optimizers"] * 2
    loaded = subprocess.run(
        [sys.executable, "-c", BLOCKER, str(tmp_path / "model.keras")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == ["keras.src.optimizers.adam", "Adam", "2"]


def graph_worker():
    """Where the collectives of a traced step stand."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,))])
    for _ in range(5):
        model.add(keras.layers.Dense(16, activation="relu"))
    model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.Dropout(0.5))
    model.add(keras.layers.Dense(1))
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.Adam(), bucket_size_bytes=16 * 17 * 4
    )
    model.compile(optimizer, "mse")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    spec = tf.TensorSpec((4, 16)), tf.TensorSpec((4, 1))
    graph = step.get_concrete_function(*spec).graph
    starts = [op for op in graph.get_operations() if op.type.endswith("AllreduceStart")]
    waits = {op for op in graph.get_operations() if op.type.endswith("AllreduceWait")}
    gradients = [{tensor.op for tensor in op.inputs} for op in starts]
    early, waited = [], []
    for number, start in enumerate(starts):
        before = ancestors(start)
        early += [later for g in gradients[number + 1 :] for later in g & before]
        waited += [op.name for op in before & waits]
    return {
        "starts": len(starts),
        "waits": len(waits),
        "needs_later_gradients": [op.name for op in early if op.type != "Const"],
        "needs_waits": waited,
    }


def ancestors(operation):
    found, stack = set(), [operation]
    while stack:
        op = stack.pop()
        for before in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if before not in found:
                found.add(before)
                stack.append(before)
    return found


@pytest.mark.slow
def test_starts_wait_for_nothing_but_their_gradients(rank_pool):
    for result in rank_pool(2).run(graph_worker):
        assert result["starts"] == result["waits"] > 4
        assert result["needs_later_gradients"] == []
        assert result["needs_waits"] == []


def is_collective(op):
    """Whether it is one of ours, and does more than update a variable."""
    return op.type.startswith("RingKeras") and "Update" not in op.type


def fit_graph_worker():
    """The collectives of a step of `fit`, and which of them nothing can hide."""
    model = training.build(1)
    optimizer = ring.DistributedOptimizer(
        training.OPTIMIZERS["adam"](), bucket_size_bytes=6 * 8 * 4
    )
    training.compile_model(model, optimizer)
    data = training.dataset(4 * training.BATCH * ring.size())
    training.fit(
        model,
        ring.data.shard(data),
        training.BATCH,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )
    spec = tf.TensorSpec((None, 6)), tf.TensorSpec((None, 1))
    step = tf.function(model.train_step, autograph=False)
    operations = step.get_concrete_function(spec).graph.get_operations()
    ours = [op for op in operations if is_collective(op)]
    return (
        sorted({op.type for op in ours}),
        [op.get_attr("wait_follows") for op in ours if "Start" in op.type],
        [op.type for op in operations if op.type.startswith("RingKerasUpdate")],
        len(model.trainable_variables),
    )


def test_a_step_of_fit_reduces_gradients_and_nothing_else(rank_pool):
    for types, wait_follows, updates, count in rank_pool(2).run(fit_graph_worker):
        assert types == ["RingKerasAllreduceStart", "RingKerasAllreduceWait"]
        assert len(wait_follows) > 1
        assert wait_follows == [False] * (len(wait_follows) - 1) + [True]
        # All of them are small: one op updates them.
        assert count > 1
        assert updates == ["RingKerasUpdateByAdam"]


def one_rank_worker():
    """On one rank no collective is added to the graph."""
    model = training.build(1)
    optimizer = ring.DistributedOptimizer("sgd")
    training.compile_model(model, optimizer)
    training.fit(model, training.dataset(8), 4)
    x, _ = training.arrays()
    variables = model.trainable_variables

    @tf.function
    def step():
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    graph = step.get_concrete_function().graph
    assert np.isfinite(model.predict(x[:4], verbose=0)).all()
    return [op.type for op in graph.get_operations() if is_collective(op)]


def test_one_rank_communicates_nothing(rank_pool):
    assert rank_pool(1).run(one_rank_worker) == [[]]


def test_other_reductions_are_refused():
    with pytest.raises(ValueError, match=r"op=ring_keras\.Average"):
        ring.DistributedOptimizer(keras.optimizers.SGD(), op=ring.Max)


def agreement_worker():
    """Plans are agreed on once per membership, and a bucket size of 0 is no default."""
    reducer = GradientReducer(ReductionOptions())
    first = generation()
    gradients = [tf.constant([1.0 + ring.rank()])]
    plans = reducer._plans
    agreed = []
    for _ in range(2):
        assert float(reducer.reduce(gradients, ["v"])[0][0]) == 1.5
        agreed.append((len(plans), plans._generation - first))
    none = GradientReducer(ReductionOptions(bucket_size_bytes=0))
    with pytest.raises(ValueError, match="bucket_size_bytes=0"):
        none.reduce(gradients, ["v"])
    return agreed


def test_plans_are_agreed_on_once_per_membership(rank_pool):
    assert rank_pool(2).run(agreement_worker) == [[(1, 0), (1, 0)]] * 2


def sum_worker():
    """With Sum the update is as many times larger as there are ranks."""
    variable = keras.Variable([0.0])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
    optimizer.apply([tf.constant([1.0 + ring.rank()])], [variable])
    return float(variable.numpy()[0])


def test_sum(rank_pool):
    assert rank_pool(2).run(sum_worker) == [-3.0, -3.0]


class Lookahead(keras.optimizers.Optimizer):
    """As of somebody else: hands its gradients on, past Keras's own `apply`."""

    def __init__(self, optimizer):
        super().__init__(0.1, name="lookahead")
        self.inside = optimizer

    def apply(self, grads, trainable_variables=None):
        return self.inside.apply(grads, trainable_variables)


def handing_on_worker(how, distributes_inner):
    optimizer = keras.optimizers.SGD(0.1)
    if distributes_inner:
        optimizer = Lookahead(ring.DistributedOptimizer(optimizer))
    else:
        optimizer = ring.DistributedOptimizer(Lookahead(optimizer))
    model = training.build(1)
    model.build((None, 6))
    x, y = ring.data.shard(training.arrays())

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    if how == "fit":
        model.compile(optimizer, "mse")
        callbacks = [ring.callbacks.BroadcastGlobalVariables()]
        model.fit(x, y, verbose=0, callbacks=callbacks)
    else:
        (tf.function(train, autograph=False) if how == "traced" else train)()
    return training.as_bytes(model.get_weights())


def refused_worker(how):
    with pytest.raises(ring.RingKerasError) as caught:
        handing_on_worker(how, distributes_inner=False)
    return str(caught.value)


@pytest.mark.parametrize("how", ["fit", "traced", "eager"])
def test_an_optimizer_that_hands_gradients_past_the_hook_is_refused(rank_pool, how):
    for message in rank_pool(2).run(refused_worker, args=(how,)):
        assert "[RK608] optimizer 'lookahead' of class Lookahead has" in message


@pytest.mark.parametrize("how", ["fit", "eager"])
def test_what_it_hands_them_to_may_be_distributed(rank_pool, how):
    first, second = rank_pool(2).run(handing_on_worker, args=(how, True))

    assert first == second


class Renames(keras.optimizers.SGD):
    """Of a release that calls something else what adds up gradients."""

    def add_variable_from_reference(self, reference, name=None, **kwargs):
        name = name.replace("gradient_accumulator", "added_up")
        return super().add_variable_from_reference(reference, name=name, **kwargs)


def renamed_accumulators_worker():
    model = training.build(1)
    optimizer = ring.DistributedOptimizer(Renames(gradient_accumulation_steps=2))
    training.compile_model(model, optimizer)
    data = ring.data.shard(training.dataset(16))
    with pytest.raises(ring.RingKerasError) as caught:
        training.fit(model, data, 4)
    return str(caught.value)


def test_accumulators_that_have_another_name_are_told(rank_pool):
    for message in rank_pool(2).run(renamed_accumulators_worker):
        assert "needs: Renames's variables gradient_accumulator. It knows" in message
