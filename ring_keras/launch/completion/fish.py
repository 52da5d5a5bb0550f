"""The script for fish."""

from __future__ import annotations

from collections.abc import Sequence

from ring_keras.launch.completion.option_words import OptionWords

__all__ = ["fish_script"]

_SCRIPT = r"""# Completion of ringrun for fish; made by: ringrun --print-completion fish

# Which of the words before the cursor is the ranks' command; fails if none is.
function __ringrun_command
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l skipped 1
    for index in (seq (count $words))
        if test $skipped -gt 0
            set skipped (math $skipped - 1)
            continue
        end
        switch $words[$index]
            case --
                continue
@COUNTS@
            case '-*'
                continue
            case '*'
                echo $index
                return 0
        end
    end
    return 1
end

# What fish knows of that command.
function __ringrun_arguments
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l index (__ringrun_command)
    set -l rest (string escape -- $words[$index..-1]) (commandline --current-token)
    complete --do-complete (string join ' ' -- $rest)
end

complete --command ringrun --no-files
complete --command ringrun --condition __ringrun_command \
    --arguments '(__ringrun_arguments)'
complete --command ringrun --condition 'not __ringrun_command' \
    --arguments '(__fish_complete_command)'
@OPTIONS@
"""
_LEAD = "complete --command ringrun --condition 'not __ringrun_command'"
_VALUES = {
    "file": " --require-parameter --force-files",
    "directory": " --exclusive --arguments '(__fish_complete_directories)'",
    "command": " --exclusive --arguments '(__fish_complete_command)'",
    "other": " --exclusive",
}


def fish_script(options: Sequence[OptionWords]) -> str:
    """To be sourced, or put into ~/.config/fish/completions."""
    counts = []
    for count in sorted({option.count for option in options} - {0}):
        names = " ".join(n for o in options if o.count == count for n in o.names)
        counts += [f"            case {names}", f"                set skipped {count}"]
    script = _SCRIPT.replace("@COUNTS@", "\n".join(counts))
    return script.replace("@OPTIONS@", "\n".join(map(_complete, options)))


def _complete(option: OptionWords) -> str:
    names = "".join(f" {_flag(name)}" for name in option.names)
    value = ""
    if option.count:
        words = f" --exclusive --arguments '{' '.join(option.words)}'"
        value = _VALUES.get(option.kind, words)
    text = option.help.replace("\\", "\\\\").replace("'", "\\'")
    return f"{_LEAD}{names}{value} --description '{text}'"


def _flag(name: str) -> str:
    """`--long`, `-s`, or `-old`, which is long with one dash."""
    if name.startswith("--"):
        return f"--long-option {name[2:]}"
    kind = "--short-option" if len(name) == 2 else "--old-option"
    return f"{kind} {name[1:]}"
