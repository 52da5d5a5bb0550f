"""Where processes of an elastic job are started."""

from __future__ import annotations

from typing import Any

from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.fleet import Fleet


def test_a_host_that_is_lost_once_it_is_ready_has_no_slots() -> None:
    desk: Any = None  # What a crew says to it is said once ranks are there.
    lines = {name: AgentLine(name) for name in ("a", "b")}
    crews = {name: AgentCrew(line, 2, desk) for name, line in lines.items()}
    options = ElasticOptions(
        size=4,
        min_size=1,
        max_size=None,
        timeout_s=1.0,
        reset_limit=None,
        cooldown_s=(0.0, 0.0),
        discovery=None,
    )

    lines["b"].lose("its network is gone")

    assert Fleet(crews, options, print, None, silence_s=30).slots == 2
