"""All that was found, as text and as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.doctor.finding import Between, Finding, State, as_json, worst

__all__ = ["HostReport", "Report"]

_SCHEMA_VERSION = 1
_MARKS = {
    State.OK: "ok",
    State.WARNING: "!!",
    State.FAILURE: "NO",
    State.NOT_APPLICABLE: "--",
}
_LEAST_WIDTH = 60


@dataclass
class HostReport:
    """What was found on a host.

    Attributes:
        name: The host's.
        local_size: Ranks for which it was checked.
        findings: What each check found.
        facts: Its versions.
    """

    name: str
    local_size: int
    findings: list[Finding] = field(default_factory=list)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """What was found on all hosts, and between them."""

    hosts: Sequence[HostReport]
    between: Sequence[Between]

    @property
    def state(self) -> State:
        """The worst of all."""
        return worst(self._findings())

    @property
    def exit_code(self) -> int:
        """1 if a job cannot run so, else 0."""
        return 1 if self.state is State.FAILURE else 0

    def as_json(self) -> str:
        """See docs/doctor.md."""
        value: dict[str, Any] = {
            "schema": _SCHEMA_VERSION,
            "ring_keras": __version__,
            "state": self.state.value,
            "hosts": [
                {
                    "name": host.name,
                    "ranks": host.local_size,
                    "versions": dict(host.facts),
                    "findings": [as_json(finding) for finding in host.findings],
                }
                for host in self.hosts
            ],
            "between_hosts": [
                {"hosts": list(some.hosts), **as_json(some.finding)}
                for some in self.between
            ],
        }
        return json.dumps(value, indent=2)

    def as_text(self, verbose: bool) -> str:
        """For a terminal, or a file.

        Args:
            verbose: Whether each host's good findings are shown where there are
                several hosts; they are of one.
        """
        whole = verbose or len(self.hosts) == 1
        width = max(_LEAST_WIDTH, shutil.get_terminal_size((100, 24)).columns - 1)
        titles = [finding.check for finding in self._findings()]
        column = max(map(len, titles), default=0)
        lines = []
        for host in self.hosts:
            ranks = "1 rank" if host.local_size == 1 else f"{host.local_size} ranks"
            lines.append(f"{host.name}, for {ranks}:")
            good = (State.OK, State.NOT_APPLICABLE)
            bad = [finding for finding in host.findings if finding.state not in good]
            for finding in host.findings if whole else bad:
                lines += _lines(finding, column, width)
            if not whole and len(bad) < len(host.findings):
                count = len(host.findings) - len(bad)
                text = f"{count} checks found nothing wrong; -v shows them"
                lines += _lines(Finding("others", State.OK, text), column, width)
        if self.between:
            lines.append("between the hosts:")
            for some in self.between:
                lines += _lines(some.finding, column, width)
        return "\n".join([*lines, "", self._summary()])

    def _summary(self) -> str:
        states = [finding.state for finding in self._findings()]
        failures, warnings = map(states.count, (State.FAILURE, State.WARNING))
        if not failures and not warnings:
            return "All is well."
        counts = [
            f"{count} {word}{'s' if count > 1 else ''}"
            for count, word in ((failures, "failure"), (warnings, "warning"))
            if count
        ]
        end = "a job cannot run so" if failures else "a job can run"
        return f"{' and '.join(counts)}: {end}."

    def _findings(self) -> Iterator[Finding]:
        for host in self.hosts:
            yield from host.findings
        for some in self.between:
            yield some.finding


def _lines(finding: Finding, column: int, width: int) -> Iterator[str]:
    """The finding; below it, if it is bad, what was expected and what fixes it."""
    mark = f"  [{_MARKS[finding.state]}] {finding.check:<{column}}  "
    indent = " " * len(mark)
    # Paths and commands are for copying, so no word is cut.
    yield from textwrap.wrap(
        finding.found,
        width,
        initial_indent=mark,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if finding.expected:
        yield from textwrap.wrap(
            f"expected: {finding.expected}",
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    if finding.fix:
        yield f"{indent}fix: {finding.fix}"
