"""What one rank does in an allreduce, for every algorithm: trips, messages, bytes.

Pure arithmetic, of the algorithms in `tf_ops/collectives`; `fit.py` turns it into
time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "Cost",
    "announced",
    "cost_of",
    "hierarchical",
    "hierarchical_in_16_bits",
    "hierarchical_rings",
    "names",
    "posts",
    "unposted",
]

# As in allreduce_messages.cc and allreduce_hierarchical.cc: what a rank sends at a
# time, what a hierarchy does at a time, and how many lanes share a host's link.
MESSAGE_BYTES = 128 << 10
TREE_CHUNK_BYTES, MAX_TREE_CHUNKS = 64 << 10, 64
MIN_ROUND_BYTES, MAX_ROUND_BYTES = 256 << 10, 16 << 20
LANES_OF_A_HOST = 4
# As in tuning.h: up to how many bytes a lane reduces by what.
DOUBLING_BYTES, DOUBLING_RANKS = 16 << 10, 128
PARTS_BYTES, PARTS_RANKS = 1 << 20, 8
RING_MESSAGE_BYTES = 128 << 10
# Of the processors that were measured, shared by their cores.
CACHE_BYTES = 32 << 20


@dataclass(frozen=True)
class Cost:
    """Work on the path that decides when a rank is done.

    Attributes:
        trips: Messages that wait for one another.
        messages: That this rank sends.
        wire_bytes: That it sends.
        copied_bytes: That its core reads or writes to send, receive and reduce.
        syncs: Times that it waits for ranks of its host.
        near_bytes: That its core reads or writes in memory that the ranks of its
            host share, where the processor's cache holds all of it.
        far_bytes: The same where it does not.
    """

    trips: float = 0
    messages: float = 0
    wire_bytes: float = 0
    copied_bytes: float = 0
    syncs: float = 0
    near_bytes: float = 0
    far_bytes: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.trips + other.trips,
            self.messages + other.messages,
            self.wire_bytes + other.wire_bytes,
            self.copied_bytes + other.copied_bytes,
            self.syncs + other.syncs,
            self.near_bytes + other.near_bytes,
            self.far_bytes + other.far_bytes,
        )


def posts(hosts: int, per_host: int = 1) -> Cost:
    """All ranks hear from all, by way of others: a repeated collective begins so."""
    trips = math.ceil(math.log2(hosts))
    return Cost(trips=trips, messages=trips, syncs=math.ceil(math.log2(per_host)))


def direct(size: int, nbytes: float) -> Cost:
    """All data go with the posts; each rank reduces everything."""
    if size == 1:
        return Cost()
    # Packs, and reads what all have sent.
    return posts(size) + Cost(
        wire_bytes=(size - 1) * nbytes, copied_bytes=(1 + size) * nbytes
    )


def doubling(size: int, nbytes: float) -> Cost:
    """Recursive doubling: log2(size) exchanges of all data."""
    return _of_one_lane(_lane_by_doubling, size, nbytes)


def parts(size: int, nbytes: float) -> Cost:
    """Each rank reduces a part that all send it, then sends it to all."""
    return _of_one_lane(_lane_of_parts, size, nbytes)


def halving(size: int, nbytes: float) -> Cost:
    """Recursive halving and doubling, whatever the number of ranks."""
    return _of_one_lane(_lane_by_halving, size, nbytes)


def trees(size: int, nbytes: float) -> Cost:
    """Two binary trees at once, each with half of the data."""
    return _of_one_lane(_lane_along_trees, size, nbytes)


def ring(size: int, nbytes: float) -> Cost:
    """Reduce-scatter and allgather around a ring."""
    return _of_one_lane(_lane_in_a_ring, size, nbytes)


# Of a lane's members, its bytes, and the pieces in which they go.
_Lane = Callable[[int, float, int], Cost]


def _of_one_lane(lane: _Lane, size: int, nbytes: float) -> Cost:
    if size == 1:
        return Cost()
    pieces = max(1, math.ceil(nbytes / (MESSAGE_BYTES * size)))
    return posts(size) + lane(size, nbytes, pieces)


def _pick_lane(size: int, nbytes: float) -> _Lane:
    """As in pattern_choice.cc, of float32."""
    if nbytes <= DOUBLING_BYTES and size <= DOUBLING_RANKS:
        return _lane_by_doubling
    if size <= PARTS_RANKS:
        return _lane_of_parts if nbytes <= PARTS_BYTES else _lane_in_a_ring
    if nbytes <= RING_MESSAGE_BYTES * size:
        return _lane_by_halving
    return _lane_in_a_ring


def _lane_by_doubling(size: int, nbytes: float, pieces: int) -> Cost:
    steps = int(math.log2(size))
    # Members beyond the last power of two hand in before and are told after.
    steps += 2 if size != 1 << steps else 0
    return Cost(
        trips=steps,
        messages=steps * pieces,
        wire_bytes=steps * nbytes,
        copied_bytes=(1 + 2 * steps) * nbytes,
    )


def _lane_by_halving(size: int, nbytes: float, pieces: int) -> Cost:
    steps = 2 * (size - 1).bit_length()
    return Cost(
        trips=steps,
        messages=steps * pieces,
        wire_bytes=2 * (size - 1) / size * nbytes,
        copied_bytes=(1 + 2) * nbytes,
    )


def _lane_along_trees(size: int, nbytes: float, pieces: int) -> Cost:
    levels = size.bit_length() - 1
    piece_bytes = nbytes / pieces
    chunks = math.ceil(piece_bytes / (2 * TREE_CHUNK_BYTES))
    chunks = min(max(chunks, 1), MAX_TREE_CHUNKS)
    chunk_bytes = piece_bytes / (2 * chunks)
    # A member has two children in one tree and none in the other: it sends its
    # parents a chunk each, and its children one each. Before the first chunk is
    # back, it has been handled at each level: with its neighbour's, as two come up
    # to a member, and two go down from it.
    on_the_way = 4 * (levels - 1) * chunk_bytes
    return Cost(
        trips=2 * levels,
        messages=4 * chunks * pieces + 3 * (levels - 1),
        wire_bytes=min(size, 4) / 2 * nbytes + on_the_way,
        copied_bytes=(1 + 2 + 1 / 2) * nbytes + on_the_way,
    )


def _lane_of_parts(size: int, nbytes: float, pieces: int) -> Cost:
    return Cost(
        trips=2,
        messages=2 * (size - 1) * pieces,
        wire_bytes=2 * (size - 1) / size * nbytes,
        copied_bytes=(1 + 2) * nbytes,
    )


def _lane_in_a_ring(size: int, nbytes: float, pieces: int) -> Cost:
    return Cost(
        trips=2 * (size - 1),
        messages=2 * (size - 1) * pieces,
        wire_bytes=2 * (size - 1) / size * nbytes,
        copied_bytes=(1 + 2) * nbytes,
    )


def shared_flat(size: int, nbytes: float) -> Cost:
    """On one host: each rank reads all ranks' data and writes its own result."""
    if size == 1:
        return Cost()
    # Packs (reads and writes), reads everybody's, writes the result.
    return Cost(syncs=1) + _in_memory(size, nbytes, (2 + size + 1) * nbytes)


