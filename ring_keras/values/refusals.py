"""What one rank alone refuses to take into a collective."""

import contextlib
from collections.abc import Iterator

from ring_keras import _native
from ring_keras._causes import in_one_line
from ring_keras.job.job import job_or_none
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers

__all__ = ["refusals_told", "stay_away_from"]


@contextlib.contextmanager
def refusals_told(name: str, process_set: ProcessSet | None = None) -> Iterator[None]:
    """In it a rank looks at its arguments; the others are told if it refuses them.

    Args:
        name: Of the collective that it makes after it.
        process_set: The ranks. Defaults to all.
    """
    try:
        yield
    except Exception as error:
        stay_away_from([name], process_set or global_process_set, error)
        raise


def stay_away_from(
    names: list[str], process_set: ProcessSet, error: BaseException
) -> None:
    """The other ranks hear why this one cannot take part, now or when they come.

    It counts as this rank's call, so that its next one meets their next.

    Args:
        names: Of the collectives.
        process_set: The ranks that take part, if this one is among them.
        error: Why it does not.
    """
    job = job_or_none()
    # In an elastic job the others go on without a rank that fails.
    if job is None or job.config.elastic_socket is not None or job.others_train:
        return
    if not process_set.added or not has_peers(process_set):
        return
    for name in names:
        _native.stay_away(name, process_set.communicator_id(), in_one_line(error))
