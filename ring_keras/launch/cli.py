"""`ringrun`: the command line."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import socket
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ring_keras._version import __version__
from ring_keras.config import (
    Config,
    ConfigError,
    inherited_environment,
    variables,
)
from ring_keras.launch import (
    elastic_options,
    horovodrun,
    host_options,
    rank_counts,
    take_over_options,
    watch_options,
)
from ring_keras.launch.check_build import check_build
from ring_keras.launch.completion.script import SHELLS, completion_script
from ring_keras.launch.desk import LaunchOptions
from ring_keras.launch.doctor.examination import Examination
from ring_keras.launch.doctor.job_shape import DEFAULT_RANKS
from ring_keras.launch.dry_run import planned_variables, print_node_plan, print_plan
from ring_keras.launch.environment import (
    added_variables,
    environment_for_ranks,
    hash_seed,
    launchers_names,
)
from ring_keras.launch.explain import explain_errors
from ring_keras.launch.guard import open_standard_descriptors, run_guarded
from ring_keras.launch.hosts import Host
from ring_keras.launch.launcher import Launcher
from ring_keras.launch.local_crew import HostJob
from ring_keras.launch.node_agent import NodeAgent
from ring_keras.launch.nodes import NodeOptions, nodes_that_come
from ring_keras.launch.output import say, to_reader
from ring_keras.launch.places import places_of
from ring_keras.launch.source import LOOPBACK, this_host
from ring_keras.launch.ssh_hosts import HostsJob, RankCommand, ssh_hosts
from ring_keras.launch.taken_hosts import taken_hosts
from ring_keras.launch.tools import describe_tools

_DESCRIPTION = """\
Starts COMMAND N times, as the N ranks of one job, on this machine or on
several, such as `ringrun -np 2 python train.py`. Each line of output begins
with the number of the rank that printed it. When a rank fails, ringrun stops
the others, and exits with the exit code of the first rank that failed: 128 plus
the signal, if a signal killed it. Ranks cannot read standard input. At the end,
ringrun kills all processes that ranks have left behind.
"""

_EPILOG = """\
Ctrl-C, or SIGTERM, asks the ranks to end, and kills them after the grace
period; a second one kills them at once. ringrun passes SIGUSR1, SIGUSR2 and
SIGXCPU on to the ranks. Under nohup, it ignores SIGHUP. A shell script starts
`ringrun ... &` with SIGINT ignored: end such a job by SIGTERM (`kill PID`).
`ringrun --print-env` lists the environment variables that ring_keras reads.

Other tools, which `ring --help` lists, too:

{tools}
"""

_BINDINGS = ("none", "cores")
_USAGE_ERROR = 2
_NOT_FOUND = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ringrun; returns its exit code."""
    open_standard_descriptors()
    parser = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(rank_counts.unrecognized(parser, unknown))
    if (
        options.version
        or options.print_env
        or options.print_completion
        or options.explain is not None
    ):
        return to_reader(lambda: _answer(parser, options))
    if options.take_over is not None:
        found = take_over_options.taken_over(parser, options, arguments)
        if isinstance(found, int):
            return found
        options = found
    elif options.ends_job:
        parser.error("--end needs --take-over FILE, the card of a job")
    elif options.by_majority:
        parser.error("--by-majority needs --take-over FILE, the card of a job")
    if options.json and not options.check_build:
        parser.error("--json needs --check-build")
    rank_counts.settle(parser, options)
    if options.check_build:
        return _check_build(parser, options)

    options.command = options.command[options.command[:1] == ["--"] :]
    nodes = host_options.check_nodes(parser, options)
    hosts = None if nodes else host_options.check_hosts(parser, options)
    if options.size is None:
        parser.error(
            "-np N, or -H, is required: how many ranks? For two on this host: "
            "ringrun -np 2 python train.py"
        )
    if not options.command:
        parser.error("a command is required, such as: python train.py")
    code = _run_job(parser, options, hosts, nodes, arguments)
    is_first = nodes is None or nodes.rank == 0
    if options.timeline is not None and is_first and not options.dry_run:
        watch_options.merge_timeline(options.timeline)
    return code


