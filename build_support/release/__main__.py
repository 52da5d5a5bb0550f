"""`python -m build_support.release TAG`: `make release`. See docs/releasing.md."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from build_support.release import source
from build_support.release.checks import check_files
from build_support.release.commands import ReleaseError, run
from build_support.release.headers import python_headers, tensorflow_dirs
from build_support.release.libraries import build_libraries
from build_support.release.targets import ARCHITECTURES
from build_support.release.wheels import make_wheel

CACHE_DIR = source.ROOT_DIR / "build" / "release"
DIST_DIR = source.ROOT_DIR / "dist"


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    os.umask(0o022)  # Files in archives keep their modes.
    try:
        _say(f"Looking at {options.tag}")
        version = source.version_of(options.tag)
        epoch = source.commit_time(options.tag)
        files = build(options.tag, version, epoch, CACHE_DIR / options.tag, options)
        _say("Checking what was built")
        check_files(files)
        if options.twice:
            again_dir = CACHE_DIR / f"{options.tag}-again"
            again = build(options.tag, version, epoch, again_dir, options)
            compare(files, again)
        published = publish(files)
        if options.try_it:
            _say("Trying it where there is no compiler")
            run(Path(__file__).parent / "try_without_compiler.sh", DIST_DIR, version)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    _say("Ready to be published")
    print(*published, sep="\n")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m build_support.release")
    parser.add_argument("tag", help="as v0.2.0")
    parser.add_argument(
        "--architecture",
        dest="architectures",
        choices=ARCHITECTURES,
        action="append",
        help="only this; may be repeated",
    )
    parser.add_argument(
        "--twice", action="store_true", help="build all again elsewhere; compare bytes"
    )
    parser.add_argument(
        "--try",
        dest="try_it",
        action="store_true",
        help="install and train in a fresh Debian without a compiler; needs root",
    )
    options = parser.parse_args(arguments)
    options.architectures = options.architectures or list(ARCHITECTURES)
    return options


def build(
    tag: str, version: str, epoch: int, work_dir: Path, options: argparse.Namespace
) -> list[Path]:
    """The sdist and the wheels, in folders of `work_dir`."""
    _say(f"The source, in {work_dir}")
    source.export(tag, work_dir / "tree")
    sdist = source.make_sdist(work_dir / "tree", work_dir / "sdist", epoch)
    files = [sdist]
    tree = source.unpack(sdist, work_dir / "unpacked")
    pythons = python_headers()
    for architecture in options.architectures:
        _say(f"Libraries for {architecture}")
        tensorflows = tensorflow_dirs(architecture, CACHE_DIR / "tensorflow")
        libraries = build_libraries(tree, architecture, tensorflows, pythons, work_dir)
        for python in pythons:
            _say(f"A wheel for {architecture} and Python {python}")
            wheel = make_wheel(
                tree, libraries, architecture, python, version, epoch, work_dir
            )
            files.append(wheel)
    return files


def compare(files: Sequence[Path], again: Sequence[Path]) -> None:
    """Raises ReleaseError if two builds differ."""
    for one, other in zip(files, again, strict=True):
        if digest(one) != digest(other):
            raise ReleaseError(f"Two builds differ: {one} and {other}.")
    print("Both builds have the same bytes.")


def publish(files: Sequence[Path]) -> list[Path]:
    """Copies them to dist/, with a file of their checksums."""
    DIST_DIR.mkdir(exist_ok=True)
    copies = [Path(shutil.copy(path, DIST_DIR)) for path in files]
    lines = [f"{digest(path)}  {path.name}\n" for path in copies]
    (DIST_DIR / "SHA256SUMS").write_text("".join(sorted(lines)))
    return copies


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _say(what: str) -> None:
    print(f"\n== {time.strftime('%H:%M:%S')} {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
