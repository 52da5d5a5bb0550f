"""Tools that are installed beside the interpreter."""

from __future__ import annotations

import importlib.util

# Other tests are run in environments without them.
if importlib.util.find_spec("hcl2") is None:
    collect_ignore_glob = ["test_*.py"]
