"""The script that teaches a shell to complete what follows `ringrun`."""

from __future__ import annotations

import argparse

from ring_keras.launch.completion.bash import bash_script
from ring_keras.launch.completion.fish import fish_script
from ring_keras.launch.completion.option_words import option_words
from ring_keras.launch.completion.zsh import zsh_script

__all__ = ["SHELLS", "completion_script"]

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
SHELLS = tuple(_SCRIPTS)
"""Those that there is a script for."""


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for one of `SHELLS`."""
    return _SCRIPTS[shell](tuple(option_words(parser)))
