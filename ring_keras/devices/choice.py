"""Gives each rank a GPU of its own, before TensorFlow takes all of them."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import _native
from ring_keras.config import Config, inherited_environment
from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import gather_texts
from ring_keras.job.job import current_job
from ring_keras.network.host_id import host_id

__all__ = ["Choice", "choose", "disagreement", "prepare_device"]

_AUTO, _CPU = "auto", "cpu"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What one rank trains on, as it tells the others.

    Attributes:
        host: Name of its host.
        gpu: Number of its GPU among those TensorFlow lists; None for the CPU.
        identity: Which GPU of the host that is, whatever each process calls it.
        asked: Whether its user named the device.
        problem: Why it cannot train on any; then the rest means nothing.
        host_id: What hosts of one name differ by.
    """

    host: str
    gpu: int | None = None
    identity: str = ""
    asked: bool = False
    problem: str | None = None
    host_id: str = ""

    def describe(self) -> str:
        """For a sentence on ranks and devices."""
        return "the CPU" if self.gpu is None else f"GPU {self.identity}"


def prepare_device(config: Config) -> None:
    """Shows TensorFlow this rank's GPU alone, and lets its memory grow as needed.

    Leaves alone what the user has set already: devices made visible, memory
    growth or limits. A job of one rank whose user asks for nothing stays as it
    is. Collective.

    Raises:
        RingKerasError: On every rank, if one has no GPU that is its own, or
            only some have one; or if what GPUs send is to be encrypted and cannot.
    """
    job = current_job()
    if job.size == 1 and config.device == _AUTO:
        return
    try:
        choice = _take_device(config, job.local_rank)
    except Exception as error:  # The other ranks wait for this one's choice.
        failed = f"{type(error).__name__}: {error}"
        choice = _problem(config.host_name or socket.gethostname(), failed)
    choice = dataclasses.replace(choice, host_id=host_id(config.host_name))
    rows = gather_texts(json.dumps(dataclasses.asdict(choice)), "devices")
    choices = [Choice(**json.loads(row)) for row in rows]
    problem = disagreement(choices)
    if problem is None and config.encrypt:
        problem = encryption_problem(choices)
    if problem is not None:
        raise RingKerasError(f"[RK140] {problem}")
    # So on every rank, as none disagrees.
    if choice.gpu is not None:
        job.on_gpu = True
        _native.use_cuda_device(choice.gpu)


