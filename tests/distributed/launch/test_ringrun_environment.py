"""What ranks get, and that the job's secret stays one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import forbid_prctl
from support.ringrun import Ringrun

from ring_keras.launch import exec_rank
from ring_keras.launch.exec_rank import PR_SET_PDEATHSIG
from ring_keras.launch.guard import PR_SET_CHILD_SUBREAPER


def test_options_become_variables(ringrun):
    script = """
    for name in ("NAME", "RING_KERAS_TRANSPORT", "RING_KERAS_INIT_TIMEOUT_S",
                 "RING_KERAS_LOG_LEVEL", "RING_KERAS_GENERATION"):
        print(name, os.environ[name])
    """

    finished = ringrun.run(
        script,
        *("-x", "NAME=a=b c", "--transport", "tcp"),
        *("--start-timeout", "7", "--log-level", "debug"),
        size=1,
    )

    assert finished.stdout.decode().splitlines() == [
        "[0] NAME a=b c",
        "[0] RING_KERAS_TRANSPORT tcp",
        "[0] RING_KERAS_INIT_TIMEOUT_S 7",
        "[0] RING_KERAS_LOG_LEVEL debug",
        "[0] RING_KERAS_GENERATION 0",
    ]


def test_a_variable_may_be_taken_from_here(ringrun):
    script = "print(os.environ['HOME'], 'NOWHERE' in os.environ)"

    finished = ringrun.run(
        script, "-x", "HOME", "-x", "NOWHERE", size=1, env={"HOME": "/a home"}
    )

    assert finished.stdout == b"[0] /a home False\n"
    assert b"ringrun: -x NOWHERE: it is not set here" in finished.stderr


def test_sets_have_one_order_on_all_ranks(ringrun):
    words = "print(list({f'word {i}' for i in range(100)}))"

    def orders(*options, **env):
        out = ringrun.run(words, *options, env=env, size=3).stdout.decode()
        return [line[4:] for line in out.splitlines()]

    first, second = orders(PYTHONHASHSEED=""), orders(PYTHONHASHSEED="")
    assert first == first[:1] * 3
    assert second == second[:1] * 3
    assert first != second
    assert orders(PYTHONHASHSEED="7") == orders("-x", "PYTHONHASHSEED=7")


def test_a_job_within_a_rank_is_a_job_of_its_own(ringrun):
    command = f"{sys.executable} -m ring_keras.launch -np 2 env"

    finished = ringrun.finish(
        ringrun.start_raw(
            *("-np", "1", "--min-np", "1"),
            *("--event-log", str(ringrun.directory / "events")),
            *("sh", "-c", command),
            env={"OWN": "1"},
        )
    )

    lines = finished.stdout.decode().splitlines()
    for rank in range(2):
        assert f"[0] [{rank}] RING_KERAS_SIZE=2" in lines, lines
        assert f"[0] [{rank}] OWN=1" in lines
    for name in ("RING_KERAS_ELASTIC_SOCKET", "RING_KERAS_REPORT_PIPE"):
        assert not any(name in line for line in lines), lines
    seeds = {line for line in lines if "PYTHONHASHSEED" in line}
    assert len({line.partition("=")[2] for line in seeds}) == 1


def test_ranks_find_horovods_variables(ringrun):
    script = """
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    print(*(os.environ["HOROVOD_" + name] for name in names))
    """

    finished = ringrun.run(script, size=2)

    lines = sorted(finished.stdout.decode().splitlines())
    assert lines == ["[0] 0 2 0 2 0 1", "[1] 1 2 1 2 0 1"]


def test_ringruns_options_end_where_the_command_begins(ringrun):
    finished = ringrun.finish(
        ringrun.start_raw("-np", "1", "--", "echo", "-np", "2", "--dry-run")
    )

    assert finished.stdout == b"[0] -np 2 --dry-run\n"


def test_a_rank_has_no_open_files_but_its_own(ringrun):
    script = 'print(sorted(map(int, os.listdir("/proc/self/fd"))))'

    # The fourth is the listing's own.
    assert ringrun.run(script, size=1).stdout == b"[0] [0, 1, 2, 3]\n"


def test_signals_reach_a_command_as_they_reach_it_from_a_shell(ringrun):
    # Not a Python script: Python ignores some by itself.
    command = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]

    finished = ringrun.finish(ringrun.start_raw("-np", "1", *command))

    for line in finished.stdout.decode().splitlines():
        mask = int(line.split()[-1], 16)
        for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGXFSZ", "SIGCHLD"):
            assert not mask >> (signal.Signals[number] - 1) & 1, (line, number)


def test_who_starts_a_rank_may_ignore_ctrl_c():
    command = [sys.executable, "-I", "-S", exec_rank.__file__, str(os.getpid()), ""]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    grep = ["grep", "SigIgn", "/proc/self/status"]

    finished = subprocess.run([*ignoring, *command, *grep], capture_output=True)

    mask = int(finished.stdout.split()[-1], 16)
    assert not mask >> (signal.SIGINT - 1) & 1


@pytest.fixture
def secret(ringrun):
    """A running job, and its token file."""
    script = """
    note(f"pid{rank}", os.getpid())
    if rank == 0:
        note("token_file", os.environ["RING_KERAS_TOKEN_FILE"])
    wait_for("go")
    """
    process = ringrun.start(script)
    token_file = ringrun.noted("token_file")
    yield process, token_file, ringrun.pids("pid0", "pid1")
    (ringrun.directory / "go").touch()
    assert ringrun.finish(process).returncode == 0


def test_the_token_is_in_a_private_file_and_nowhere_else(secret):
    process, token_file, pids = secret
    path = Path(token_file)
    token = path.read_text()

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(token)) == 32
    for pid in [process.pid, *pids]:
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert token.encode() not in content
            assert bytes.fromhex(token) not in content


@pytest.mark.parametrize("ending", ["sys.exit(0)", "sys.exit(1)", "os.abort()"])
def test_no_file_is_left(ringrun, ending):
    ringrun.run(f"assert os.path.exists(os.environ['RING_KERAS_TOKEN_FILE'])\n{ending}")

    assert list(ringrun.temporary.iterdir()) == []


def test_dry_run_shows_the_plan_without_running_it(ringrun):
    finished = ringrun.run('note("ran")', "--dry-run", "-x", "NAME=a b", size=3)

    lines = finished.stdout.decode().splitlines()
    assert finished.returncode == 0
    assert len(lines) == 3
    for rank, line in enumerate(lines):
        assert line.startswith(f"[{rank}] NAME=... ")  # It may be a secret.
        assert f"RING_KERAS_RANK={rank} RING_KERAS_SIZE=3" in line
        assert line.endswith(f"{sys.executable} {ringrun.directory}/script.py")
    assert not (ringrun.directory / "ran").exists()
    assert list(ringrun.temporary.iterdir()) == []


def test_verbose_tells_of_starts_and_ends(ringrun):
    finished = ringrun.run(
        "pass", "-v", "-x", "NAME=a b", size=1, env={"OMP_NUM_THREADS": "1"}
    )

    text = finished.stderr.decode()
    assert "ringrun: every rank gets NAME=...\n" in text
    assert "ringrun: rank 0 is pid " in text
    assert "exited with code 0 after " in text
    assert "TF_NUM_INTRAOP_THREADS" not in text


_NO_ROOM = "mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_file_system_that_is_only_to_be_read(tmp_path, shared_memory):
    """As of `docker run --read-only`."""
    if subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("needs a namespace of mounts")
    also = "" if shared_memory else " && mount -t tmpfs -o ro none /dev/shm"
    script = f'{_NO_ROOM}{also} && cd /proc && exec "$@"'
    ringrun = Ringrun(tmp_path, ["unshare", "--mount", "sh", "-c", script, "sh"])
    finished = ringrun.finish(
        ringrun.start_raw("-np", "1", "echo", "hi", env={"TMPDIR": ""})
    )

    if shared_memory:
        assert finished.stdout == b"[0] hi\n", finished.stderr.decode()
    else:
        assert finished.returncode == 1
        assert finished.verdict.startswith("ringrun: [RK818] cannot begin: ")
        assert finished.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        (PR_SET_CHILD_SUBREAPER, [b"ringrun: [RK818] cannot begin: "]),
        (PR_SET_PDEATHSIG, [b"[0] ringrun: prctl: ", b"[1] ringrun: prctl: "]),
    ],
)
def test_a_call_that_a_sandbox_forbids_is_a_line(tmp_path, option, lines):
    sandbox = [sys.executable, forbid_prctl.__file__, str(option)]
    ringrun = Ringrun(tmp_path, sandbox)
    finished = ringrun.finish(ringrun.start_raw("-np", "2", "true"))

    assert finished.returncode == 1
    assert b"Traceback" not in finished.stderr, finished.stderr.decode()
    for line in lines:
        assert line in finished.stderr
    assert finished.stderr.count(b"Operation not permitted") == len(lines)


def test_cores_that_cannot_be_had_are_a_line():
    command = [sys.executable, "-I", "-S", exec_rank.__file__]
    finished = subprocess.run(
        [*command, str(os.getpid()), "1023", "true"], capture_output=True, timeout=30
    )

    assert finished.returncode == 1
    assert finished.stderr == b"ringrun: --bind-to cores: CPUs 1023: Invalid argument\n"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_keep_to_cores_of_their_own(ringrun, size):
    script = 'print(*sorted(os.sched_getaffinity(0)), sep=",")'

    finished = ringrun.run(script, "--bind-to", "cores", size=size)

    allowed = os.sched_getaffinity(0)
    lines = finished.stdout.decode().splitlines()
    shares = [set(map(int, line.split()[1].split(","))) for line in lines]
    assert len(shares) == size
    assert all(share and share <= allowed for share in shares)
    if size <= len(allowed):
        assert sum(map(len, shares)) == len(set().union(*shares))


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ("-np 2", True),
        ("-np 1", False),
        ("-np 2 --bind-to cores", False),
        ("-np 2 --log-level error", False),
    ],
)
def test_ranks_without_a_core_of_their_own_are_told_of(tmp_path, options, is_told):
    first = str(min(os.sched_getaffinity(0)))
    ringrun = Ringrun(tmp_path, ["taskset", "--cpu-list", first])
    script = tmp_path / "train.py"
    script.touch()

    finished = ringrun.finish(
        ringrun.start_raw(*options.split(), sys.executable, str(script))
    )

    text = "2 ranks share 1 core, and take turns: -np 1 would give each its own. "
    assert finished.stderr.decode().count(text) == is_told


def test_ranks_run_anywhere_unless_told(ringrun):
    script = "print(len(os.sched_getaffinity(0)))"

    finished = ringrun.run(script, size=1)

    assert finished.stdout.decode() == f"[0] {len(os.sched_getaffinity(0))}\n"
