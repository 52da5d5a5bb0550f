"""Makes libraries to link against that have old symbols only.

`link_stubs.py DIR COMPILER [READELF]` writes into DIR what stands, for the linker,
for the machine's C and C++ run-time libraries: each symbol in the newest version
that manylinux_2_28 allows, and none that is newer. What is linked against them
runs where glibc is 2.28 and libstdc++ that of GCC 8; what it needs beyond that,
old_symbols.cc has, or the linker says that it is undefined. The headers and the
compiler stay the machine's own.

The stubs hold no code, and nothing of them gets into what is linked.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The newest version of each family, as PEP 600 and auditwheel have it.
NEWEST = {
    "GLIBC": (2, 28),
    "GLIBCXX": (3, 4, 24),
    "CXXABI": (1, 3, 11),
}

# As the linker looks for them. glibc 2.34 moved libdl, libpthread and librt into
# libc: they are needed still where it is older, so each has a stub, with nothing
# in it, to be named as needed.
LIBRARIES = {
    "libc.so.6": "libc.so.6",
    "libm.so.6": "libm.so",
    "libstdc++.so.6": "libstdc++.so",
}
MOVED = {
    "libdl.so.2": "libdl.so",
    "libpthread.so.0": "libpthread.so",
    "librt.so.1": "librt.so",
}

SYMBOL = re.compile(
    r"(?P<kind>FUNC|OBJECT|IFUNC|NOTYPE) +(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +"
    r"(?P<section>\w+) +(?P<name>[^@\s]+)@{1,2}(?P<version>[A-Z]+_[\d.]+)$",
    re.MULTILINE,
)


def main(directory: Path, compiler: str, readelf: str = "readelf") -> None:
    directory.mkdir(parents=True, exist_ok=True)

    def real(name: str) -> str:
        return output_of(compiler, f"-print-file-name={name}").strip()

    for name, stub in LIBRARIES.items():
        symbols = old_symbols(output_of(readelf, "-W", "--dyn-syms", real(name)))
        make_stub(compiler, directory / stub, name, symbols)
    for name, stub in MOVED.items():
        make_stub(compiler, directory / stub, name, {})
    loader = next(Path(real("libc.so.6")).parent.glob("ld-linux-*.so.*"))
    symbols = old_symbols(output_of(readelf, "-W", "--dyn-syms", str(loader)))
    make_stub(compiler, directory / loader.name, loader.name, symbols)
    # As glibc's own script of that name: some functions are linked statically.
    members = (directory / "libc.so.6", real("libc_nonshared.a"))
    (directory / "libc.so").write_text(
        f"GROUP({' '.join(map(str, members))} AS_NEEDED({directory / loader.name}))\n"
    )


class Symbol(NamedTuple):
    """What a stub says of a symbol."""

    name: str
    version: str
    kind: str  # The assembler's word.


def old_symbols(listing: str) -> dict[str, Symbol]:
    """The newest version that is old enough, for each symbol that has one."""
    newest: dict[str, Symbol] = {}
    for symbol in defined(listing):
        before = newest.get(symbol.name)
        if is_old(symbol.version) and (
            before is None or numbers(symbol.version) > numbers(before.version)
        ):
            newest[symbol.name] = symbol
    return newest


def defined(listing: str) -> Iterator[Symbol]:
    for found in SYMBOL.finditer(listing):
        # "ABS" is a version's own entry.
        if found["section"] not in ("UND", "ABS"):
            kind = "object" if found["kind"] == "OBJECT" else "function"
            yield Symbol(found["name"], found["version"], kind)


def is_old(version: str) -> bool:
    newest = NEWEST.get(version.split("_")[0])
    return newest is not None and numbers(version) <= newest


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("_")[1].split("."))


def make_stub(
    compiler: str, path: Path, soname: str, symbols: dict[str, Symbol]
) -> None:
    source = path.with_name(f"{path.name}.s")
    script = path.with_name(f"{path.name}.map")
    source.write_text(
        "".join(
            f'.globl "{name}"\n.type "{name}", %{kind}\n"{name}": .byte 0\n'
            f'.size "{name}", 1\n'
            for name, _, kind in sorted(symbols.values())
        )
    )
    by_version = defaultdict(list)
    for name, version, _ in sorted(symbols.values()):
        by_version[version].append(name)
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
            for version, names in sorted(by_version.items())
        )
    )
    options = [f"-Wl,--version-script={script}"] if symbols else []
    output_of(
        *(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", *options),
        *("-o", str(path), str(source)),
    )


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
