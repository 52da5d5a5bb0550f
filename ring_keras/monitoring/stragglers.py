"""Who holds the others up, since when, and why."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.history import History
from ring_keras.monitoring.links import Link, slow_links, sums_of_links
from ring_keras.monitoring.spells import Pattern, Spell

__all__ = ["Reason", "Straggler", "find_stragglers"]

Reason = Literal["compute", "input", "slow link", "unknown"]

# What the others wait for a rank counts from this part of a step on.
_LEAST_PART = 0.03
_LEAST_S = 2e-4
# What a rank takes more than the median explains the others' wait if it is so much
# of it.
_EXPLAINS = 0.5
# Who waits less than this part of what others wait is one of those that are slow.
_HARDLY_WAITS = 1 / 3
# Who costs less than that part of what the first one costs is left out.
_WORTH_A_WORD = 0.2
# The updates that are looked at: the last ones, and at least so many.
_RECENT_PART = 0.25
_LEAST_RECENT = 5

_Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Straggler:
    """Who holds the others up: a rank, several alike, or a link between two.

    Attributes:
        ranks: The slow ones, the one that is waited for most first; the sender of a
            slow link.
        host: Where they are; empty if that is more than one.
        reason: "compute" and "input": they take longer there than those who wait for
            them; "slow link": bytes to `peer` move slower than elsewhere; "unknown":
            the others wait for them, and what they measure does not say why.
        pattern: "steady": since then; "now and then"; "past": no more.
        lost_s: What it costs each of the others, seconds a step: of "now and then" on
            average over the last `of_updates` updates, of "past" while it was so.
        lost_in: The first and the last step of which that is the mean.
        own_s: What they take there while they are slow, seconds a step; of a link, 0.
        median_s: What the others take there in the middle.
        since_step: The first step of it; 0 if that is the beginning.
        until_step: The last step in which it was seen.
        slow_updates: How many of the last `of_updates` updates were slow.
        of_updates: See there.
        waiting_part: Which part of the ranks it costs that.
        faster: Those who wait, where they are fewer than the slow ones.
        faster_host: Where those are.
        peer: The other end of a slow link.
        peer_host: Its name.
        bandwidth: Of a slow link, bytes/s.
        usual_bandwidth: Of the links in the middle.
    """

    ranks: tuple[int, ...]
    host: str
    reason: Reason
    pattern: Pattern
    lost_s: float
    own_s: float
    median_s: float
    since_step: int
    until_step: int
    slow_updates: int
    of_updates: int
    lost_in: tuple[int, int]
    waiting_part: float = 1.0
    faster: tuple[int, ...] = ()
    faster_host: str = ""
    peer: int | None = None
    peer_host: str = ""
    bandwidth: float = 0.0
    usual_bandwidth: float = 0.0


def find_stragglers(history: History) -> list[Straggler]:
    """Those of the last updates: first who is slow now, the one that costs most."""
    if not history.steps or len(history.ranks) < 2:
        return []
    count = len(history.steps)
    recent = max(round(count * _RECENT_PART), min(_LEAST_RECENT, count))
    found = [*_slow_ranks(history, recent), *_slow_links(history, recent)]
    found.sort(key=lambda one: (one.pattern == "past", -_of_all(one)))
    most = max(map(_of_all, found), default=0.0)
    # Every rank is the last one now and then.
    return [one for one in found if _of_all(one) >= _WORTH_A_WORD * most]


def _of_all(one: Straggler) -> float:
    """What it costs on average over all ranks, also those that do not wait."""
    return one.lost_s * one.waiting_part


def _slow_ranks(history: History, recent: int) -> list[Straggler]:
    least = _least(history)
    least_mean = _mean(least[-recent:])
    present = ~np.isnan(history.duration[-1])
    together = _slow_together(history, recent) & present
    found = []
    if together.any():
        lost = _means(history.wait[:, present & ~together])
        # Where few wait, that costs little.
        part = (present & ~together).sum() / present.sum()
        if _mean(lost[-recent:]) * part >= least_mean:
            spell = Spell.of(lost * part >= least, recent)
            found.append(_straggler(history, together, ~together, lost, spell))
    waited_for = _means(history.waited_for[-recent:].T)
    for index in np.flatnonzero(present & ~together & (waited_for >= least_mean)):
        alone = np.arange(len(history.ranks)) == index
        others = ~alone & ~together
        if not others.any():
            others = ~alone
        lost = history.waited_for[:, index]
        spell = Spell.of(lost >= least, recent)
        found.append(_straggler(history, alone, others, lost, spell))
    return found


def _slow_together(history: History, recent: int) -> NDArray[np.bool_]:
    """Which ranks are slow alike, so that none of them is the last one every time.

    They hardly wait, and take longer than those who do by what those wait. The median
    of all would not tell: it is theirs, where they are most.
    """
    wait = _means(history.wait[-recent:].T)
    busy = _means((history.compute + history.input)[-recent:].T)
    longest = np.nanmax(wait)
    waits = wait >= _HARDLY_WAITS * longest
    excess = busy - np.nanmedian(busy[waits])
    slow: NDArray[np.bool_] = ~waits & (excess >= _EXPLAINS * longest)
    return slow if slow.sum() > 1 else np.zeros_like(slow)


def _straggler(
    history: History,
    slow: NDArray[np.bool_],
    others: NDArray[np.bool_],
    lost: _Array,
    spell: Spell,
) -> Straggler:
    excess, median, reason = max(
        (
            _excess(history.compute, slow, others, spell, "compute"),
            _excess(history.input, slow, others, spell, "input"),
        ),
        key=lambda found: found[0],
    )
    explained = excess >= _EXPLAINS * _mean(lost[spell.slow])
    ranks = np.array(history.ranks)
    waited_for = _means(history.waited_for[spell.slow].T)
    members = np.flatnonzero(slow)
    members = members[np.argsort(-waited_for[members], kind="stable")]
    present = ~np.isnan(history.duration[-1])
    faster = present & ~slow
    are_few = faster.sum() < slow.sum() and spell.pattern == "steady"
    return Straggler(
        ranks=tuple(ranks[members].tolist()),
        host=_host(history, slow),
        reason=reason if explained else "unknown",
        pattern=spell.pattern,
        lost_s=_mean(lost[spell.updates]),
        own_s=excess + median,
        median_s=median,
        waiting_part=float((present & ~slow).sum() / present.sum()),
        faster=tuple(ranks[faster].tolist()) if are_few else (),
        faster_host=_host(history, faster) if are_few else "",
        **_when(history, spell),
    )


def _excess(
    values: _Array,
    slow: NDArray[np.bool_],
    others: NDArray[np.bool_],
    spell: Spell,
    reason: Reason,
) -> tuple[float, float, Reason]:
    """What they took more than the others' median, and that, while they were slow."""
    values = values[spell.slow]
    median = _mean(np.nanmedian(values[:, others], axis=1))
    return _mean(values[:, slow]) - median, median, reason


