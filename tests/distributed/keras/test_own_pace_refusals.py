"""What cannot be right where ranks take different numbers of batches is refused."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training
from support.far_apart import BATCH, batches_of, endless_dataset, rank_dataset, step_of

import ring_keras as ring


def paced(pace=2, inner="sgd", model=None, **compiled):
    model = model or training.build(1)
    optimizer = ring.DiLoCo(inner, sync_every=2, pace=pace)
    model.compile(optimizer, "binary_crossentropy", **compiled)
    return model


def odd_fit(what, model):
    """A `fit` that is only odd on rank 1."""
    data = endless_dataset(4)
    if ring.rank() == 1:
        if what == "ends":
            data = rank_dataset(4)
        elif what == "unknown":
            data = data.filter(lambda x, y: True)
        elif what == "generator":
            data = (batch for batch in list(data.take(8).as_numpy_iterator()))
    model.fit(data, steps_per_epoch=4, verbose=0)


def served_in_turn(dataset):
    """By a server that each rank has for itself: it is not asked for a batch."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    served = dataset.apply(
        service.distribute(
            processing_mode="parallel_epochs",
            service=dispatcher.target,
            job_name="job",
            consumer_index=ring.rank(),
            num_consumers=ring.size(),
        )
    )
    served.dispatcher = dispatcher  # Which lives as long.
    return served.prefetch(1)


def divided_fit(what, model):
    """One that is odd on all ranks, since they divide the data together."""
    data = training.dataset(32)
    if what == "order":
        data = ring.data.shard(data, seed=1).repeat().batch(BATCH)
    elif what == "given order":
        data = ring.data.shard(data.shuffle(32, seed=1)).repeat().batch(BATCH)
    elif what == "join":
        data = ring.data.join(rank_dataset(4).filter(lambda x, y: True)).repeat()
    elif what == "in turn":
        data = served_in_turn(endless_dataset(4))
    elif what == "no epoch":
        data = endless_dataset(4)
    steps = None if what == "no epoch" else 4
    model.fit(data, steps_per_epoch=steps, verbose=0)


def refused_worker(what):
    """The error of all, and what was trained before it."""
    executions = {"accumulation": 3, "begun": 2}
    inner = keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=2 if what in executions else None
    )
    model = paced(inner=inner, steps_per_execution=executions.get(what, 1))
    if what == "begun":  # As by a fit() that failed in an extra batch.
        model.optimizer.build(model.trainable_variables)
        inner.variables[0].assign(1)  # Its iterations.
    if what == "optimizers":
        model.another = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ring.RingKerasError) as caught:
        if what in ("order", "given order", "join", "in turn", "no epoch"):
            divided_fit(what, model)
        else:
            odd_fit(what, model)
    return str(caught.value), int(model.optimizer.iterations)


@pytest.mark.parametrize(
    ("what", "rank", "words"),
    [
        ("ends", 1, "its data may end before those of others"),
        ("order", 0, "divides its data anew for each pass"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("unknown", 1, "its data may end before those of others"),
                ("generator", 1, "its data may end before those of others"),
                ("no epoch", 0, "without steps_per_epoch"),
                ("given order", 0, "divides its data anew for each pass"),
                ("join", 0, "asks all ranks for each batch"),
                ("in turn", 0, "gives the ranks their batches in turn"),
                ("accumulation", 0, "multiple of 2. Received: steps_per_execution=3"),
                ("begun", 0, "in the middle of an update of 2 batches"),
                ("optimizers", 0, "the model has several optimizers"),
            ]
        ),
    ],
)
def test_fits_that_it_cannot_be_right_with(rank_pool, what, rank, words):
    first, second = rank_pool(2).run(refused_worker, args=(what,))

    assert first == second
    message, updates = first
    assert message.startswith("[RK354] "), message
    assert f"on rank {rank}: " in message
    assert words in message
    assert updates == 0


def parts_worker():
    """A part that is shuffled by itself, in two calls."""
    data = ring.data.shard(training.dataset(32)).shuffle(16, seed=1).repeat()
    model = paced(1 + 2 * ring.rank())
    for _ in range(2):
        model.fit(data.batch(BATCH), steps_per_epoch=4, verbose=0)
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_a_part_may_be_shuffled_again_and_again(rank_pool):
    first, second = rank_pool(2).run(parts_worker)

    assert first == second


def callbacks_worker(directory):
    messages = {}
    for name, make in {
        "Preemption": lambda: ring.callbacks.Preemption(directory),
        "Resume": ring.data.Resume,
        "Elastic": ring.callbacks.Elastic,
        "LearningRateWarmup": lambda: ring.callbacks.LearningRateWarmup(
            0.1, warmup_epochs=1
        ),
    }.items():
        with pytest.raises((ValueError, ring.RingKerasError)) as caught:
            paced().fit(
                endless_dataset(4), steps_per_epoch=4, verbose=0, callbacks=[make()]
            )
        messages[name] = str(caught.value)
    return messages


