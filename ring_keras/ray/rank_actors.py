"""The actors that are the ranks of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ring_keras.engines.outcomes import lost_a_peer
from ring_keras.engines.rank_start import RankStart, places_by_host
from ring_keras.ray.rank_actor import RankActor

__all__ = ["Bundles", "RankActors", "results_of"]

_END_S = 30.0


@dataclass(frozen=True)
class Bundles:
    """Where ranks go.

    Attributes:
        count: How many bundles of Ray's resources they take.
        ranks: How many ranks each of these holds.
        strategy: How Ray places them: PACK, STRICT_SPREAD and so on.
        cpus: How many a rank takes.
        gpus: How many a rank takes.
        into_current: Whether they are those of the placement group in which the caller
            is, if it is in one.
    """

    count: int
    ranks: int
    strategy: str
    cpus: int
    gpus: int
    into_current: bool


class RankActors:
    """Starts them, as ranks that are numbered host by host.

    Args:
        bundles: How many, and where.
        env: Variables that each gets.
        timeout_s: How long, in seconds, Ray may take to make room.

    Attributes:
        by_rank: Ray's handles to `RankActor`s.

    Raises:
        TimeoutError: If there is no room in time.
    """

    def __init__(
        self, bundles: Bundles, env: Mapping[str, str], timeout_s: float
    ) -> None:
        group = get_current_placement_group() if bundles.into_current else None
        self._own_group = _room(bundles, timeout_s) if group is None else None
        actor_class = ray.remote(RankActor)
        self.by_rank = [
            actor_class.options(
                num_cpus=bundles.cpus,
                num_gpus=bundles.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group or self._own_group,
                    # -1: any of them.
                    placement_group_bundle_index=bundle if group is None else -1,
                ),
            ).remote(dict(env))
            for bundle in range(bundles.count)
            for _ in range(bundles.ranks)
        ]
        try:
            self._number(bundles, timeout_s)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends them. What a function still does in one is cut off after 30 s."""
        ends = [actor.end.remote() for actor in self.by_rank]
        ray.wait(ends, num_returns=len(ends), timeout=_END_S)
        for actor in self.by_rank:
            ray.kill(actor)
        if self._own_group is not None:
            remove_placement_group(self._own_group)

    def _number(self, bundles: Bundles, timeout_s: float) -> None:
        answers = [actor.host.remote() for actor in self.by_rank]
        try:
            hosts = ray.get(answers, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(
                f"Ray had no room within {timeout_s:g} s for {len(answers)} ranks of "
                f"{bundles.cpus} CPUs and {bundles.gpus} GPUs each in the placement "
                f"group. In all it has {ray.cluster_resources()}"
            ) from None
        placed = sorted(
            zip(places_by_host(hosts), self.by_rank, strict=True),
            key=lambda each: each[0].rank,
        )
        place, first = placed[0]  # The first actor is rank 0.
        card = ray.get(first.start_store.remote(place, hosts[0]))
        ray.get([each.begin.remote(RankStart(place, card)) for place, each in placed])
        self.by_rank = [actor for _, actor in placed]


def results_of(references: Sequence[Any]) -> list[Any]:
    """What ranks return, when all have.

    Raises:
        Exception: What a rank raised, as Ray raises it; of several that of the one
            which took the others along: the first that has lost nobody.
    """
    errors, running = [], list(references)
    while running:
        (ended,), running = ray.wait(running)
        try:
            ray.get(ended)
        except ray.exceptions.RayError as error:
            errors.append(error)
    if errors:
        # Ray's error has what was raised as its cause.
        raise min(
            errors,
            key=lambda error: lost_a_peer(getattr(error, "cause", None) or error),
        )
    results: list[Any] = ray.get(list(references))
    return results


def _room(bundles: Bundles, timeout_s: float) -> PlacementGroup:
    needs = {"CPU": bundles.cpus, "GPU": bundles.gpus}
    bundle = {name: n * bundles.ranks for name, n in needs.items() if n}
    group = placement_group([bundle] * bundles.count, strategy=bundles.strategy)
    if not group.wait(timeout_s):
        remove_placement_group(group)
        raise TimeoutError(
            f"Ray had no room within {timeout_s:g} s for {bundles.count} bundles of "
            f"{bundle} ({bundles.strategy}). In all it has {ray.cluster_resources()}"
        )
    return group
