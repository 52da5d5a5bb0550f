"""What some ranks have agreed on while others were in join()."""

from ring_keras.job.process_set import ProcessSet, job_number

__all__ = ["agreed_without_all"]

# By job and communicator.
_agreed: dict[tuple[int, int], set[bytes]] = {}


def agreed_without_all(process_set: ProcessSet) -> set[bytes]:
    """Digests of what was agreed on so, for the caller to add to."""
    key = job_number(), process_set.communicator_id()
    return _agreed.setdefault(key, set())
