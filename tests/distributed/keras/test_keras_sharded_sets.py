"""A state that some of the ranks divide: those of a process set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import pytest
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import (
    MAKERS,
    STEPS,
    build,
    initialized,
    refused,
    state_bytes,
    values,
)

import ring_keras as ring
from ring_keras import _libraries
from ring_keras.ops.shards import shard_of


@contextlib.contextmanager
def own_set(groups: list[list[int]]) -> Iterator[ring.ProcessSet]:
    """That of this rank, of sets that have no rank in common."""
    sets = [ring.add_process_set(ranks) for ranks in groups]
    yield next(one for one in sets if one.included())
    for one in sets:
        ring.remove_process_set(one)


def compiled(
    name: str, process_set: ring.ProcessSet, shard_state: bool, **options: Any
) -> keras.Model:
    optimizer = ring.DistributedOptimizer(
        MAKERS[name](), process_set=process_set, shard_state=shard_state
    )
    return training.compile_model(build(1 + ring.rank()), optimizer, **options)


def data_of(process_set: ring.ProcessSet) -> Any:
    """Of each set another part, the last batch of which is uneven."""
    whole = training.dataset().skip(100 * process_set.ranks[0])
    whole = whole.take(training.steps_of(STEPS, process_set.size()))
    return whole


def train(model: keras.Model, process_set: ring.ProcessSet, **options: Any) -> None:
    mine = ring.data.shard(
        data_of(process_set), remainder="keep", process_set=process_set
    )
    training.fit(model, mine, training.BATCH, **options)


def compare_worker(
    groups: list[list[int]], names: list[str], path: str, options: dict[str, Any]
) -> dict[str, bytes]:
    found = {}
    with own_set(groups) as process_set:
        ranks = process_set.ranks
        for name in names:
            whole, sharded = (
                compiled(name, process_set, divided, **options)
                for divided in (False, True)
            )
            for model in (whole, sharded):
                train(model, process_set, epochs=2)
            assert values_of(sharded) == values_of(whole), name
            shards = list(map(shard_of, sharded.optimizer.variables))
            owners = {piece.owner for one in shards if one for piece in one.pieces}
            assert owners == (set(ranks) if len(ranks) > 1 else set())
            size, own = (state_bytes(m.optimizer) for m in (whole, sharded))
            assert own < size if len(ranks) > 1 else own == size

            # One process with the set's global batch.
            single = training.compile_model(build(1 + ranks[0]), MAKERS[name]())
            batch = training.BATCH * len(ranks)
            training.fit(single, data_of(process_set), batch, epochs=2)
            assert (
                training.largest_difference(sharded.get_weights(), single.get_weights())
                < 1e-5
            ), name

            # Each set has a file of its own, with the whole state.
            file = f"{path}/{name}-{ranks[0]}.keras"
            sharded.save(file)
            loaded = keras.models.load_model(file)
            assert values(loaded.optimizer) == values(whole.optimizer)
            ring.DistributedOptimizer(
                loaded.optimizer, process_set=process_set, shard_state=True
            )
            assert values(loaded.optimizer) == values(sharded.optimizer)
            train(loaded, process_set)
            train(whole, process_set)
            assert values_of(loaded) == values_of(whole), name
            found[name] = training.as_bytes(loaded.get_weights())
    return found


def values_of(model: keras.Model) -> list[bytes]:
    return [weight.tobytes() for weight in model.get_weights()]


NAMES = ["accumulation", "clipnorm", "loss_scaled_accumulation", "averages_taken"]


@pytest.mark.parametrize(
    ("groups", "names", "options"),
    [
        ([[0, 2], [1]], ["accumulation"], {}),
        pytest.param([[1, 2], [0]], NAMES, {}, marks=pytest.mark.slow),
        pytest.param([[0, 3], [1, 2]], NAMES, {}, marks=pytest.mark.slow),
        pytest.param(
            [[0], [1, 2]], ["clipnorm"], {"jit_compile": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_each_set_divides_its_own_state(
    rank_pool: Any,
    tmp_path: Any,
    groups: list[list[int]],
    names: list[str],
    options: dict[str, Any],
) -> None:
    if options and not _libraries.has_xla_kernels():
        pytest.skip("needs TensorFlow 2.20 or newer")
    pool = rank_pool(sum(map(len, groups)))
    args = (groups, names, str(tmp_path), options)

    results = pool.run(compare_worker, args=args, timeout_s=240)

    for ranks in groups:
        assert all(results[rank] == results[ranks[0]] for rank in ranks)
    assert results[groups[0][0]] != results[groups[1][0]]


def savers_worker(path: str) -> list[bytes]:
    """Callbacks of a set in which the first rank of the job is not."""
    with own_set([[0], [1, 2]]) as process_set:
        models = []
        own = f"{path}/{process_set.ranks[0]}"
        for epochs, shard_state in ((2, False), (1, True), (2, True)):
            model = compiled("averages", process_set, shard_state)
            callbacks: list[Any] = []
            if shard_state:
                callbacks = [
                    keras.callbacks.ModelCheckpoint(f"{own}-{{epoch}}.keras"),
                    keras.callbacks.BackupAndRestore(
                        f"{own}-backup", delete_checkpoint=False
                    ),
                ]
            train(model, process_set, epochs=epochs, callbacks=callbacks)
            models.append(model)
        assert values_of(models[2]) == values_of(models[0])
        saved = keras.models.load_model(f"{own}-2.keras")
        return [*values_of(saved), *values(saved.optimizer)]


@pytest.mark.slow
def test_callbacks_of_a_set_save_its_state(rank_pool: Any, tmp_path: Any) -> None:
    alone, *others = rank_pool(3).run(savers_worker, args=(str(tmp_path),))

    assert others[0] == others[1] != alone


def outside_worker() -> None:
    """A rank outside of the set trains alone, with all of the state."""
    pair = ring.add_process_set([0, 1])
    for name in ("adam", "loss_scaled"):
        model = compiled(name, pair, True)
        if not pair.included():
            plain = training.compile_model(build(1 + ring.rank()), MAKERS[name]())
            x, y = training.arrays()
            for one in (model, plain):
                one.optimizer.build(one.trainable_variables)
                for _ in range(2):
                    one.train_on_batch(x[:8], y[:8])
            assert not any(map(shard_of, model.optimizer.variables))
            assert values_of(model) == values_of(plain)
    ring.barrier()
    ring.remove_process_set(pair)


@pytest.mark.slow
def test_a_rank_outside_has_all_of_it(rank_pool: Any) -> None:
    rank_pool(3).run(outside_worker)


def elastic_worker() -> None:
    pair = ring.add_process_set([0, 1])
    if not pair.included():
        ring.allgather_object("RK831")  # Where `refused` asks all ranks.
        return
    model = compiled("adam", pair, True)
    refused("RK831", lambda: ring.elastic.KerasState(model))


def test_elastic_jobs_refuse_it() -> None:
    run_ranks(initialized, 3, args=(elastic_worker,))
