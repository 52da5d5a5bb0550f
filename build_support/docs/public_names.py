"""Lets a name of the API reference mean the function, not the module of that name."""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension, Module


class PublicNames(Extension):
    """`ring_keras.data.shard` is a function, whose module has the same name."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Puts each such function or class where Python's import puts it."""
        if pkg.name == "ring_keras":
            for package in list(pkg.members.values()):
                if isinstance(package, Module):
                    _replace(package, pkg)


def _replace(package: Module, root: Module) -> None:
    for name, member in list(package.members.items()):
        if not isinstance(member, Module) or name not in member.members:
            continue
        if not _is_public(package, name):
            continue
        # What else is imported from that module is found no longer by its path.
        for importer in (package, root):
            _point_into(importer, member)
        package.members[name] = Alias(name, target=member.members[name], parent=package)


def _is_public(package: Module, name: str) -> bool:
    has_stub = package.filepath.with_suffix(".pyi").exists()
    return has_stub or name in (package.exports or ())


def _point_into(importer: Module, module: Module) -> None:
    for name, member in list(importer.members.items()):
        if isinstance(member, Alias) and member.target_path.startswith(
            f"{module.path}."
        ):
            attribute = member.target_path.rpartition(".")[2]
            if attribute in module.members:
                importer.members[name] = Alias(
                    name, target=module.members[attribute], parent=importer
                )
