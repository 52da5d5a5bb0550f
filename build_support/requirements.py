"""Prints what pyproject.toml asks for, a word for each requirement.

`requirements.py --build`: what the build needs.
`requirements.py EXTRA ...`: what the package and these extras need.
`requirements.py --only EXTRA ...`: what these extras need beside the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pip._vendor import tomli

ROOT_DIR = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> None:
    project = tomli.loads((ROOT_DIR / "pyproject.toml").read_text())
    if arguments == ["--build"]:
        requirements = project["build-system"]["requires"]
    else:
        only = arguments[:1] == ["--only"]
        requirements = [] if only else list(project["project"]["dependencies"])
        for extra in arguments[only:]:
            requirements += project["project"]["optional-dependencies"][extra]
        if only:
            requirements = [one for one in requirements if "ring-keras[" not in one]
    # A marker may have spaces, and the shell splits at each.
    print(*(requirement.replace(" ", "") for requirement in requirements))


if __name__ == "__main__":
    main(sys.argv[1:])
