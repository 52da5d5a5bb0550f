"""How many ranks, in ringrun's words and in those of torchrun and accelerate."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

from ring_keras.config import inherited_environment
from ring_keras.launch.control_group import usable_cores
from ring_keras.launch.doctor.host.cuda_driver import gpu_count
from ring_keras.launch.output import say

__all__ = [
    "add_options",
    "add_spellings",
    "choose_ranks_here",
    "count_here",
    "guess",
    "say_if_cores_are_few",
    "settle",
    "unrecognized",
]

_AUTO = 0
# Below it, two names have a few letters in common.
_ALIKE = 0.85
# More of them begin few other names.
_FEW_LETTERS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `-np`, and what it is called elsewhere."""
    parser.add_argument(
        "-np",
        "-n",
        "--num-proc",
        dest="size",
        type=_count,
        metavar="N",
        help="number of ranks; auto: one for each GPU of this host, or for each core "
        "if it has none",
    )
    parser.add_argument(
        "--np",
        "--num-procs",
        "--num-processes",
        "--num_processes",
        dest="size",
        type=_count,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    parser.set_defaults(is_auto=False)


def add_spellings(parser: argparse._ActionsContainer) -> None:
    """Adds what torchrun and accelerate call the options of hosts without ssh."""
    parser.add_argument(
        "--standalone",
        dest="here_only",
        action="store_true",
        help=argparse.SUPPRESS,
    )
    for names, dest, read in (
        (["--num-machines", "--num_machines"], "nnodes", int),
        (["--machine-rank", "--machine_rank", "--node_rank"], "node_rank", int),
        (["--nproc_per_node"], "nproc_per_node", count_here),
        (["--rdzv-backend", "--rdzv_backend"], "rdzv_backend", _backend),
        (["--rdzv-endpoint", "--rdzv_endpoint"], "rdzv_endpoint", str),
        (["--rdzv-id", "--rdzv_id"], "rdzv_id", str),
    ):
        parser.add_argument(
            *names,
            dest=dest,
            type=read,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    parser.set_defaults(rdzv_backend=None, rdzv_endpoint=None, rdzv_id=None)


def settle(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Makes options as torchrun and accelerate have them ringrun's own.

    One host has nobody to meet, and torchrun's `--rdzv-...` say nothing then. Sets
    `options.size`, and `options.here_only` for a job that takes nothing but this host,
    whatever a scheduler gives.
    """
    is_one = options.nnodes == 1 and not options.node_rank
    per_node = options.nproc_per_node
    if options.here_only and (options.nnodes or 1, options.node_rank or 0) != (1, 0):
        parser.error("--standalone is for one host: leave out --nnodes and --node-rank")
    has_rendezvous = options.rendezvous is not None or (
        options.secret_file is not None and options.agent_port is None
    )
    is_alone = options.nnodes is None and options.node_rank is None
    if has_rendezvous or not (is_one or is_alone):
        _settle_rendezvous(parser, options)
        return
    if options.size == _AUTO:
        options.size, options.is_auto = None, True
    rdzv = (options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id)
    options.here_only |= is_one or per_node is not None or any(rdzv)
    if not options.here_only:
        return
    for name, value in (
        ("-H", options.hosts),
        ("--hostfile", options.hostfile),
        ("--host-discovery-script", options.host_discovery_script),
    ):
        if value is not None:
            parser.error(
                f"{name} names hosts, and --nproc-per-node, --nnodes 1, --standalone "
                "or --rdzv-... is for this one: leave one out. -np N is the number of "
                "all ranks"
            )
    if per_node is not None:
        if options.size is not None or options.is_auto:
            parser.error("-np and --nproc-per-node say the same: leave one out")
        options.size = per_node
    options.nnodes = options.node_rank = options.nproc_per_node = None


def _settle_rendezvous(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    if options.rdzv_id is not None:
        parser.error(
            "--rdzv-id tells jobs apart, which the secret in --secret-file does here: "
            "leave it out"
        )
    if options.rdzv_endpoint is None:
        return
    if options.rendezvous is not None:
        parser.error("--rendezvous and --rdzv-endpoint say the same: leave one out")
    options.rendezvous = options.rdzv_endpoint


def choose_ranks_here() -> int:
    """As many as this host has GPUs, or cores; says so."""
    gpus = 0 if inherited_environment().get("RING_KERAS_DEVICE") == "cpu" else None
    gpus = gpu_count() if gpus is None else gpus
    count, what = (gpus, "GPU") if gpus else (usable_cores(), "core")
    ranks = "1 rank" if count == 1 else f"{count} ranks"
    say(f"auto: {ranks}, one for each {what} of this host")
    return count


def say_if_cores_are_few(size: int) -> None:
    """Tells of ranks of this host that have no core of their own."""
    cores = usable_cores()
    if size > cores:
        what = "1 core" if cores == 1 else f"{cores} cores"
        say(
            f"{size} ranks share {what}, and take turns: -np {cores} would give each "
            f"its own. `ring doctor -np {size}` says what limits the cores"
        )


def unrecognized(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """What to say of options that ringrun does not have."""
    text = f"unrecognized arguments: {' '.join(unknown)}"
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    name = unknown[0].partition("=")[0].replace("_", "-")
    return text + guess(name, known)


def guess(word: str, known: Sequence[str]) -> str:
    """What may have been meant by a word that is none of those; may be empty."""
    alike = [one for one in known if one.startswith(word) and len(word) > _FEW_LETTERS]
    alike += difflib.get_close_matches(word, known, n=1, cutoff=_ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""


def count_here(text: str) -> int:
    """Reads how many ranks this host gets."""
    return _count(text) or choose_ranks_here()


def _backend(text: str) -> str:
    if text not in ("c10d", "static"):
        raise argparse.ArgumentTypeError(
            f"must be c10d or static, not {text}: hosts meet at node 0, and need no "
            "other server"
        )
    return text


def _count(text: str) -> int:
    # argparse takes -np2 to be -n with p2.
    text = text.removeprefix("p")
    if text == "auto":
        return _AUTO
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least 1, or auto, not {text}"
        )
    return int(text)
