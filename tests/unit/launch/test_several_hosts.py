"""What several hosts need before any rank is started."""

import pytest

from ring_keras.launch.addresses import reached_addresses
from ring_keras.launch.cli import main
from ring_keras.launch.desk import CannotStartError
from ring_keras.launch.environment import host_environment
from ring_keras.launch.places import Place, places_of
from ring_keras.launch.ssh import SshOptions, agent_command
from ring_keras.launch.ssh_hosts import common_address
from ring_keras.network.addresses import is_own, own_addresses


def test_places_of_hosts_of_different_size():
    (first,), (second, third), (fourth,) = places_of([1, 2, 1])
    assert first == Place(0, 4, 0, 1, 0, 3)
    assert second == Place(1, 4, 0, 2, 1, 3)
    assert third == Place(2, 4, 1, 2, 0, 1)
    assert fourth == Place(3, 4, 0, 1, 2, 3)


def test_the_store_gets_the_first_address_that_all_reach():
    reached = {"b": ["10.0.0.1", "10.1.0.1"], "c": ["10.1.0.1"]}
    assert common_address(["10.0.0.1", "10.1.0.1"], reached) == "10.1.0.1"


def test_no_address_that_all_reach():
    with pytest.raises(CannotStartError) as caught:
        common_address(["10.0.0.1", "10.1.0.1"], {"b": ["10.0.0.1"], "c": []})
    assert "of 10.0.0.1, 10.1.0.1, b reaches 10.0.0.1; c reaches none." in str(
        caught.value
    )


def test_this_host_is_known_by_name_and_address():
    assert is_own("localhost")
    assert is_own("127.0.0.1")
    assert all(map(is_own, own_addresses()))
    assert not is_own("198.51.100.77")  # Kept for documentation.
    assert not is_own("no such host")


def test_addresses_that_others_may_reach():
    assert not {"127.0.0.1", "::1"} & set(own_addresses())


def test_no_address_to_try():
    assert reached_addresses([], "number") == []


def test_what_belongs_to_a_host_stays_there():
    own = {"HOME": "/home/there", "PATH": "theirs", "ONLY": "there"}
    launchers = {
        **{"HOME": "/home/here", "PATH": "ours", "TMPDIR": "/tmp/job", "MINE": "1"},
        **{"SSH_AUTH_SOCK": "x", "XDG_RUNTIME_DIR": "x", "HOSTNAME": "here"},
    }
    assert host_environment(own, launchers) == {
        **{"HOME": "/home/there", "PATH": "ours", "ONLY": "there", "MINE": "1"}
    }


def test_what_slurm_says_to_a_hosts_task_stays_there():
    task = {"SLURM_STEP_ID": "1", "SLURM_NODEID": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    script = {"SLURM_NODEID": "0", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert host_environment(task, script) == {**script, **task}
    # A login knows of none of it, or what it is in general.
    login = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert host_environment(login, script) == script


def test_the_users_arguments_for_ssh_come_first():
    options = SshOptions(["-J", "gate"], port=2222, identity_file="k", python="/p y")
    command = agent_command("me@b", options)
    assert command[:8] == ["ssh", "-T", "-J", "gate", "-p", "2222", "-i", "k"]
    assert command[-3:] == ["--", "me@b", "'/p y' -m ring_keras.launch.agent"]
    # A master of ringrun's would end with the job, and others' sessions with it.
    assert "ControlMaster=no" in command
    # No more impatient than the line between launcher and agent: 30 + 5 s.
    assert {"ServerAliveInterval=18", "ServerAliveCountMax=2"} < set(command)
    assert not any("HostKey" in word or "KnownHosts" in word for word in command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-H a:2,b:0 true", "-H: slots must be an integer of at least 1, not 'b:0'"),
        ("-H a:2 -np 3 true", "-H: 3 ranks need as many slots, and there are 2: a:2"),
        ("--hostfile /nowhere true", "--hostfile: /nowhere: No such file"),
        ("-H a:2", "a command is required"),
        ("-p ssh -H a:2 true", "-p"),
        ("-np 1 -p 2222 true", "-p is for other hosts, and no option names any"),
        ("-np 1 --launcher-address 10.9.9.9 true", "--launcher-address is for other"),
        ("-np 1 --metrics-host ::1 true", "--metrics-host is for --metrics-port"),
    ],
)
def test_bad_hosts_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert message in capsys.readouterr().err


def test_the_plan_shows_hosts_and_ranks(capsys):
    assert (
        main(["-H", "198.51.100.1:1,me@198.51.100.2:2", "--dry-run", "train", "me"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "198.51.100.1:",
        "[0]",
        "me@198.51.100.2:",
        "[1]",
        "[2]",
    ]
    # As the job has it, in which it is no matter who logs in.
    assert "RING_KERAS_HOST_NAME=198.51.100.2" in lines[3].split()
    assert "BatchMode=yes" in lines[2] and "198.51.100.2" in lines[2]
    assert "HOROVOD_LOCAL_RANK=1" in lines[4] and lines[4].endswith("train me")


@pytest.mark.parametrize(
    "meeting",
    ["--rendezvous a:4711", "--rdzv-backend=c10d --rdzv-endpoint=a:4711"],
)
def test_a_nodes_plan_shows_its_own_part(capsys, tmp_path, meeting):
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("0" * 64)
    options = "--nnodes 2 --node-rank 1 --nproc-per-node 3 " + meeting
    options += f" --secret-file {secret} --dry-run true me"
    assert main(options.split()) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "node 1 of 2, which meet at a:4711: 3 ranks of"
    assert second.endswith(" true me")