def _take_device(config: Config, local_rank: int) -> Choice:
    """Picks this rank's device and tells TensorFlow."""
    gpus = tf.config.list_physical_devices("GPU")
    visible = [gpus.index(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    choice = choose(
        config.device,
        len(gpus),
        visible,
        local_rank,
        host=config.host_name or socket.gethostname(),
        cuda_visible_devices=inherited_environment().get("CUDA_VISIBLE_DEVICES"),
    )
    return choice if choice.problem is not None else _apply(choice, gpus)


def choose(
    setting: str,
    gpu_count: int,
    visible: Sequence[int],
    local_rank: int,
    *,
    host: str,
    cuda_visible_devices: str | None = None,
) -> Choice:
    """Picks a device by what this rank knows alone.

    Args:
        setting: RING_KERAS_DEVICE: auto, cpu, or the number of a GPU.
        gpu_count: How many GPUs TensorFlow lists.
        visible: Which of them it is going to use.
        local_rank: This rank's number on its host.
        host: Name of the host.
        cuda_visible_devices: Of the environment.
    """
    if setting == _CPU:
        return Choice(host, asked=True)
    if setting != _AUTO:
        gpu = int(setting)
        if gpu >= gpu_count:
            return _problem(
                host,
                f"RING_KERAS_DEVICE={gpu}, but TensorFlow lists {_count(gpu_count)}"
                f"{_see(cuda_visible_devices)}. Set the number of one of them, "
                "from 0, or auto.",
            )
        return Choice(host, gpu, _identity(gpu, cuda_visible_devices), asked=True)
    if not visible:
        return Choice(host)
    # One alone may be what a launcher has left each rank of the host.
    if len(visible) == 1:
        gpu = visible[0]
    elif local_rank < len(visible):
        gpu = visible[local_rank]
    else:
        return _problem(
            host,
            f"it is number {local_rank + 1} of its host's ranks, but TensorFlow has "
            f"{_count(len(visible))} there{_see(cuda_visible_devices)}. Start at "
            "most as many ranks on a host as it has GPUs, or set "
            "RING_KERAS_DEVICE=cpu.",
        )
    return Choice(host, gpu, _identity(gpu, cuda_visible_devices))


def disagreement(choices: Sequence[Choice]) -> str | None:
    """Why the ranks cannot train together on these; None if they can.

    Args:
        choices: Of all ranks, by rank.
    """
    for rank, choice in enumerate(choices):
        if choice.problem is not None:
            return f"rank {rank} on host {choice.host}: {choice.problem}"
    with_gpu = [rank for rank, choice in enumerate(choices) if choice.gpu is not None]
    without = [rank for rank, choice in enumerate(choices) if choice.gpu is None]
    if with_gpu and without:
        return (
            f"ranks {without} train on the CPU (host {choices[without[0]].host}), "
            f"ranks {with_gpu} on GPUs (host {choices[with_gpu[0]].host}): a "
            "collective needs all its tensors in the same kind of memory. Give every "
            "rank a GPU and a TensorFlow that finds it, or set RING_KERAS_DEVICE=cpu "
            "for all."
        )
    owners: dict[tuple[str, str, str], int] = {}
    for rank in with_gpu:
        choice = choices[rank]
        gpu = (choice.host, choice.host_id, choice.identity)
        owner = owners.setdefault(gpu, rank)
        if owner != rank and not choice.asked:
            return (
                f"ranks {owner} and {rank} have one GPU between them: GPU "
                f"{choice.identity} of host {choice.host}. Start at most as many "
                "ranks on a host as it has GPUs, show each rank another one "
                "(CUDA_VISIBLE_DEVICES), or set RING_KERAS_DEVICE=cpu."
            )
    return None


def encryption_problem(choices: Sequence[Choice]) -> str | None:
    """Why what these ranks send cannot be encrypted; None if it can."""
    hosts = {choice.host_id for choice in choices}
    if len(hosts) == 1 or all(choice.gpu is None for choice in choices):
        return None
    return (
        "RING_KERAS_ENCRYPT=1 cannot protect what GPUs of different hosts send each "
        f"other ({len(hosts)} hosts): NCCL does not encrypt. Train without it on a "
        "network that is encrypted itself (WireGuard, IPsec), on one host, or with "
        "RING_KERAS_DEVICE=cpu."
    )


def _apply(choice: Choice, gpus: list[Any]) -> Choice:
    """Tells TensorFlow; returns the choice, or what is wrong with it."""
    chosen = [] if choice.gpu is None else [gpus[choice.gpu]]
    before = tf.config.get_visible_devices("GPU")
    try:
        tf.config.set_visible_devices(chosen, "GPU")
    except RuntimeError:
        return dataclasses.replace(
            choice,
            problem=(
                f"TensorFlow has already started with {_count(len(before))}, so "
                f"this rank cannot have {choice.describe()} alone. Call "
                "ring_keras.init() before anything that computes: tensors, "
                "variables, layers."
            ),
        )
    if not gpus:
        return choice
    growth = ""
    if chosen and _memory_is_unset(chosen[0]):
        try:
            tf.config.experimental.set_memory_growth(chosen[0], True)
            growth = ", whose memory TensorFlow takes as it needs it"
        except RuntimeError:  # Started already, with this one alone.
            growth = ""
    _native.log(
        "info",
        f"trains on {choice.describe()} of {len(gpus)}{growth}"
        if chosen
        else f"trains on the CPU; {_count(len(gpus))} left alone",
    )
    return choice


def _memory_is_unset(gpu: Any) -> bool:
    """Whether the user has said nothing of the GPU's memory."""
    if "TF_FORCE_GPU_ALLOW_GROWTH" in inherited_environment():
        return False
    return (
        tf.config.experimental.get_memory_growth(gpu) is None
        and tf.config.get_logical_device_configuration(gpu) is None
    )


def _identity(gpu: int, cuda_visible_devices: str | None) -> str:
    """What the host calls the GPU that this process calls `gpu`."""
    listed = [name.strip() for name in (cuda_visible_devices or "").split(",")]
    return listed[gpu] if gpu < len(listed) and listed[gpu] else str(gpu)


def _problem(host: str, text: str) -> Choice:
    return Choice(host, problem=text)


def _count(number: int) -> str:
    return {0: "no GPU", 1: "1 GPU"}.get(number, f"{number} GPUs")


def _see(cuda_visible_devices: str | None) -> str:
    if cuda_visible_devices is None:
        return ""
    return f" (CUDA_VISIBLE_DEVICES={cuda_visible_devices})"