def shared_parts(size: int, nbytes: float) -> Cost:
    """On one host: each rank reduces a part, then copies the others'."""
    if size == 1:
        return Cost()
    # Packs, reads all ranks' parts and writes one, reads and writes the rest.
    return Cost(syncs=2) + _in_memory(size, nbytes, (2 + 1 + 1 / size + 2) * nbytes)


def _in_memory(size: int, nbytes: float, touched: float) -> Cost:
    """`touched` bytes of the inputs and outputs of all ranks of a host."""
    if 2 * size * nbytes > CACHE_BYTES:
        return Cost(far_bytes=touched)
    return Cost(near_bytes=touched)


def hierarchical(
    hosts: int, per_host: int, nbytes: float, lane: _Lane | None = None
) -> Cost:
    """Reduces on each host, then across hosts, each rank of a host its share.

    The ranks of a host share its link: the wire bytes of all are counted.

    Args:
        hosts: How many.
        per_host: Ranks on each.
        nbytes: Of the data.
        lane: What each lane runs; by default what the engine picks.
    """
    if hosts == 1:
        return shared_parts(per_host, nbytes)
    round_bytes = min(
        max(MESSAGE_BYTES * hosts * per_host, MIN_ROUND_BYTES), MAX_ROUND_BYTES
    )
    rounds = max(1, math.ceil(nbytes / round_bytes))
    lane_bytes = min(nbytes, round_bytes) / per_host
    lane = lane or _pick_lane(hosts, LANES_OF_A_HOST * lane_bytes)
    cost = lane(hosts, nbytes / per_host, rounds)
    shared = shared_parts(per_host, nbytes)
    lanes = dataclasses.replace(cost, wire_bytes=cost.wire_bytes * per_host)
    return posts(hosts, per_host) + lanes + shared


