"""Ranks that train apart, and the algorithm of theirs in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training

BATCH = 4

INNER: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01)
    ),
}

# What makes the optimizer of inner and `sync_every`; the rate and momentum of outer.
OUTER: dict[str, tuple[Callable[..., Any], float, float]] = {
    "average": (ring.DistributedOptimizer, 1.0, 0.0),
    "diloco": (ring.DiLoCo, 0.7, 0.9),
}


def batches_of(rank: int, size: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """A rank's batches of an epoch; the last one is smaller, but for rank 0."""
    x, y = (array[rank::size] for array in training.arrays())
    parts = [slice(BATCH * n, BATCH * (n + 1)) for n in range(steps)]
    parts[-1] = slice(parts[-1].start, parts[-1].stop - min(rank, BATCH - 1))
    return [(x[part], y[part]) for part in parts]


def rank_dataset(steps: int) -> tf.data.Dataset:
    """This rank's batches, as a dataset that knows how many there are."""
    batches = batches_of(ring.rank(), ring.size(), steps)
    return tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, 6), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(steps))


def endless_dataset(steps: int) -> tf.data.Dataset:
    """This rank's batches, again and again."""
    return rank_dataset(steps).repeat()


def step_of(model: keras.Model) -> Callable[[Any, Any], None]:
    """A step in a loop of one's own."""
    loss = keras.losses.BinaryCrossentropy()

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(value, variables), variables)

    return step


class Watcher(keras.callbacks.Callback):
    """Notes weights where callbacks save and validate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(training.as_bytes(self.model.get_weights()))

    on_test_begin = lambda self, logs=None: self.on_epoch_end(0)  # noqa: E731


Arrays = list[np.ndarray]


def quantized(blocks: np.ndarray) -> np.ndarray:
    """What int8 makes of rows that have a scale each."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) * np.float32(1 / 127)
    levels = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    return np.round(levels) * scale


