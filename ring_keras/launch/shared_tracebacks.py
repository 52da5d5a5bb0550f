"""Shows a traceback that several ranks have once, and says whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ring_keras.launch.console import OWN_PREFIX
from ring_keras.launch.tracebacks import START, Line, Traceback

__all__ = ["SharedTracebacks"]

# A rank that says no more for so long has come to the end of its traceback.
_QUIET_S = 0.3
# How long others have, from the first traceback on, to come with theirs.
_WINDOW_S = 1.0
# Of one rank, how much is kept back at most.
_MAX_NBYTES = 1 << 18
_MAX_LINES = 4000
_MAX_KNOWN = 64
_MAX_MESSAGE = 300


@dataclass(eq=False)
class _Held:
    """What is kept back of a rank: tracebacks, and what it has said since the first."""

    items: list[Traceback | Line]
    last_at: float
    complete_at: float | None = None

    @property
    def first(self) -> Traceback:
        """What its lines wait for."""
        assert isinstance(self.items[0], Traceback)
        return self.items[0]

    def excess(self) -> bool:
        """Whether it is too much to keep back."""
        lines = _as_it_is(self.items)
        nbytes = sum(len(line.text) for line in lines)
        return nbytes > _MAX_NBYTES or len(lines) > _MAX_LINES


class SharedTracebacks:
    """Keeps tracebacks back until those that are the same can be shown as one.

    Takes the ranks' standard error, and gives back what is to be shown of it, in an
    order in which no two lines of a rank change places. Times are those of one clock.
    """

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._open: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._known: dict[tuple[bytes, ...], set[int]] = {}
        self._failed: set[int] = set()
        self.interrupted = False
        """Whether the user has interrupted the ranks, which need not say so."""

    def add_rank(self, rank: int) -> None:
        """Expects that rank's lines."""
        self._ranks.add(rank)
        self._open.add(rank)

    def feed(
        self, rank: int, prefix: bytes, texts: Sequence[bytes], now: float
    ) -> list[Line]:
        """Takes lines of a rank; returns what to show now."""
        shown: list[Line] = []
        for text in texts:
            line = Line(prefix, text)
            held = self._held.get(rank)
            is_alone = len(self._ranks) < 2 and not self.interrupted
            if held is None and (text != START or is_alone):
                shown.append(line)
                continue
            if held is None:
                self._held[rank] = _Held([Traceback(rank, [line])], now)
                continue
            self._append(held, rank, line, now)
            held.last_at = now
        held = self._held.get(rank)
        if held is not None and held.excess():
            shown += _as_it_is(self._held.pop(rank).items)
        return shown + self._release(now)

    def end(self, rank: int, now: float) -> list[Line]:
        """The rank has closed its standard error; returns what to show now."""
        self._open.discard(rank)
        if (held := self._held.get(rank)) is not None and held.complete_at is None:
            held.complete_at = now
        return self._release(now)

    def poll(self, now: float) -> list[Line]:
        """Returns what to show once a `deadline` has come."""
        for held in self._held.values():
            if held.complete_at is None and now >= held.last_at + _QUIET_S:
                held.complete_at = now
        return self._release(now)

    def deadline(self) -> float | None:
        """When to `poll`, if nothing comes before; None: nothing is kept back."""
        return min(
            (
                held.last_at + _QUIET_S
                if held.complete_at is None
                else held.complete_at + _WINDOW_S
                for held in self._held.values()
            ),
            default=None,
        )

    def _append(self, held: _Held, rank: int, line: Line, now: float) -> None:
        last = held.items[-1]
        # After a pause, more is no part of it.
        is_open = held.complete_at is None or len(held.items) > 1
        if is_open and isinstance(last, Traceback) and last.take(line):
            return
        if held.complete_at is None:  # Another traceback begins.
            held.complete_at = now
        if line.text == START:
            held.items.append(Traceback(rank, [line]))
        else:
            held.items.append(line)

    def _release(self, now: float) -> list[Line]:
        shown: list[Line] = []
        while due := self._due(now):
            ready = sorted((held.first for held in due), key=lambda one: one.rank)
            shown += self._show(ready)
            for held in due:
                shown += self._go_on(held, now)
        return shown

    def _due(self, now: float) -> list[_Held]:
        """Those whose first traceback is to be shown, if it is time."""
        complete = [h for h in self._held.values() if h.complete_at is not None]
        if not complete:
            return []
        first = min(h.complete_at for h in complete if h.complete_at is not None)
        awaited = self._open - {h.first.rank for h in complete}
        awaited |= {rank for rank, h in self._held.items() if h.complete_at is None}
        return complete if not awaited or now >= first + _WINDOW_S else []

    def _go_on(self, held: _Held, now: float) -> list[Line]:
        """What a rank has said after its first traceback, to the next."""
        rank = held.first.rank
        del held.items[0]
        shown: list[Line] = []
        while held.items and isinstance(held.items[0], Line):
            shown.append(held.items.pop(0))  # type: ignore[arg-type]
        if not held.items:
            del self._held[rank]
        elif rank in self._open and len(held.items) == 1:
            held.complete_at = None
        else:
            held.complete_at = now
        return shown

    def _show(self, ready: Sequence[Traceback]) -> list[Line]:
        own = [one for one in ready if one.is_whole and one.follows is None]
        following = [one for one in ready if one.is_whole and one.follows is not None]
        shown = _as_it_is([one for one in ready if not one.is_whole])
        if self.interrupted:
            interrupts = [one for one in own if one.name == "KeyboardInterrupt"]
            shown += _show_interrupts(interrupts) + _beyond(following)
            own, following = [one for one in own if one not in interrupts], []
        groups: dict[tuple[bytes, ...], list[Traceback]] = {}
        for one in own:
            groups.setdefault(one.key(), []).append(one)
        for key, group in groups.items():
            shown += self._show_own(key, group)
        followers: dict[int, list[Traceback]] = {}
        for one in following:
            assert one.follows is not None
            followers.setdefault(one.follows, []).append(one)
        while followers:
            # Those of whose cause has been told; where two blame each other, one.
            told = (cause for cause in followers if cause in self._failed)
            cause = next(told, next(iter(followers)))
            shown += self._show_followers(cause, followers.pop(cause))
        return shown

    def _show_own(
        self, key: tuple[bytes, ...], group: Sequence[Traceback]
    ) -> list[Line]:
        ranks = {one.rank for one in group}
        self._failed |= ranks
        first = group[0]
        known = self._known.setdefault(key, set())
        told_of = min(known, default=None)
        if told_of is not None and not known & ranks:
            known |= ranks
            text = f"{_name(ranks)} raised {first.name} too, as rank {told_of} did"
            return [_own(text), *_beyond(group)]
        known.clear()  # Whoever raises it again is shown again.
        known |= ranks
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        shown = first.shown_lines()
        if len(group) > 1:
            shown.append(_own(f"{_name(ranks)} raised this {first.name}"))
        for other in group[1:]:
            shown += other.beyond(first)
        return shown

    def _show_followers(self, cause: int, group: Sequence[Traceback]) -> list[Line]:
        ranks = {one.rank for one in group}
        self._failed |= ranks
        first = group[0]
        if cause in self._failed:
            text = f"{_name(ranks)}: {first.name} because of rank {cause}"
            return [_own(_with_message(text, first)), *_beyond(group)]
        self._failed.add(cause)
        shown = first.shown_lines()
        if len(group) > 1:
            shown.append(_own(f"{_name(ranks)} raised this {first.name}"))
        return shown + _beyond(group[1:])


def _as_it_is(items: Sequence[Traceback | Line]) -> list[Line]:
    lines: list[Line] = []
    for item in items:
        lines += item.lines if isinstance(item, Traceback) else [item]
    return lines


def _beyond(group: Sequence[Traceback]) -> list[Line]:
    return [line for one in group for line in one.beyond_message()]


def _show_interrupts(ready: Sequence[Traceback]) -> list[Line]:
    """Where each rank was, which tells of a job that hung."""
    ranks: dict[str, set[int]] = {}
    for one in ready:
        ranks.setdefault(one.place, set()).add(one.rank)
    places = [f"{_name(own)} in {place}" for place, own in ranks.items()]
    return [
        *([_own(f"interrupted: {'; '.join(places)}")] if places else []),
        *_beyond(ready),
    ]


def _own(text: str) -> Line:
    return Line(OWN_PREFIX, text.encode())


def _with_message(text: str, traceback: Traceback) -> str:
    message = traceback.message
    return f"{text}: {message[:_MAX_MESSAGE]}" if message else text


def _name(ranks: set[int]) -> str:
    """Such as `rank 3`, or `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