def _run_job(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    hosts: list[Host] | None,
    nodes: NodeOptions | None,
    arguments: Sequence[str] | None,
) -> int:
    """Runs a job on these hosts, or this one's part of it; None: on this one alone."""
    command, inherited = options.command, environment_for_ranks()
    chosen = _chosen(options)
    # All nodes of a job must have the same, and each asks for itself.
    seed = hash_seed(inherited | chosen, None if nodes is None else nodes.token)
    chosen |= seed
    added = added_variables(
        size=options.size,
        inherited=inherited,
        chosen=chosen,
        as_horovod=options.as_horovod,
    )
    environment = inherited | added
    try:
        place = places_of([options.size])[0][0]
        config = Config.from_environment(environment | planned_variables(place))
    except ConfigError as error:
        parser.error(str(error))
    script = Path(command[0])
    if script.suffix == ".py" and script.is_file() and not shutil.which(script):
        parser.error(
            f"{script} is no program: put the interpreter before it, as in "
            f"python {' '.join(command)}"
        )
    elastic = elastic_options.check(parser, options, config, by_node=nodes is not None)
    if hosts is None and shutil.which(command[0], path=environment.get("PATH")) is None:
        say(f"[RK812] {command[0]}: no such command; is it installed, and executable?")
        return _NOT_FOUND
    for note in horovodrun.notes_of(options):
        say(note)
    if options.allocation is not None:
        say(options.allocation.describe())
    watch = watch_options.check(parser, options)
    ssh = dataclasses.replace(
        host_options.ssh_options(options), silence_s=config.heartbeat_s()
    )

    def shown(variables: Mapping[str, str]) -> dict[str, str]:
        """What the user gives may be a secret."""
        own = {name: "..." for name, _ in options.env if name in variables}
        return {**variables, **own}

    if options.dry_run and nodes is not None:
        node = nodes
        return to_reader(lambda: print_node_plan(node, command, shown(added)))
    if options.dry_run:
        return to_reader(
            lambda: print_plan(
                options.size, hosts, ssh, command, shown(added), shown(chosen)
            )
        )
    tenure = take_over_options.check(
        parser,
        options,
        arguments=arguments,
        added=seed,
        hosts=hosts,
        ssh=ssh,
        by_node=nodes is not None,
    )
    launch = LaunchOptions(
        grace_period_s=options.grace_period_s,
        output_directory=_output_directory(parser, options),
        colour="NO_COLOR" not in inherited,
        verbose=options.verbose,
        timestamps=options.timestamps,
        raw=options.raw,
        watch=watch,
        encrypt=config.encrypt,
        expects_join=_is_script(command),
        heartbeat_s=config.heartbeat_s(elastic=elastic is not None),
        all_silent_s=config.heartbeat_s(),
        elastic=elastic,
        tenure=tenure,
    )
    if options.verbose:
        for name, value in shown(added if hosts is None else chosen).items():
            say(f"every rank gets {name}={value}")
    bind_to_cores = options.bind_to == "cores"
    is_here = hosts is None and nodes is None
    is_quiet = bind_to_cores or config.log_level in ("error", "off")
    if is_here and launch.expects_join and not is_quiet:
        rank_counts.say_if_cores_are_few(options.size)
    job = HostJob(command, environment, bind_to_cores, options.verbose)
    if nodes is not None:
        node = dataclasses.replace(
            nodes,
            init_timeout_s=config.init_timeout_s,
            encrypt=config.encrypt,
            elastic="" if elastic is None else elastic.shared,
        )
        return _run_node(launch, node, job)
    launcher_address, then = options.launcher_address, "the ranks were killed"
    if tenure is not None:
        ssh = dataclasses.replace(ssh, kept=True)
        then = f"its ranks wait for another: ringrun --take-over {tenure.path}"
        if hosts is None:
            hosts, launcher_address = take_over_options.hosts_of(options), LOOPBACK
    if hosts is None:
        source = this_host(options.size, job, options.slots_here)
    else:
        plan = RankCommand(
            command=command,
            directory=str(Path.cwd()),
            environment=inherited,
            chosen=chosen,
            as_horovod=options.as_horovod,
            bind_to_cores=bind_to_cores,
        )
        interfaces = config.interfaces or ()
        hosts_job = HostsJob(hosts, plan, ssh, launcher_address, interfaces)
        if tenure is not None and tenure.taken_over:
            source = taken_hosts(hosts_job, tenure)
        else:
            source = ssh_hosts(hosts_job)
    token = None if tenure is None else tenure.token
    return run_guarded(
        lambda fd, directory: Launcher(launch, source, fd, directory, token).run(),
        then=then,
    )


