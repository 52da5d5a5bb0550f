"""Whether variables that ranks match by position are the same ones.

Their names need not be equal: Keras numbers layers in the order in which a process
makes them, whatever has made some before. But that numbering keeps to one order, so
where two ranks have the same names in another order, they have made layers in another
order, and would train one with the other's gradients.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.gathering import gather_bytes
from ring_keras.job.process_set import ProcessSet

__all__ = [
    "crossed",
    "note_places",
    "place_of",
    "refuse_crossed",
    "require_common_order",
    "warn_of_other_names",
]

# Set on a TensorFlow variable: its position in the latest list that the ranks of a
# process set have had in common, by the set's key.
_PLACES = "_ring_keras_places"
# What Keras appends to a name that is taken.
_NUMBER = re.compile(r"_\d+(?=[/:]|$)")


def note_places(variables: Sequence[Any], process_set: ProcessSet) -> None:
    """Notes that ranks have lists whose variables are the same, by position."""
    for position, variable in enumerate(variables):
        attributes = vars(internals.tensorflow_variable(variable))
        attributes.setdefault(_PLACES, {})[process_set.key()] = position


def place_of(variable: Any, process_set: ProcessSet) -> int | None:
    """The position that `note_places` has noted; None if it has not."""
    variable = internals.tensorflow_variable(variable)
    places: dict[int, int] = getattr(variable, _PLACES, {})
    return places.get(process_set.key())


def require_common_order(
    names: Sequence[str], name: str, process_set: ProcessSet
) -> None:
    """Raises if the ranks have the same variables in another order; collective.

    Args:
        names: Of this rank's variables.
        name: Pairs this call with the other ranks'.
        process_set: The ranks that take part.

    Raises:
        RankMismatchError: On every rank.
    """
    communicator_id = process_set.communicator_id()
    text = "\n".join(names).encode()
    digest = hashlib.sha256(text).digest()
    digests = gather_bytes(digest, f"{name}/names", communicator_id)
    if len({theirs for _, theirs in digests}) > 1:
        gathered = gather_bytes(text, f"{name}/all_names", communicator_id)
        refuse_crossed(
            name,
            [rank for rank, _ in gathered],
            [theirs.decode().split("\n") for _, theirs in gathered],
        )


def refuse_crossed(
    what: str, ranks: Sequence[int], names: Sequence[Sequence[str]]
) -> None:
    """Raises if two ranks have the same variables in another order.

    Args:
        what: What the ranks are about to do with them.
        ranks: Those that have variables.
        names: Of each one's variables.

    Raises:
        RankMismatchError: On every rank, as all pass the same.
    """
    for rank, theirs in zip(ranks[1:], names[1:], strict=True):
        position = crossed(names[0], theirs)
        if position is not None:
            raise RankMismatchError(
                "[RK335] "
                f"{what}: the ranks have the same variables in different orders: at "
                f"position {position} rank {ranks[0]} has '{names[0][position]}', rank "
                f"{rank} has '{theirs[position]}'. Ranks match variables by position, "
                "so they would train each with the other's gradients. Make layers, and "
                "list variables, in the same order on every rank: go through sorted() "
                "of a set, whose own order is another one in each process."
            )


def warn_of_other_names(
    what: str, ranks: Sequence[int], names: Sequence[Sequence[str]]
) -> None:
    """Tells of a place at which ranks have variables of other names.

    They may be the same ones, so it is no error.

    Args:
        what: What the ranks are about to do with them.
        ranks: Those that have variables.
        names: Of each one's variables.
    """
    for rank, theirs in zip(ranks[1:], names[1:], strict=True):
        position = _named_otherwise(names[0], theirs)
        if position is not None:
            logging.warning(
                "ring_keras: [RK351] "
                "%s: ranks match variables by position, and at position %d rank %d has "
                "'%s', rank %d has '%s'. If these are not the same weights of the "
                "model, each is trained with the other's gradients: give every rank "
                "gradients of the same variables, zeros for those that it does not "
                "use.",
                what,
                position,
                ranks[0],
                names[0][position],
                rank,
                theirs[position],
            )
            return


def _named_otherwise(first: Sequence[str], second: Sequence[str]) -> int | None:
    """The first position where names differ by more than Keras's numbers.

    None if all do: then a rank has given its model, not a layer, another name.
    """
    same = [
        _without_numbers(here) == _without_numbers(there)
        for here, there in zip(first, second, strict=False)
    ]
    return same.index(False) if any(same) and not all(same) else None


def crossed(first: Sequence[str], second: Sequence[str]) -> int | None:
    """The first position at which two lists have the same names in another order.

    Names that are the same but for Keras's numbers may differ: 'dense/kernel' and
    'dense_1/kernel', say, followed by 'dense_1/kernel' and 'dense_2/kernel'. From a
    name to that at its position, and on to that at the position of this one, no such
    way leads back to where it has begun; where names are exchanged, it does.
    """
    for rule in (str, _without_numbers):
        before, after = (list(map(rule, names)) for names in (first, second))
        ways: dict[str, set[str]] = {}
        for here, there in zip(before, after, strict=False):
            if here != there:
                ways.setdefault(here, set()).add(there)
        _remove_ends(ways)
        for position, (here, there) in enumerate(zip(before, after, strict=False)):
            if here != there and _leads_back(ways, here, there):
                return position
    return None


def _without_numbers(name: str) -> str:
    return _NUMBER.sub("", name)


def _remove_ends(ways: dict[str, set[str]]) -> None:
    """Leaves names alone from which one may go on for ever."""
    come_from: dict[str, list[str]] = {}
    for here, others in ways.items():
        for there in others:
            come_from.setdefault(there, []).append(here)
    ends = [there for there in come_from if there not in ways]
    while ends:
        end = ends.pop()
        for here in come_from.get(end, ()):
            ways[here].discard(end)
            if not ways[here]:
                del ways[here]
                ends.append(here)


def _leads_back(ways: dict[str, set[str]], start: str, then: str) -> bool:
    waiting, seen = [then], {then}
    while waiting:
        here = waiting.pop()
        if here == start:
            return True
        new = ways.get(here, set()) - seen
        seen |= new
        waiting += new
    return False
