"""The environment is read in one place, and checked there."""

import dataclasses
import os
import warnings

import pytest

from ring_keras.config import Config, ConfigError, read_token, variables

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def job(token_file):
    return {
        "RING_KERAS_RANK": "1",
        "RING_KERAS_SIZE": "2",
        "RING_KERAS_STORE_ADDRESS": "127.0.0.1:1234",
        "RING_KERAS_TOKEN_FILE": str(token_file),
        "RING_KERAS_GENERATION": "3",
    }


def test_without_variables_a_script_is_one_rank():
    config = Config.from_environment({})

    assert config == Config()
    assert (config.rank, config.size) == (0, 1)
    assert "token" not in config.init_options()


def test_a_launchers_variables_are_read(job):
    options = Config.from_environment(job).init_options()

    assert options["rank"] == 1
    assert options["size"] == 2
    assert options["store_host"] == "127.0.0.1"
    assert options["store_port"] == 1234
    assert options["token"] == bytes.fromhex(TOKEN)
    assert options["generation"] == 3


def test_an_ipv6_store_address(job):
    job["RING_KERAS_STORE_ADDRESS"] = "[::1]:1234"

    options = Config.from_environment(job).init_options()

    assert (options["store_host"], options["store_port"]) == ("::1", 1234)


def test_a_users_variables_are_read():
    config = Config.from_environment(
        {
            "RING_KERAS_TRANSPORT": "tcp",
            "RING_KERAS_TCP_STREAMS": "4",
            "RING_KERAS_BIND_ADDRESS": "10.0.0.1",
            "RING_KERAS_INTERFACES": "eth1, ib0",
            "RING_KERAS_INIT_TIMEOUT_S": "1.5",
            "RING_KERAS_BUCKET_SIZE_BYTES": "1024",
            "RING_KERAS_LOG_LEVEL": "",
        }
    )

    assert config == Config(
        transport="tcp",
        tcp_streams=4,
        bind_address="10.0.0.1",
        interfaces=("eth1", "ib0"),
        init_timeout_s=1.5,
        bucket_size_bytes=1024,
    )


def test_only_the_thresholds_that_are_set_go_to_the_engine():
    config = Config.from_environment(
        {
            "RING_KERAS_SHARED_FLAT_MAX_BYTES": "0",
            "RING_KERAS_DIRECT_MAX_BYTES": "4096",
        }
    )

    assert config.init_options()["tuning"] == {
        "shared_flat_max_bytes": 0,
        "direct_max_bytes": 4096,
    }


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("RANK", "one", "an integer of at least 0"),
        ("SIZE", "0", "an integer of at least 1"),
        ("STORE_ADDRESS", "host", "host:port"),
        ("STORE_ADDRESS", ":80", "host:port"),
        ("STORE_ADDRESS", "host:99999", "host:port"),
        ("GENERATION", "-1", "an integer from 0 to"),
        ("TRANSPORT", "rdma", "auto, tcp, mpi, or the path of a library"),
        ("TCP_STREAMS", "0", "an integer from 1 to 16"),
        ("TCP_STREAMS", "2.5", "an integer from 1 to 16"),
        ("INTERFACES", "eth0,,eth1", "names, separated by commas"),
        ("INIT_TIMEOUT_S", "0", "a number of seconds above 0"),
        ("COLLECTIVE_TIMEOUT_S", "nan", "a number of seconds above 0"),
        ("STALL_TIMEOUT_S", "inf", "a number of seconds above 0"),
        ("AUTOTUNE", "yes", "0 or 1"),
        ("DIRECT_MAX_BYTES", "-1", "an integer from 0 to"),
        ("HALVING_MAX_BYTES", str(1 << 63), "an integer from 0 to"),
        ("BUCKET_SIZE_BYTES", "4MB", "an integer of at least 1"),
        ("LOG_LEVEL", "loud", "one of debug, info, warning, error, off"),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, takes):
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({f"RING_KERAS_{name}": value})

    assert str(caught.value).startswith(f"[RK120] RING_KERAS_{name} must be {takes}")
    assert f"Received: RING_KERAS_{name}={value!r}" in str(caught.value)


@pytest.mark.parametrize("transport", ["mpi", "/opt/rdma/libtransport.so"])
def test_what_cannot_be_encrypted_is_refused(transport):
    given = {"RING_KERAS_TRANSPORT": transport, "RING_KERAS_ENCRYPT": "1"}

    with pytest.raises(ConfigError, match=rf"RK153.*TRANSPORT={transport}"):
        Config.from_environment(given)


def test_an_elastic_job_has_tcp(job):
    del job["RING_KERAS_STORE_ADDRESS"]
    job |= {"RING_KERAS_ELASTIC_SOCKET": "/tmp/s", "RING_KERAS_TRANSPORT": "mpi"}

    with pytest.raises(ConfigError, match=r"RK154.*auto or tcp.*TRANSPORT=mpi"):
        Config.from_environment(job)


def test_half_a_job_is_refused(job):
    del job["RING_KERAS_TOKEN_FILE"]

    with pytest.raises(ConfigError, match=r"RING_KERAS_TOKEN_FILE is not.*ringrun"):
        Config.from_environment(job)


def test_a_rank_beyond_the_size_is_refused(job):
    job["RING_KERAS_RANK"] = "2"

    with pytest.raises(ConfigError, match="RING_KERAS_RANK=2, RING_KERAS_SIZE=2"):
        Config.from_environment(job)


def test_an_unknown_variable_is_pointed_out():
    with pytest.warns(
        UserWarning, match=r"RING_KERAS_TRANSPORTS.*RING_KERAS_TRANSPORT"
    ):
        Config.from_environment({"RING_KERAS_TRANSPORTS": "tcp"})


def test_other_peoples_variables_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config.from_environment({"RING_KERASX": "1", "KERAS_BACKEND": "x"})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("RING_KERAS_TCP_STREAMS", "3")

    assert Config.from_environment().tcp_streams == 3


def test_every_field_is_a_documented_variable():
    names = [f"RING_KERAS_{f.name.upper()}" for f in dataclasses.fields(Config)]

    assert [variable.name for variable in variables()] == names
    assert all(variable.help.endswith(".") for variable in variables())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_file_open_to_others_is_refused(token_file, mode):
    token_file.chmod(mode)

    with pytest.raises(ConfigError, match=f"0600. Received: mode {mode:04o}"):
        read_token(token_file)


def test_a_missing_token_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="gone: cannot read it: No such file"):
        read_token(tmp_path / "gone")


def test_a_pipe_is_no_token_file(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(ConfigError, match="regular file"):
        read_token(tmp_path / "pipe")


@pytest.mark.parametrize(
    "content", ["", TOKEN[:-1], TOKEN + "0", "g" * 64, "\xff" * 32]
)
def test_anything_but_a_token_is_refused_and_not_shown(token_file, content):
    token_file.write_text(content)

    with pytest.raises(ConfigError, match="64 hexadecimal digits") as caught:
        read_token(token_file)
    assert not content or content not in str(caught.value)


def test_a_job_that_cannot_go_on_without_a_rank_has_more_patience():
    def heartbeat_s(environment: dict[str, str], elastic: bool) -> float:
        return Config.from_environment(environment).heartbeat_s(elastic)

    assert heartbeat_s({}, False) > heartbeat_s({}, True)
    chosen = {"RING_KERAS_HEARTBEAT_TIMEOUT_S": "90"}
    assert heartbeat_s(chosen, False) == heartbeat_s(chosen, True) == 90
    options = Config.from_environment(chosen).init_options()
    assert options["heartbeat_timeout_s"] == 90
