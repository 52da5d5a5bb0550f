"""Which rank each worker of an engine is."""

from __future__ import annotations

from ring_keras.engines.rank_start import places_by_host
from ring_keras.launch.places import Place


def test_ranks_of_a_host_are_neighbours_whatever_the_engines_order() -> None:
    places = places_by_host(["b", "a", "b", "a", "c"])

    assert [place.rank for place in places] == [0, 2, 1, 3, 4]
    assert places[2] == Place(
        rank=1, size=5, local_rank=1, local_size=2, cross_rank=0, cross_size=2
    )
    assert places[4] == Place(
        rank=4, size=5, local_rank=0, local_size=1, cross_rank=2, cross_size=3
    )
