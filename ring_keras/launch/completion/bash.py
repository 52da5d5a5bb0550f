"""The script for bash, with bash-completion or without."""

from __future__ import annotations

from collections.abc import Sequence

from ring_keras.launch.completion.option_words import OptionWords

__all__ = ["bash_script"]

_SCRIPT = r"""# Completion of ringrun for bash; made by: ringrun --print-completion bash
_ringrun() {
    # Bash cuts words at = and : too. What was cut is put together again.
    local words=() starts=() piece glued= i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        if ((i > 1)) && [[ $glued || $piece == [=:]* ]]; then
            words[${#words[@]} - 1]+=$piece
        else
            words+=("$piece")
            starts+=("$i")
        fi
        [[ $piece == *[=:] ]] && glued=1 || glued=
    done

    # Past ringrun's own options, to the ranks' command.
    local last=$((${#words[@]} - 1)) index=1 begun=
    while ((index < last)) && [[ ! $begun ]]; do
        case ${words[index]} in
            --) ((index++)); begun=1 ;;
@COUNTS@
            -*) ((index++)) ;;
            *) begun=1 ;;
        esac
    done
    if [[ $begun ]] && ((index < last)); then
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "${starts[index]}"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "${starts[index]}"
        else
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return
    fi

    local word=${words[last]} option=
    COMPREPLY=()
    if ((index > last)); then
        option=${words[last - 1]}
    elif [[ $word == --*=* ]]; then
        option=${word%%=*} word=${word#*=}
    fi
    case $option in
        "") ;;
@VALUES@
        *) return ;;
    esac
    if [[ ! $begun && $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "@NAMES@" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -c -- "$word")
    fi
}
complete -F _ringrun ringrun
"""


def bash_script(options: Sequence[OptionWords]) -> str:
    """To be sourced, or put where bash-completion looks."""
    names = " ".join(name for option in options for name in option.names)
    counts = []
    for count in sorted({option.count for option in options} - {0}):
        some = "|".join(n for o in options if o.count == count for n in o.names)
        counts.append(f"            {some}) ((index += {count + 1})) ;;")
    values = [_value(option) for option in options if option.kind != "other"]
    script = _SCRIPT.replace("@COUNTS@", "\n".join(counts))
    return script.replace("@VALUES@", "\n".join(values)).replace("@NAMES@", names)


def _value(option: OptionWords) -> str:
    """A branch that completes what follows an option."""
    generate = (
        f'compgen -W "{" ".join(option.words)}"'
        if option.kind == "words"
        else f"compgen -{option.kind[0]}"
    )
    names = "|".join(option.names)
    files = option.kind in ("file", "directory")
    first = "compopt -o filenames 2>/dev/null; " if files else ""
    take = f'mapfile -t COMPREPLY < <({generate} -- "$word")'
    return f"        {names}) {first}{take}; return ;;"