def hierarchical_rings(hosts: int, per_host: int, nbytes: float) -> Cost:
    """The same as if lanes could run nothing else, to compare with."""
    return hierarchical(hosts, per_host, nbytes, _lane_in_a_ring)


def hierarchical_in_16_bits(hosts: int, per_host: int, nbytes: float) -> Cost:
    """`hierarchical` with `compression="bf16"`: between hosts half of the bytes.

    Rounds and messages stay as many, and lanes go by parts, so that each sum is
    rounded once.
    """
    whole = hierarchical(hosts, per_host, nbytes, _lane_of_parts)
    if hosts == 1:
        return whole
    # A lane rounds its share, and widens the result: 4 bytes and 2 of each number.
    rounded_bytes = 2 * 1.5 * nbytes / per_host
    return dataclasses.replace(
        whole,
        wire_bytes=whole.wire_bytes / 2,
        copied_bytes=whole.copied_bytes / 2 + rounded_bytes,
    )


def unposted(hosts: int, per_host: int, nbytes: float) -> Cost:
    """`hierarchical` as if all ranks knew that all take part, to compare with."""
    cost, told = hierarchical(hosts, per_host, nbytes), posts(hosts, per_host)
    return dataclasses.replace(
        cost,
        trips=cost.trips - told.trips,
        messages=cost.messages - told.messages,
        syncs=cost.syncs - told.syncs,
    )


def announced(hosts: int, per_host: int, nbytes: float) -> Cost:
    """`hierarchical` as if each rank told each other itself: a first use."""
    told = Cost(trips=1, messages=hosts * per_host - 1)
    return unposted(hosts, per_host, nbytes) + told


def direct_from_each(hosts: int, per_host: int, nbytes: float) -> Cost:
    """`direct` where the ranks of a host share its link."""
    size = hosts * per_host
    abroad = size - per_host
    return dataclasses.replace(
        direct(size, nbytes), wire_bytes=per_host * abroad * nbytes
    )


_ON_ONE_HOST: dict[str, Callable[[int, float], Cost]] = {
    "shared_flat": shared_flat,
    "shared_parts": shared_parts,
}
_ONE_RANK_A_HOST: dict[str, Callable[[int, float], Cost]] = {
    "direct": direct,
    "doubling": doubling,
    "parts": parts,
    "halving": halving,
    "trees": trees,
    "ring": ring,
}
_SEVERAL_RANKS_A_HOST: dict[str, Callable[[int, int, float], Cost]] = {
    "direct": direct_from_each,
    "hierarchical": hierarchical,
}


def names(hosts: int, per_host: int) -> list[str]:
    """The algorithms that there are for so many ranks."""
    if hosts == 1:
        return list(_ON_ONE_HOST)
    return list(_ONE_RANK_A_HOST if per_host == 1 else _SEVERAL_RANKS_A_HOST)


def cost_of(algorithm: str, hosts: int, per_host: int, nbytes: float) -> Cost:
    """The cost of one of `names(hosts, per_host)`."""
    if hosts == 1:
        return _ON_ONE_HOST[algorithm](per_host, nbytes)
    if per_host == 1:
        return _ONE_RANK_A_HOST[algorithm](hosts, nbytes)
    return _SEVERAL_RANKS_A_HOST[algorithm](hosts, per_host, nbytes)
