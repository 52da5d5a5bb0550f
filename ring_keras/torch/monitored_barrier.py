"""`torch.distributed.monitored_barrier`, which PyTorch has for gloo alone."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed

__all__ = ["monitored_barrier"]


def monitored_barrier(
    group: torch.distributed.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Returns when all ranks of a group have come; else it says which have not.

    The group can be used as before when some have not: those that come later hear of
    it at once. It goes by the group's store, which is slow, and is meant to find out
    which rank hangs.

    Args:
        group: Of the back end ring, or of gloo. Defaults to all ranks. On ranks that
            are not in it nothing happens.
        timeout: How long to wait; a number is of seconds. Defaults to the group's.
            Where rank 0 does not come, the others wait up to twice as long.
        wait_all_ranks: Whether rank 0 names all ranks that have not come, and not the
            first of them alone.

    Raises:
        RuntimeError: On every rank that has come, if one has not.
    """
    group = group or torch.distributed.group.WORLD
    if group is None or torch.distributed.get_rank(group) < 0:
        return
    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    # Without one a back end takes its own.
    limit = timedelta(milliseconds=-1) if timeout is None else timeout
    group.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)
