"""The source of a release: what git has under the tag, and the sdist made of it."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import tarfile
from pathlib import Path

from build_support.release.commands import ReleaseError, output_of, run

ROOT_DIR = Path(__file__).resolve().parent.parent.parent


def version_of(tag: str) -> str:
    """The version that the tag stands for, after a look at what it holds.

    Raises:
        ReleaseError: If the tag, the package's version and the changelog differ.
    """
    found = re.fullmatch(r"v(\d+\.\d+\.\d+)", tag)
    if not found:
        raise ReleaseError(f"A release's tag is v<major>.<minor>.<patch>, not '{tag}'.")
    version = found[1]
    if not output_of("git", "tag", "--list", tag, cwd=ROOT_DIR).strip():
        raise ReleaseError(f"There is no tag {tag}: git tag -a {tag}")
    check_version(tag, version, _file(tag, "ring_keras/_version.py"))
    check_changelog(tag, version, _file(tag, "CHANGELOG.md"))
    return version


def check_version(tag: str, version: str, module: str) -> None:
    stated = re.findall(r'^__version__ = "(.*)"$', module, re.MULTILINE)
    if stated != [version]:
        raise ReleaseError(
            f"{tag}: ring_keras/_version.py says {', '.join(stated)}, not {version}."
        )


def check_changelog(tag: str, version: str, changelog: str) -> None:
    title = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    section = re.search(rf"{title}(.*?)(?=^## \[|\Z)", changelog, re.M | re.S)
    if section is None or not section[1].strip():
        raise ReleaseError(
            f"{tag}: CHANGELOG.md has no section '## [{version}] - <date>', or "
            "nothing in it. Move what is under [Unreleased] there."
        )


def commit_time(tag: str) -> int:
    """Seconds since 1970: the date of all that a release holds."""
    return int(output_of("git", "log", "-1", "--format=%ct", tag, cwd=ROOT_DIR))


def export(tag: str, directory: Path) -> None:
    """Puts the files of the tag, and no others, into a new folder."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    archive = directory.with_suffix(".tar")
    run("git", "archive", "--output", archive, tag, cwd=ROOT_DIR)
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")


def make_sdist(tree: Path, dist_dir: Path, epoch: int) -> Path:
    """An sdist with the page for TensorBoard, the same bytes each time."""
    run(sys.executable, "-m", "build_support.board", cwd=tree)
    work_dir = tree / "build" / "sdist"
    shutil.rmtree(work_dir, ignore_errors=True)
    run(sys.executable, "setup.py", "--quiet", "sdist", "-d", work_dir, cwd=tree)
    (made,) = work_dir.glob("*.tar.gz")
    dist_dir.mkdir(parents=True, exist_ok=True)
    target = dist_dir / made.name
    _repack(made, target, epoch)
    return target


def _repack(source: Path, target: Path, epoch: int) -> None:
    """The same files in the order of their names, of one time and no owner."""

    def of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = epoch
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.pax_headers = {}  # A finer time is one of them.
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with (
        tarfile.open(source) as read,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(read.getmembers(), key=lambda member: member.name):
            written.addfile(of_nobody(member), read.extractfile(member))


def unpack(sdist: Path, directory: Path) -> Path:
    """The tree that users build from; the wheels are built from it, too."""
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(sdist) as files:
        files.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


def _file(tag: str, path: str) -> str:
    return output_of("git", "show", f"{tag}:{path}", cwd=ROOT_DIR)
