"""A launcher's time with a job that another one may take over."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ring_keras.launch.card import Card, CardAgent, CardError

__all__ = ["Tenure"]


class Tenure:
    """Keeps the job's card as it is now.

    Args:
        card: As it is at first.
        path: Where it is kept.
        taken_over: Whether another launcher has begun the job.
        ends_job: Whether this one is there to end it.
        by_majority: Whether it takes it over only with more than half of the ranks.
    """

    def __init__(
        self,
        card: Card,
        path: Path,
        *,
        taken_over: bool,
        ends_job: bool = False,
        by_majority: bool = False,
    ) -> None:
        self.card = card
        self.path = path
        self.taken_over = taken_over
        self.ends_job = ends_job
        self.by_majority = by_majority
        self.term = 1
        """This launcher's number: each one that takes the job over has a higher one."""
        self.unheard: Sequence[str] = ()
        """Hosts of the card that this launcher has not reached, and that may have
        ranks."""
        self.launcher_host = ""
        """An address of its host, which the agents' hosts reach."""
        self.say: Callable[[str], None] = lambda _text: None
        """Tells the user."""
        self.tell_agents: Callable[[Card], None] = lambda _card: None
        """Tells them what the card is now."""
        self._told = ""
        self._is_over = False

    @property
    def token(self) -> bytes | None:
        """The job's secret; None until there is one."""
        return bytes.fromhex(self.card.token) or None

    def begin(
        self,
        token: bytes,
        say: Callable[[str], None],
        tell_agents: Callable[[Card], None],
    ) -> None:
        """The job has that secret."""
        self.card = dataclasses.replace(self.card, token=token.hex())
        self.say, self.tell_agents = say, tell_agents

    def add(self, agent: CardAgent) -> None:
        """An agent keeps its ranks."""
        others = [one for one in self.card.agents if one.name != agent.name]
        self._write([*others, agent])

    def drop(self, name: str) -> None:
        """A host has no agent any more."""
        self.keep(one.name for one in self.card.agents if one.name != name)

    def keep(self, names: Iterable[str]) -> None:
        """The job has no other hosts than these."""
        kept = set(names)
        self._write([one for one in self.card.agents if one.name in kept])

    def end(self) -> None:
        """The job is over: so is its card."""
        self._is_over = True  # Hosts that part are not written down any more.
        if not self._is_anothers():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self, agents: list[CardAgent]) -> None:
        if self._is_over:
            return
        self.card = dataclasses.replace(self.card, agents=tuple(agents), term=self.term)
        if self.card.has_heirs:
            self.tell_agents(self.card)
        if self._is_anothers():
            return
        try:
            self.card.write(self.path)
        except CardError as error:
            if str(error) != self._told:
                self.say(
                    "[RK823] the job goes on, and nobody can take it over as it is "
                    f"now: {error}"
                )
            self._told = str(error)

    def _is_anothers(self) -> bool:
        """Whether a later launcher keeps it, of which this one will hear; or a job."""
        try:
            found = Card.read(self.path)
        except CardError:
            return False
        return found.token != self.card.token or found.term > self.term
