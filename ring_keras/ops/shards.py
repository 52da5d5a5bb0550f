"""Variables of which each rank has its own part of what they are together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ring_keras import keras_internals as internals

__all__ = ["Shard", "refuse_shards", "set_shard", "shard_of"]

# Set on a TensorFlow variable.
_SHARD: Final = "_ring_keras_shard"


@dataclass(frozen=True)
class Shard:
    """What a variable is that one rank has, and the others have empty.

    Attributes:
        owner: The rank that has it.
        shape: Of the variable on that rank.
    """

    owner: int
    shape: tuple[int, ...]


def set_shard(variable: Any, shard: Shard) -> None:
    """Notes that a variable is one of those."""
    vars(internals.tensorflow_variable(variable))[_SHARD] = shard


def shard_of(variable: Any) -> Shard | None:
    """What has been noted; None of a variable that each rank has whole."""
    shard: Shard | None = vars(internals.tensorflow_variable(variable)).get(_SHARD)
    return shard


def refuse_shards(variables: Iterable[Any], who: str) -> None:
    """Raises, on all ranks, if one of the variables is not whole on each rank.

    Raises:
        ValueError: Says what to do.
    """
    for variable in variables:
        shard = shard_of(variable)
        if shard is not None:
            raise ValueError(
                "[RK337] "
                f"{who}: rank {shard.owner} alone has "
                f"'{getattr(variable, 'path', None) or variable.name}', because the "
                "optimizer has shard_state=True. Leave the variables of this optimizer "
                "out; the ranks begin with the same state if all of them load the same "
                "file, or none does."
            )
