"""Variables of which each rank has its own part of what they are together."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ring_keras import keras_internals as internals

__all__ = ["Piece", "Shard", "refuse_shards", "set_shard", "shard_of"]

# Set on a TensorFlow variable.
_SHARD: Final = "_ring_keras_shard"


class Piece(NamedTuple):
    """Neighbouring elements of a variable, in row-major order, that one rank has.

    Attributes:
        owner: The rank.
        begin: The first one.
        end: The one after the last.
    """

    owner: int
    begin: int
    end: int


@dataclass(frozen=True)
class Shard:
    """What a variable is of which ranks have a piece each, or one has all.

    Attributes:
        shape: Of the whole.
        pieces: One behind the other, of different ranks. The other ranks have an empty
            variable.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def is_cut(self) -> bool:
        """Whether several ranks have it."""
        return len(self.pieces) > 1

    def piece_of(self, rank: int) -> Piece | None:
        """What that rank has."""
        its = [piece for piece in self.pieces if piece.owner == rank]
        return its[0] if its else None

    def rows_of(self, piece: Piece) -> slice | None:
        """Its part of the first axis; None: it begins or ends within a row."""
        row = math.prod(self.shape[1:])
        if not self.shape or not row or piece.begin % row or piece.end % row:
            return None
        return slice(piece.begin // row, piece.end // row)

    def shape_of(self, piece: Piece) -> tuple[int, ...]:
        """With which its rank has it."""
        if not self.is_cut:
            return self.shape
        if self.rows_of(piece) is None:
            return (piece.end - piece.begin,)
        row = math.prod(self.shape[1:])
        return ((piece.end - piece.begin) // row, *self.shape[1:])

    def cut(self, whole: Any, piece: Piece) -> Any:
        """That piece of NumPy's array of the whole."""
        flat = whole.reshape(-1)[piece.begin : piece.end]
        return flat.reshape(self.shape_of(piece))


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
        if shard_of(variable) is not None:
            raise ValueError(
                "[RK337] "
                f"{who}: not every rank has all of "
                f"'{getattr(variable, 'path', None) or variable.name}', because the "
                "optimizer has shard_state=True. Leave the variables of this optimizer "
                "out; the ranks begin with the same state if all of them load the same "
                "file, or none does."
            )
