"""Lets a name of the API reference mean the function, not the module of that name."""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension, Module


class PublicNames(Extension):
    """`ring_keras.data.shard` is a function, whose module has the same name."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Puts each such function or class where Python's import puts it."""
        if pkg.name == "ring_keras":
            _replace(pkg)


def _replace(package: Module) -> None:
    for name, member in list(package.members.items()):
        if not isinstance(member, Module):
            continue
        _replace(member)
        if name in member.members:
            package.members[name] = Alias(
                name, target=member.members[name], parent=package
            )
