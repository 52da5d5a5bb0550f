"""What there is to say of a run, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ring_keras.monitoring.history import History
from ring_keras.monitoring.stragglers import Straggler

__all__ = ["headline", "period", "remedy", "sentence_of", "when", "who"]

# Of those that are slow alike; more are counted.
_MOST_NAMES = 4


def headline(history: History, stragglers: Sequence[Straggler]) -> str:
    """What to know first."""
    if not history.steps:
        return "No step has been measured yet."
    if stragglers and stragglers[0].pattern != "past":
        return sentence_of(stragglers[0])
    whole_s = float(np.nanmean(history.duration[-1]))
    share = np.nanmean(history.compute[-1]) / whole_s
    first = (
        history.steps[-2] + 1 if len(history.steps) > 1 else history.begins_after + 1
    )
    when_ = period((first, history.steps[-1]))
    of_a_step = f"{share:.0%} of a step's {_seconds(whole_s)} ({when_})."
    if len(history.ranks) == 1:
        return f"One rank trains: it computes {of_a_step}"
    if not stragglers:
        return f"No rank holds the others up: the ranks compute {of_a_step}"
    return (
        f"No rank holds the others up now: the ranks compute {of_a_step} "
        f"{sentence_of(stragglers[0])}"
    )


def who(one: Straggler) -> str:
    """The rank, the ranks or the link that is slow."""
    if one.peer is None:
        return _names(one.ranks, one.host)
    sender = f"rank {one.ranks[0]}{_of_host(one.host)}"
    return f"The link from {sender} to rank {one.peer}{_of_host(one.peer_host)}"


def sentence_of(straggler: Straggler) -> str:
    """Who is slow, at what, since when, and what it costs."""
    one = straggler
    if one.faster:
        return _of_the_faster(one)
    subject, what, cost = _of_a_link(one) if one.peer is not None else _of_ranks(one)
    if one.pattern == "past":
        return f"{subject} slow {when(one)}: {what}; {cost}."
    if one.pattern == "now and then":
        then = "" if one.reason == "unknown" else " then"
        return (
            f"{subject} slow now and then, in {one.slow_updates:,} of the last "
            f"{one.of_updates:,} updates, {when(one)}: {what}{then}; on average {cost}."
        )
    comma = "," if one.reason in ("input", "unknown") else ""
    return f"{subject} slow: {what}{comma} {when(one)}; {cost}."


def _of_a_link(one: Straggler) -> tuple[str, str, str]:
    """Who is slow, what was measured, and what it costs."""
    is_, have, costs = "is", "have", "costs"
    if one.pattern == "past":
        is_, have, costs = "was", "had", "cost"
    return (
        f"{who(one)} {is_}",
        f"{_rate(one.bandwidth)} where other links {have} {_rate(one.usual_bandwidth)}",
        f"it {costs} every rank {_seconds(one.lost_s)} a step",
    )


def _of_ranks(one: Straggler) -> tuple[str, str, str]:
    """The same."""
    alone, past = len(one.ranks) == 1, one.pattern == "past"
    their, they, them = ("its", "it", "it") if alone else ("their", "they", "them")
    is_, waits, measures = _VERBS[past, alone]
    takes, wait = ("took", "waited") if past else ("takes", "wait")
    what = {
        "compute": f"{their} compute {takes} {_times(one)}",
        "input": (
            f"{they} {waits} {_seconds(one.own_s)} a step for {their} input, where "
            f"others {wait} {_seconds(one.median_s)}"
        ),
    }.get(one.reason, f"what {they} {measures} does not say why")
    return (
        f"{who(one)} {is_}",
        what,
        f"the others {wait} {_seconds(one.lost_s)} a step for {them}",
    )


# By whether it is past, and whether it is one rank.
_VERBS = {
    (False, True): ("is", "waits", "measures"),
    (False, False): ("are", "wait", "measure"),
    (True, True): ("was", "waited", "measured"),
    (True, False): ("were", "waited", "measured"),
}


def _of_the_faster(one: Straggler) -> str:
    """Where the slow ones are most."""
    names = _names(one.faster, one.faster_host)
    alone = len(one.faster) == 1
    they, wait = ("it", "waits") if alone else ("they", "wait")
    what = {
        "compute": f"whose compute takes {one.own_s / one.median_s:.1f} x as long",
        "input": (
            f"which wait {_seconds(one.own_s)} a step for their input, where {they} "
            f"{wait} {_seconds(one.median_s)},"
        ),
    }.get(one.reason, "and what these measure does not say why,")
    return (
        f"{names} {'is' if alone else 'are'} faster than the other ranks, {what} "
        f"{when(one)}; {they} {wait} {_seconds(one.lost_s)} a step for those."
    )


def _names(ranks: Sequence[int], host: str) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}{_of_host(host)}"
    shown = [str(rank) for rank in sorted(ranks)[:_MOST_NAMES]]
    if len(ranks) > _MOST_NAMES:
        shown.append(f"{len(ranks) - _MOST_NAMES:,} more")
    return f"Ranks {', '.join(shown[:-1])} and {shown[-1]}{_of_host(host)}"


def _of_host(host: str) -> str:
    return f" (host {host})" if host else ""


def when(one: Straggler) -> str:
    """Since when, or from when to when."""
    if one.pattern != "past":
        if not one.since_step:
            return "since the beginning"
        return f"since step {one.since_step:,}"
    if one.since_step:
        return f"from step {one.since_step:,} to {one.until_step:,}"
    return f"from the beginning to step {one.until_step:,}"


def period(steps: tuple[int, int]) -> str:
    """The first and the last of some steps."""
    first, last = steps
    return f"steps {first:,} to {last:,}" if first < last else f"step {last:,}"


def remedy(one: Straggler) -> str:
    """What to do about it, and where the manual says more."""
    what, page, heading = _REMEDIES[one.reason]
    return f'{what}: see {page}, "{heading}".'


_REMEDIES = {
    "compute": (
        "Look at what else runs on that host, and whether its cores are kept slow",
        "docs/doctor.md",
        "What is checked",
    ),
    "input": (
        "Have its batches made ahead, and by several threads",
        "docs/data.md",
        "When the input is slow",
    ),
    "slow link": (
        "Measure the network between the two hosts, or choose another",
        "docs/hosts.md",
        "Choose the network",
    ),
    "unknown": (
        "Record what all ranks do meanwhile",
        "docs/monitoring.md",
        "Record a timeline of all ranks",
    ),
}


def _times(one: Straggler) -> str:
    if one.median_s <= 0:
        return f"{_seconds(one.own_s)}, the median none,"
    return f"{one.own_s / one.median_s:.1f} x the median"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        milliseconds = seconds * 1e3
        digits = 0 if milliseconds >= 10 else 1
        return f"{milliseconds:.{digits}f} ms"
    return f"{seconds * 1e6:.0f} us"


def _rate(bytes_per_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s:.3g} B/s"
