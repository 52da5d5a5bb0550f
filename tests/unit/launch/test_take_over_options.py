"""What another launcher finds on the card of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring_keras.launch import host_options, rank_counts, take_over_options
from ring_keras.launch.cli import make_parser
from ring_keras.launch.tenure import Tenure


def test_the_card_has_the_hosts_that_a_scheduler_gave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("a.invalid\na.invalid\nb.invalid\n")
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    card = tmp_path / "card"
    arguments = ["--min-np", "1", "--card", str(card), "true"]
    begun = tenure_of(arguments)
    assert begun is not None
    nodes.unlink()

    parser = make_parser()
    options = parser.parse_args(begun.card.arguments)
    options.tenure = Tenure(begun.card, card, taken_over=True)
    rank_counts.settle(parser, options)
    hosts = host_options.check_hosts(parser, options)

    assert [(host.name, host.slots) for host in hosts or ()] == [
        ("a.invalid", 2),
        ("b.invalid", 1),
    ]
    assert options.size == 3


def tenure_of(arguments: list[str]) -> Tenure | None:
    """That of the launcher that begins the job."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    rank_counts.settle(parser, options)
    hosts = host_options.check_hosts(parser, options)
    return take_over_options.check(
        parser,
        options,
        arguments=arguments,
        added={},
        hosts=hosts,
        ssh=host_options.ssh_options(options),
        by_node=False,
    )