@pytest.mark.slow
def test_callbacks_that_count_batches(rank_pool, tmp_path):
    first, second = rank_pool(2).run(callbacks_worker, args=(str(tmp_path),))

    assert first == second
    # In any data without an end.
    assert first.pop("Resume").startswith("[RK512] ")
    for name, message in first.items():
        assert message.startswith("[RK354] "), message
        assert f"callback {name} goes by a number of batches" in message


class Communicates(keras.Model):
    """A step of one's own in which ranks ask each other."""

    def train_step(self, data):
        ring.allreduce(tf.ones([]), name="mine")
        return super().train_step(data)


def communicating_worker(what):
    if what == "layer":
        layers = lambda: [  # noqa: E731
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
        model = training.assemble(1, layers, None)
    else:
        model = training.build(1, Communicates)
    paced(model=model, run_eagerly=what == "eager step")
    with pytest.raises(ring.RingKerasError, match=r"\[RK355\]"):
        model.fit(endless_dataset(4), steps_per_epoch=4, verbose=0)
    assert int(model.optimizer.iterations) == 0
    if what == "step":  # Others may communicate.
        other = training.build(1, Communicates)
        other.compile(ring.DiLoCo("sgd", sync_every=2), "binary_crossentropy")
        other.fit(rank_dataset(4), verbose=0)


@pytest.mark.parametrize(
    "what",
    [
        "eager step",
        pytest.param("step", marks=pytest.mark.slow),
        pytest.param("layer", marks=pytest.mark.slow),
    ],
)
def test_steps_in_which_ranks_communicate(rank_pool, what):
    rank_pool(2).run(communicating_worker, args=(what,))


def loops_worker():
    """What would not act on it, before and after a `fit` that does."""
    model = paced()
    ((x, y),) = batches_of(ring.rank(), ring.size(), 1)
    x, y = tf.constant(x), tf.constant(y)

    def require_refused():
        before = model.get_weights()
        for run in (
            lambda: step_of(model)(x, y),
            lambda: tf.function(step_of(model))(x, y),
            lambda: model.train_on_batch(x, y),
        ):
            with pytest.raises(Exception, match=r"\[RK353\]"):  # Or of autograph.
                run()
        assert training.as_bytes(before) == training.as_bytes(model.get_weights())

    require_refused()
    model.fit(endless_dataset(4), steps_per_epoch=3, verbose=0)
    assert not model.optimizer.is_apart
    require_refused()
    model.fit(endless_dataset(4), steps_per_epoch=3, verbose=0)
    assert int(model.optimizer.steps_counted) == 6


@pytest.mark.slow
def test_loops(rank_pool):
    rank_pool(2).run(loops_worker)


def disagreement_worker(paces):
    with pytest.raises(ring.RankMismatchError, match=r"\[RK342\]") as caught:
        paced(paces[ring.rank()]).fit(endless_dataset(4), steps_per_epoch=4, verbose=0)
    return str(caught.value)


@pytest.mark.parametrize(
    ("paces", "words"),
    [
        (("common", 1), "pace differs across ranks: rank 0 has common, rank 1 has a"),
        (("own", 2), "pace differs across ranks: rank 0 has own, rank 1 has a number"),
    ],
)
def test_ranks_that_disagree(rank_pool, paces, words):
    for message in rank_pool(2).run(disagreement_worker, args=(paces,)):
        assert words in message


def ends_worker():
    """Rank 1 repeats nothing, of which TensorFlow says that it has no end."""
    data = endless_dataset(4)
    if ring.rank() == 1:
        data = rank_dataset(4).filter(lambda x, y: False).repeat()
    with pytest.raises(ring.RingKerasError) as caught:
        paced().fit(data, steps_per_epoch=4, verbose=0)
    return str(caught.value)


@pytest.mark.slow
def test_data_that_end_nevertheless(rank_pool):
    first, second = rank_pool(2).run(ends_worker, timeout_s=90)

    assert second.startswith("[RK356] ")
    assert first.startswith("[RK310] ") and "[RK356] " in first


def arguments_worker():
    for pace, apart, words in [
        (0, "ranks", "pace=0"),
        (True, "ranks", "pace=True"),
        (1.5, "ranks", "pace=1.5"),
        ("mine", "ranks", "pace='mine'"),
        ("own", "hosts", "apart='hosts'"),
    ]:
        with pytest.raises(ValueError, match=r"\[RK352\].*" + words):
            ring.DiLoCo("sgd", sync_every=2, pace=pace, apart=apart)
    model = paced(3)
    model.optimizer.pace = "common"
    model.optimizer.pace = 2
    assert model.optimizer.pace == 2
    copy = ring.DiLoCo.from_config(model.optimizer.get_config())
    assert copy.pace == 2
    model.optimizer.build(model.trainable_variables)
    model.optimizer.pace = "own"
    with pytest.raises(ValueError, match=r"\[RK352\].*Make a new optimizer"):
        model.optimizer.pace = "common"


def test_arguments(rank_pool):
    rank_pool(1).run(arguments_worker)
