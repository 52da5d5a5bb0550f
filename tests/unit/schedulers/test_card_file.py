"""Whose card of a store is believed, and whose is not."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from ring_keras.config import Config, ConfigError, ScheduledRank
from ring_keras.schedulers.card_file import CardFile, path_of_card
from ring_keras.schedulers.store_card import StoreCard

TOKEN = bytes(range(32))


@pytest.fixture
def card() -> StoreCard:
    return StoreCard.of_this_process("127.0.0.1", 4711, TOKEN)


@pytest.fixture
def file(tmp_path: Path) -> CardFile:
    return CardFile(tmp_path / "card")


def ranks(job: str = "7", hosts: int = 1, size: int = 2) -> ScheduledRank:
    return ScheduledRank(0, size, 0, size // hosts, "Slurm", job)


def test_a_card_comes_back_and_goes(
    tmp_path: Path, file: CardFile, card: StoreCard
) -> None:
    assert file.read() is None

    file.publish(card)

    assert file.read() == card
    assert card.secret() == TOKEN
    assert TOKEN.hex() not in repr(card)
    assert [path.name for path in tmp_path.iterdir()] == ["card"]
    assert stat.S_IMODE((tmp_path / "card").stat().st_mode) == 0o600
    file.remove()
    file.remove()
    assert file.read() is None


def test_what_another_process_has_put_there_since_stays(
    tmp_path: Path, file: CardFile, card: StoreCard
) -> None:
    file.publish(card)
    (tmp_path / "card").unlink()
    # With the number of the first file, which is free again.
    later = CardFile(tmp_path / "card")
    another = dataclasses.replace(card, token=bytes(32).hex())
    later.publish(another)

    file.remove()

    assert later.read() == another


def test_a_running_stores_card_is_not_replaced(file: CardFile, card: StoreCard) -> None:
    file.publish(card)

    with pytest.raises(FileExistsError, match=rf"process {os.getpid()} serves a job"):
        file.publish(card)


@pytest.mark.parametrize(
    "ended",
    [
        # Its number is now another's, or nobody's.
        {"started_at": 1},
        {"pid": 2**22 - 1},
    ],
)
def test_the_card_of_a_store_that_has_ended(
    file: CardFile, card: StoreCard, ended: dict[str, int]
) -> None:
    file.publish(dataclasses.replace(card, **ended))

    assert file.read() is None
    file.publish(card)
    assert file.read() == card


def test_whether_a_store_elsewhere_runs_cannot_be_seen(
    file: CardFile, card: StoreCard
) -> None:
    elsewhere = dataclasses.replace(card, boot_id="another", started_at=1)
    file.publish(elsewhere)

    assert file.read() == elsewhere
    # But there is one rank 0 alone, so what it finds is of an earlier job.
    file.publish(card)
    assert file.read() == card


def test_files_that_others_could_have_read_or_made(
    tmp_path: Path, file: CardFile, card: StoreCard
) -> None:
    path = tmp_path / "card"
    file.publish(card)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"no other can read. Received: .* mode 0640"):
        file.read()

    path.rename(tmp_path / "real")
    (tmp_path / "real").chmod(0o600)
    path.symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="cannot read it: Too many levels"):
        file.read()

    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="must be a file of this user's"):
        file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_another_users_file(tmp_path: Path, file: CardFile, card: StoreCard) -> None:
    file.publish(card)
    os.chown(tmp_path / "card", 12345, -1)

    with pytest.raises(ConfigError, match="Received: user 12345, mode 0600"):
        file.read()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[" * 3000, '{"host": 1}', "\xff", "null"],
)
def test_what_is_no_card(tmp_path: Path, file: CardFile, text: str) -> None:
    (tmp_path / "card").write_text(text)
    (tmp_path / "card").chmod(0o600)

    with pytest.raises(ConfigError, match=r"something else\. Remove it") as caught:
        file.read()
    assert not text or text not in str(caught.value).rpartition("/")[2]


@pytest.mark.parametrize(
    "wrong",
    [{"port": 0}, {"port": True}, {"port": "1"}, {"token": "ab"}, {"token": "x" * 64}],
)
def test_a_card_with_a_wrong_value(
    tmp_path: Path, file: CardFile, card: StoreCard, wrong: dict[str, object]
) -> None:
    (tmp_path / "card").write_text(dataclasses.replace(card, **wrong).to_text())
    (tmp_path / "card").chmod(0o600)

    with pytest.raises(ConfigError, match="something else"):
        file.read()


def test_each_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    config = Config(rendezvous_dir=str(tmp_path / "new"))

    paths = [path_of_card(config, own) for own in (ranks(), ranks("8"), ranks(size=4))]

    assert len(set(paths)) == 3
    assert paths[0] == path_of_card(config, ranks())
    (directory,) = (tmp_path / "new").iterdir()
    assert {path.parent for path in paths} == {directory}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert "7" not in paths[0].name or len(paths[0].name) == 32


def test_a_directory_that_others_can_enter(tmp_path: Path) -> None:
    config = Config(rendezvous_dir=str(tmp_path))
    path_of_card(config, ranks()).parent.chmod(0o755)

    with pytest.raises(ConfigError, match="must be a directory of this user's"):
        path_of_card(config, ranks())


def test_hosts_meet_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert path_of_card(Config(), ranks(hosts=2)).is_relative_to(tmp_path)
    assert not path_of_card(Config(), ranks()).is_relative_to(tmp_path)