def _slow_links(history: History, recent: int) -> list[Straggler]:
    """Those over which the steps' exposed transfer has been waiting."""
    exposed = _means(history.exposed)
    if not _mean(exposed[-recent:]) >= _mean(_least(history)[-recent:]):
        return []
    hosts = dict(zip(history.ranks, history.hosts, strict=True))
    tables = history.tables
    found = []
    for link, _ in _slow_in_sum(history, np.arange(len(tables))[-recent:]):
        ends = link.sender, link.receiver
        was_slow = np.array([ends in table.slow_links for table in tables])
        if not was_slow[-recent:].any():
            continue
        spell = Spell.of(was_slow, recent)
        for then, usual in _slow_in_sum(history, spell.slow):
            if (then.sender, then.receiver) != ends:
                continue
            # A link as fast as the others would have taken that part of the time.
            lost = np.where(was_slow, exposed * (1 - then.bandwidth / usual), 0.0)
            found.append(
                Straggler(
                    ranks=(link.sender,),
                    host=hosts.get(link.sender, ""),
                    reason="slow link",
                    pattern=spell.pattern,
                    lost_s=_mean(lost[spell.updates]),
                    own_s=0.0,
                    median_s=0.0,
                    peer=link.receiver,
                    peer_host=hosts.get(link.receiver, ""),
                    bandwidth=then.bandwidth,
                    usual_bandwidth=usual,
                    **_when(history, spell),
                )
            )
    return found


def _slow_in_sum(
    history: History, updates: NDArray[np.int64]
) -> list[tuple[Link, float]]:
    tables = [history.tables[index] for index in updates]
    return slow_links(sums_of_links(link for table in tables for link in table.links))


def _least(history: History) -> _Array:
    """What a wait must cost to be worth a word, by update."""
    return np.maximum(_LEAST_PART * np.nanmedian(history.duration, axis=1), _LEAST_S)


def _when(history: History, spell: Spell) -> dict[str, Any]:
    """The steps of a spell. What is written down of an update is its last one."""
    since = 0
    # The first step, which is traced, is left out.
    if spell.first > 0 or history.begins_after > 1:
        since = _first_step(history, spell.first)
    updates = range(len(history.steps))[spell.updates]
    return {
        "since_step": since,
        "until_step": history.steps[spell.last],
        "slow_updates": len(spell.slow),
        "of_updates": len(updates),
        "lost_in": (_first_step(history, updates[0]), history.steps[updates[-1]]),
    }


def _first_step(history: History, update: int) -> int:
    """Of an update."""
    before = history.steps[update - 1] if update > 0 else history.begins_after
    return before + 1


def _host(history: History, ranks: NDArray[np.bool_]) -> str:
    hosts = {history.hosts[index] for index in np.flatnonzero(ranks)}
    return hosts.pop() if len(hosts) == 1 else ""


def _means(values: _Array) -> _Array:
    """Over the last axis; 0 where nobody was there."""
    was_there = ~np.isnan(values)
    sums: _Array = np.nansum(values, axis=-1) / np.maximum(was_there.sum(axis=-1), 1)
    return sums


def _mean(values: _Array) -> float:
    return float(_means(values.ravel()))
