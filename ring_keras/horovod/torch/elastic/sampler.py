"""Which examples of an epoch are left for each rank when the ranks change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from ring_keras.job.topology import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):
    """Divides a data set among the ranks, and what is left of an epoch anew.

    Keep it in a `TorchState`, call `record_batch` after each batch, and `set_epoch` at
    the end of each epoch.

    Args:
        dataset: Of a fixed length.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders; the same on every rank.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing is processed.

        Args:
            epoch: Its number, from 0.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch.

        Args:
            batch_idx: Taken, and not needed.
            batch_size: The examples of one rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the same on every rank."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, with the ranks there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides what is left of the epoch among the ranks there are now."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # All ranks get as many: the first ones are repeated.
        left = self.remaining_indices
        padded = [left[number % len(left)] for number in range(self.total_size)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
