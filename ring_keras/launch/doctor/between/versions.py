"""Whether all hosts have the same versions."""

from __future__ import annotations

from collections.abc import Mapping

from ring_keras.launch.doctor.finding import Between, Finding, State

__all__ = ["compare"]

# Of facts: the title, how bad it is if they differ, and why that matters.
_COMPARED = {
    "ring_keras": ("ring_keras", State.FAILURE, "the ranks would not join"),
    "tensorflow": ("TensorFlow", State.WARNING, "kernels, and so results, may differ"),
    "torch": ("PyTorch", State.WARNING, "kernels, and so results, may differ"),
    "jax": ("JAX", State.WARNING, "kernels, and so results, may differ"),
    "keras": ("Keras", State.WARNING, "the ranks may build different models"),
    "numpy": ("NumPy", State.WARNING, "data may be shuffled differently"),
    "python": ("Python", State.WARNING, "pickled objects may not pass between ranks"),
    "libc": ("libc", State.WARNING, "math functions may round differently"),
    "libraries": ("C++ libraries", State.WARNING, "they come of different builds"),
}
_BACK_ENDS = {"jax", "tensorflow", "torch"}
_DISTRIBUTIONS = {*_BACK_ENDS, "keras", "numpy"}


def compare(
    facts: Mapping[str, Mapping[str, str]], python: str, backend: str
) -> list[Between]:
    """What differs; one finding that all is the same, if nothing does.

    Args:
        facts: What each host has; the first is the one that is right.
        python: The interpreter on the other hosts.
        backend: Keras's back end. Others may differ, which nobody uses.
    """
    compared = {
        name: how
        for name, how in _COMPARED.items()
        if name == backend or name not in _BACK_ENDS
    }
    hosts = tuple(facts)
    right = facts[hosts[0]]
    found = []
    for name, (title, state, why) in compared.items():
        if len({facts[host][name] for host in hosts}) == 1:
            continue
        each = ", ".join(f"{host}: {facts[host][name] or 'none'}" for host in hosts)
        other = next(host for host in hosts if facts[host][name] != right[name])
        finding = Finding(
            "versions",
            state,
            f"{title} differs ({each}): {why}",
            expected=f"the same {title} on all hosts",
            fix=_mend(name, right, other, python),
        )
        found.append(Between(hosts, finding))
    if found:
        return found
    text = ", ".join(
        f"{title} {right[name]}"
        for name, (title, _, _) in compared.items()
        if name != "libraries" and right[name]
    )
    finding = Finding("versions", State.OK, f"the same on all: {text}, and libraries")
    return [Between(hosts, finding)]


def _mend(name: str, right: Mapping[str, str], other: str, python: str) -> str:
    if name == "python":
        return f"ringrun --remote-python PATH ...   # of Python {right[name]}"
    if not right[name]:
        return ""
    pip = f"ssh {other} {python} -m pip install"
    if name in _DISTRIBUTIONS:
        return f"{pip} {name}=={right[name]}"
    if name in ("ring_keras", "libraries"):
        return f"{pip} --force-reinstall --no-deps ring-keras=={right['ring_keras']}"
    return f"ssh {other} cat /etc/os-release"