def thin_average(
    wire: str, everyones: list[Arrays], residuals: list[Arrays], shares: list[float]
) -> tuple[Arrays, list[Arrays]]:
    """The average of what the ranks have, on a wire, and what it leaves with each."""
    size = len(everyones)
    own = [
        [np.float32(share) * value + left for value, left in zip(*both, strict=True)]
        for share, *both in zip(shares, everyones, residuals, strict=True)
    ]
    like = own[0]
    flat = np.stack([np.concatenate([v.ravel() for v in of_rank]) for of_rank in own])
    count = flat.shape[1]
    if wire == "int8":
        rows = -(-count // (256 * size)) * size
        blocks = np.zeros((size, rows * 256), np.float32)
        blocks[:, :count] = flat
        blocks = blocks.reshape(size, rows, 256)
        sent = np.stack([quantized(of_rank) for of_rank in blocks])
        total = np.zeros_like(blocks[0])
        for of_rank in sent:
            total += of_rank
        average = quantized(total)
        left = blocks - sent
        for rank in range(size):
            part = slice(rank * rows // size, (rank + 1) * rows // size)
            left[rank, part] += total[part] - average[part]
        average, left = average.ravel(), left.reshape(size, -1)
    else:
        average, left = np.zeros_like(flat[0]), flat.copy()
        for rank in range(size):
            begin = 0
            for value in like:
                part = flat[rank, begin : begin + value.size]
                kept = -(-value.size // 32)
                chosen = begin + np.argsort(-np.abs(part), kind="stable")[:kept]
                average[chosen] += flat[rank, chosen]
                left[rank, chosen] = 0
                begin += value.size

    def divided(one: np.ndarray) -> Arrays:
        ends = np.cumsum([value.size for value in like])
        parts = zip(np.split(one[:count], ends[:-1]), like, strict=True)
        return [part.reshape(value.shape) for part, value in parts]

    return divided(average), [divided(of_rank) for of_rank in left]


# Of the four variables of `training.build`, of 48, 8, 8 and 1 weights, by number.
FRAGMENTS = {1: [[0, 1, 2, 3]], 2: [[0], [1, 2, 3]], 3: [[0], [1, 3], [2]]}


class Reference:
    """The algorithm in one process: a model for each rank, and NumPy in between."""

    def __init__(
        self,
        size: int,
        inner: str,
        outer: str,
        sync_every: int,
        wire: str = "float32",
        fragments: int = 1,
        overlap: int = 0,
        hosts: Sequence[int] = (),
        loss: Any = "binary_crossentropy",
        **layer_kwargs: Any,
    ) -> None:
        """Of so many ranks; `hosts`: which is the host of each, if these are apart."""
        _, self._rate, self._momentum = OUTER[outer]
        self._wire = wire
        self._sync_every = sync_every
        self._hosts = list(hosts) or list(range(size))
        size = len(set(self._hosts))
        self.models = [training.build(1, **layer_kwargs) for _ in range(size)]
        for model in self.models:
            model.compile(INNER[inner](), loss)
        self.common = [w.astype(np.float64) for w in self.models[0].get_weights()]
        self._velocity = [np.zeros_like(w) for w in self.common]
        self.left = [[np.float32(0 * w) for w in self.common] for _ in range(size)]
        self._overlap = overlap
        self._under_way: dict[int, tuple[list[Arrays], np.ndarray]] = {}
        self._per_update = 2 if inner == "accumulation" else 1
        self._fragments = FRAGMENTS[fragments]
        self.amounts = np.zeros((fragments, size))
        self._steps = 0
        # Of each meeting: the mean of |change - mean|^2, |mean|^2, and |update|.
        self._meetings: list[tuple[float, float, float]] = []

    def epoch(self, steps: int) -> None:
        """Trains all ranks by `rank_dataset`, and has them meet at its end."""
        size = len(self._hosts)
        self.train({r: batches_of(r, size, steps) for r in range(size)})
        if self._steps:
            self.meet()

    def loop(self, begin: int, end: int) -> None:
        """Trains all ranks by full batches, and counts each as much."""
        size = len(self._hosts)
        self.train({r: batches_of(r, size, end + 1)[begin:end] for r in range(size)})

    def alone(self, rank: int, begin: int, end: int) -> None:
        """Trains one rank on, in the same window, by full batches."""
        host = self._hosts[rank]
        for x, y in batches_of(rank, len(self._hosts), end + 1)[begin:end]:
            self.models[host].train_on_batch(x, y)
            self.amounts[:, host] += len(x)

    def paced(
        self, executions: int, paces: Sequence[int], streams: list[Any], each: int = 1
    ) -> None:
        """Executions of `each` steps, before which a rank takes its extra batches."""
        for _ in range(executions):
            for rank, (pace, stream) in enumerate(zip(paces, streams, strict=True)):
                for x, y in itertools.islice(stream, (pace - 1) * each):
                    self.models[rank].train_on_batch(x, y)
                    self.amounts[:, rank] += len(x)
            self.train(
                {r: list(itertools.islice(s, each)) for r, s in enumerate(streams)}
            )

    @property
    def is_met(self) -> bool:
        """Whether all have met, and no rank has taken a step since."""
        return not self._steps

    def lose(self, rank: int) -> None:
        """What it has for itself is gone."""
        self.amounts[:, rank] = 0
        self.left[rank] = [0 * one for one in self.left[rank]]
        self.forget()

    def join(self, rank: int, source: int) -> None:
        """It begins, with the inner state of another one."""
        self.lose(rank)
        self._set(range(len(self.common)), [self.common] * len(self.models), [rank])
        ours, theirs = (self.models[one].optimizer for one in (rank, source))
        ours.build(self.models[rank].trainable_variables)
        for variable, value in zip(ours.variables, theirs.variables, strict=True):
            variable.assign(value)

    def train(self, everyones: dict[int, list[tuple[np.ndarray, np.ndarray]]]) -> None:
        """Trains by ranks' batches, until a host has none; its ranks may have fewer."""
        of_hosts: dict[int, list[Any]] = {}
        for rank, of_rank in everyones.items():
            of_hosts.setdefault(self._hosts[rank], []).append(of_rank)
        for n in range(min(max(map(len, one)) for one in of_hosts.values())):
            for host, batches in of_hosts.items():
                there = [of_rank[n] for of_rank in batches if n < len(of_rank)]
                x, y = (np.concatenate(part) for part in zip(*there, strict=True))
                self.models[host].train_on_batch(x, y)
                self.amounts[:, host] += len(x)
            self._steps += 1
            for number in range(len(self._fragments)):
                updates = self._sync_every // self._per_update
                due = -(-(number + 1) * updates // len(self._fragments))
                due *= self._per_update
                place = self._steps % self._sync_every
                if place == due % self._sync_every:
                    if self._overlap:
                        self._depart(number)
                    else:
                        self._meet(number)
                late = due + self._overlap * self._per_update
                if place == late % self._sync_every and number in self._under_way:
                    self._merge(number)

    def meet(self) -> None:
        """All that have something new meet."""
        for number, fragment in enumerate(self._fragments):
            if number in self._under_way:
                self._merge(number)
            if self.amounts[number].any():
                self._meet(number)
            self._set(fragment, [self.common] * len(self.models))
        self._steps = 0

    def take_figures(self) -> dict[str, float]:
        """What callbacks tell of the meetings since this was last asked."""
        meetings, self._meetings = self._meetings, []
        if not meetings:
            return {}
        spreads, lengths, updates = np.transpose(meetings)
        return {
            "ring/meeting_drift": float(np.sqrt(spreads.sum() / lengths.sum())),
            "ring/meeting_update_norm": float(updates.mean()),
        }

    def forget(self) -> None:
        """No meeting has begun."""
        self._under_way.clear()

    def _depart(self, number: int) -> None:
        self._under_way[number] = (self._changes(number), self.amounts[number].copy())

    def _merge(self, number: int) -> None:
        fragment = self._fragments[number]
        before = [model.get_weights() for model in self.models]
        changes, amounts = self._under_way.pop(number)
        self.amounts[number] -= amounts
        self._take(fragment, changes, amounts)
        for own in before:
            for index in fragment:
                own[index] = (own[index] + self.common[index]) / 2
        self._set(fragment, before)

    def _meet(self, number: int) -> None:
        fragment = self._fragments[number]
        self._take(fragment, self._changes(number), self.amounts[number])
        self._set(fragment, [self.common] * len(self.models))
        self.amounts[number] = 0
        if len(self._fragments) == 1:
            self._steps = 0

    def _changes(self, number: int) -> list[Arrays]:
        return [
            [
                np.float32(self.common[index]) - model.get_weights()[index]
                for index in self._fragments[number]
            ]
            for model in self.models
        ]

    def _set(
        self,
        fragment: Sequence[int],
        everyones: list[Arrays],
        ranks: Sequence[int] | None = None,
    ) -> None:
        for number, (model, of_rank) in enumerate(
            zip(self.models, everyones, strict=True)
        ):
            if ranks is not None and number not in ranks:
                continue
            weights = model.get_weights()
            for index in fragment:
                weights[index] = of_rank[index]
            model.set_weights(weights)

    def _take(
        self, fragment: list[int], changes: list[Arrays], amounts: np.ndarray
    ) -> None:
        """One meeting: the average of the changes, and Nesterov's momentum."""
        if self._wire == "float32":
            averages = [
                np.average(of_all, axis=0, weights=amounts)
                for of_all in zip(*changes, strict=True)
            ]
        else:
            averages, left = thin_average(
                self._wire,
                changes,
                [[of_rank[index] for index in fragment] for of_rank in self.left],
                list(amounts / sum(amounts)),
            )
            for of_rank, left_of_rank in zip(self.left, left, strict=True):
                for index, one in zip(fragment, left_of_rank, strict=True):
                    of_rank[index] = one
        before = [self.common[index] for index in fragment]
        for index, change in zip(fragment, averages, strict=True):
            velocity = self._momentum * self._velocity[index] - self._rate * change
            self._velocity[index] = velocity
            self.common[index] = self.common[index] + (
                self._momentum * velocity - self._rate * change
                if self._momentum
                else velocity
            )
        update = [self.common[i] - b for i, b in zip(fragment, before, strict=True)]
        of_ranks = np.stack([_flat(of_rank) for of_rank in changes])
        mean = np.average(of_ranks, axis=0, weights=amounts)
        spreads = np.square(of_ranks - mean).sum(axis=1)
        self._meetings.append(
            (
                np.average(spreads, weights=amounts),
                mean @ mean,
                float(np.linalg.norm(_flat(update))),
            )
        )


def _flat(arrays: Arrays) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
