"""What a check has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Between", "Finding", "State", "as_json", "from_json", "worst"]


class State(str, Enum):
    """How good it is, from best to worst."""

    NOT_APPLICABLE = "not applicable"
    OK = "ok"
    WARNING = "warning"
    """A job runs, but may be slower, or fail later."""
    FAILURE = "failure"
    """A job cannot run so."""


@dataclass(frozen=True)
class Finding:
    """One check's result.

    Attributes:
        check: What was looked at; a check may have several findings.
        state: How good it is.
        found: What is there, in words.
        expected: What should be there; empty if that is what was found.
        fix: The command that fixes it, or the one that says more; empty if there
            is nothing to fix.
        measured: The same numbers for programs; units end their names.
    """

    check: str
    state: State
    found: str
    expected: str = ""
    fix: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Between:
    """A finding about several hosts.

    Attributes:
        hosts: Their names.
        finding: What was found.
    """

    hosts: tuple[str, ...]
    finding: Finding


def as_json(finding: Finding) -> dict[str, Any]:
    """As the report's JSON has it."""
    return {**asdict(finding), "state": finding.state.value}


def from_json(value: Mapping[str, Any]) -> Finding:
    """The finding that another host has sent.

    Raises:
        ValueError, TypeError: If it is none.
    """
    return Finding(**{**value, "state": State(value["state"])})


def worst(findings: Iterable[Finding]) -> State:
    """The worst state of them."""
    order = list(State)
    states = (finding.state for finding in findings)
    return max(states, key=order.index, default=State.OK)
