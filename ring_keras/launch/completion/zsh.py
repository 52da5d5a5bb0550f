"""The script for zsh."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ring_keras.launch.completion.option_words import OptionWords

__all__ = ["zsh_script"]

_SCRIPT = r"""#compdef ringrun
# Completion of ringrun for zsh; made by: ringrun --print-completion zsh
_ringrun() {
    _arguments -S -A '-*' : \
@SPECS@
        '(-)1:command: _command_names -e' \
        '*::arguments: _normal'
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _ringrun "$@"
else
    compdef _ringrun ringrun
fi
"""
_ACTIONS = {
    "file": "_files",
    "directory": "_files -/",
    "command": "_command_names -e",
    "other": " ",
}


def zsh_script(options: Sequence[OptionWords]) -> str:
    """To be sourced after `compinit`, or put as `_ringrun` where `fpath` leads."""
    specs = [spec for option in options for spec in _specs(option)]
    return _SCRIPT.replace("@SPECS@", "\n".join(f"        {s} \\" for s in specs))


def _specs(option: OptionWords) -> list[str]:
    """One for each of its names; each rules the others out."""
    before = "*" if option.repeated else f"({' '.join(option.names)})"
    text = re.sub(r"([\[\]\\])", r"\\\1", option.help)
    action = _ACTIONS.get(option.kind) or f"({' '.join(option.words)})"
    title = option.title.replace(":", r"\:")
    values = f":{title}:{action}" * option.count
    specs = []
    for name in option.names:
        # A long one also takes its value after an equals sign.
        equals = "=" if option.count and name.startswith("--") else ""
        specs.append(_quoted(f"{before}{name}{equals}[{text}]{values}"))
    return specs


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