def _run_node(launch: LaunchOptions, node: NodeOptions, job: HostJob) -> int:
    if node.rank > 0:
        return run_guarded(
            lambda fd, directory: NodeAgent(node, launch, job, fd, directory).run_node()
        )
    source = nodes_that_come(node, job)
    return run_guarded(
        lambda fd, directory: Launcher(launch, source, fd, directory, node.token).run()
    )


def _answer(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints what was asked for instead of running a job."""
    if options.print_completion:
        print(completion_script(options.print_completion, parser), end="")
        return 0
    if options.version:
        print(f"ring_keras {__version__}")
        return 0
    if options.explain is not None:
        return explain_errors(options.explain)
    return _print_variables()


def _check_build(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Looks at the hosts that a job of these options would have."""
    if options.command:
        parser.error("--check-build takes no command")
    if host_options.check_nodes(parser, options) is not None:
        parser.error("--check-build checks this host, or the hosts that -H names")
    hosts = host_options.check_hosts(parser, options)
    if hosts is None:
        ranks = options.slots_here or options.size or DEFAULT_RANKS
        hosts = [Host(socket.gethostname(), ranks)]
    examination = Examination(
        hosts=hosts,
        ssh=host_options.ssh_options(options),
        environment=environment_for_ranks(),
        chosen=_chosen(options),
        as_horovod=options.as_horovod,
        bind_to_cores=options.bind_to == "cores",
    )
    return check_build(examination, as_json=options.json, verbose=options.verbose)


def make_parser() -> argparse.ArgumentParser:
    """What reads ringrun's options."""
    parser = argparse.ArgumentParser(
        prog="ringrun",
        usage="ringrun -np N [option ...] COMMAND [argument ...]\n"
        "       ringrun -H HOST:SLOTS,... [option ...] COMMAND [argument ...]\n"
        "       ringrun --nnodes N --node-rank K [option ...] COMMAND [argument ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(tools=describe_tools()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    rank_counts.add_options(parser)
    add(
        "-x",
        "--env",
        dest="env",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set an environment variable for every rank. NAME alone passes on the "
        "value that it has here, which `ps` then does not show. May be repeated",
    )
    add(
        "--output-dir",
        "--output-filename",
        type=Path,
        metavar="DIR",
        help="also write the unchanged output of rank N to DIR/rank.N/stdout and "
        "stderr, over the files of an earlier run",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="timestamps",
        action="store_true",
        help="also begin each line with the time",
    )
    add(
        "--raw",
        action="store_true",
        help="show every line of every rank. By default, TensorFlow's start-up "
        "messages are shown once, and so are Python warnings and tracebacks that are "
        "the same on several ranks; after Ctrl-C, a line says where each rank was",
    )
    add(
        "--grace-period",
        dest="grace_period_s",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="time between asking ranks to end and killing them (default: %(default)g)",
    )
    add(
        "--start-timeout",
        metavar="SECONDS",
        help="time for all ranks to join the job: RING_KERAS_INIT_TIMEOUT_S",
    )
    add(
        "--bind-to",
        type=_binding,
        choices=_BINDINGS,
        default="none",
        help="cores: bind each rank to its share of the machine's cores, on one NUMA "
        "node if possible (default: %(default)s)",
    )
    add(
        "--horovod",
        dest="as_horovod",
        action="store_true",
        help="run a script for Horovod as it is: `import horovod` imports "
        "ring_keras.horovod. Horovod itself must not be installed",
    )
    add(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME,...",
        help="network interfaces to use between hosts, such as eth1. Each host uses "
        "those of the list that it has: RING_KERAS_INTERFACES",
    )
    add(
        "--encrypt",
        action="store_true",
        help="encrypt the traffic between hosts, with TLS 1.3: RING_KERAS_ENCRYPT",
    )
    add(
        "--transport",
        metavar="NAME",
        help="auto, tcp, or the path of a library: RING_KERAS_TRANSPORT",
    )
    add(
        "--log-level",
        type=_log_level,
        metavar="LEVEL",
        help="debug, info, warning, error or off: RING_KERAS_LOG_LEVEL",
    )
    add("-v", "--verbose", action="store_true", help="report each rank's start and end")
    add(
        "--dry-run",
        action="store_true",
        help="print each rank's command and the variables that are added to its "
        "environment, and start nothing",
    )
    add(
        "--print-env",
        action="store_true",
        help="list the environment variables that ring_keras reads",
    )
    add(
        "--explain",
        metavar="CODE",
        help="explain an error, and how to fix it, by its code, such as RK302. Several "
        "codes: RK302,RK201",
    )
    add(
        "-cb",
        "--check-build",
        action="store_true",
        help="check this machine for -np ranks, or all hosts that -H names and the "
        "network between them, and print a command that fixes each problem. The exit "
        "code is 1 if a job cannot run",
    )
    add("--json", action="store_true", help="print --check-build's findings as JSON")
    add(
        "--print-completion",
        choices=SHELLS,
        help="print a script that makes this shell complete ringrun's options, and the "
        "command that follows them: see docs/doctor.md",
    )
    add("--version", action="store_true", help="print the version")
    watch_options.add_options(parser)
    elastic_options.add_options(parser)
    take_over_options.add_options(parser)
    host_options.add_options(parser)
    horovodrun.add_options(parser)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return value


def _binding(text: str) -> str:
    if text not in _BINDINGS:
        what = f"must be {' or '.join(_BINDINGS)}, not {text}"
        raise argparse.ArgumentTypeError(what + rank_counts.guess(text, _BINDINGS))
    return text


def _log_level(text: str) -> str:
    level = text.lower()
    return horovodrun.LOG_LEVELS.get(level, level)


def _assignment(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE or NAME, not {text}")
    if name in launchers_names():
        raise argparse.ArgumentTypeError(f"{name} is for ringrun itself to set")
    return name, value if equals else None


def _is_script(command: Sequence[str]) -> bool:
    """Whether it is Python that runs a file or a module: no other program trains."""
    program, *words = command
    if program.endswith(".py"):
        return True
    if not Path(program).name.startswith("python"):
        return False
    while words:
        word = words.pop(0)
        if word in ("-W", "-X"):
            del words[:1]
        elif word.startswith("--") or word in ("-V", "-h"):
            return False  # It tells something of itself.
        elif word.startswith("-"):
            if "c" in word:
                return False
            if word.endswith("m"):
                return _may_train("".join(words[:1]))
        else:
            # One of our own calls a function of the user's, of which nobody knows.
            is_own = Path(__file__).parent.parent in Path(word).parents
            return word.endswith(".py") and not is_own
    return False


def _may_train(module: str) -> bool:
    """Whether it is a module of the user's."""
    root = module.partition(".")[0]
    return root not in ("pip", "ring_keras", *sys.stdlib_module_names)


def _chosen(options: argparse.Namespace) -> dict[str, str]:
    chosen, here = {}, inherited_environment()
    for name, given in options.env:
        value = here.get(name) if given is None else given
        if value is None:
            say(f"-x {name}: it is not set here, so no rank gets it")
        else:
            chosen[name] = value
    chosen |= horovodrun.chosen_variables(options)
    for name, value in (
        ("RING_KERAS_INIT_TIMEOUT_S", options.start_timeout),
        ("RING_KERAS_INTERFACES", options.network_interface),
        ("RING_KERAS_ENCRYPT", "1" if options.encrypt else None),
        ("RING_KERAS_TRANSPORT", options.transport),
        ("RING_KERAS_LOG_LEVEL", options.log_level),
        ("RING_KERAS_TIMELINE", options.timeline and str(options.timeline.absolute())),
    ):
        if value is not None:
            chosen[name] = value
    return chosen


def _output_directory(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> Path | None:
    directory: Path | None = options.output_dir
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"--output-dir {directory}: {error.strerror}"
            without = "what its ranks print from now on is shown here alone"
            watch_options.refuse(parser, options, why, without)
            return None
    return directory


def _print_variables() -> int:
    environment = inherited_environment()
    for variable in variables():
        value = environment.get(variable.name)
        now = f", now {value!r}" if value else ""
        print(f"{variable.name} (default {variable.default}{now})")
        who = " Set by the launcher." if variable.set_by_launcher else ""
        text = f"{variable.help} Takes {variable.takes}.{who}"
        print(textwrap.fill(text, 76, initial_indent="    ", subsequent_indent="    "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
