"""`ringrun --remote-shell` of a job on an engine: calls an agent there that waits.

Run as a script, `python -I call_agent.py DIRECTORY HOST COMMAND...`. The directory says
where the agent of each host waits, and which file has their secret. What ringrun would
have run there, the agent does already.
"""

import json
import sys
from pathlib import Path

AGENTS = "agents.json"


def main() -> int:
    """Passes on what is said; returns the exit code."""
    directory, host = Path(sys.argv[1]), sys.argv[2]
    told = json.loads((directory / AGENTS).read_text())
    sys.path[:] = told["sys_path"]
    from ring_keras.launch.call import main as call

    if host not in told["agents"]:
        sys.exit("its worker is gone")
    return call([told["agents"][host], told["secret"]])


if __name__ == "__main__":
    sys.exit(main())
