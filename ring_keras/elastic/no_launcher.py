"""Says why ranks that are lost are not done without."""

from absl import logging

from ring_keras.config import scheduled_rank
from ring_keras.job.topology import rank, size

__all__ = ["warn_of_no_launcher"]


def warn_of_no_launcher(what: str) -> None:
    """Rank 0 of several, in a job that is not elastic, says what would make it so.

    Args:
        what: Does nothing there.
    """
    if size() == 1 or rank() != 0:
        return
    scheduled = scheduled_rank()
    starter = "ringrun without --min-np, or another program,"
    logging.warning(
        "ring_keras: [RK221] "
        "%s does nothing, and all ranks end when one is lost: %s started "
        "them. `ringrun --min-np M python train.py` starts ranks that continue; in a "
        "scheduler's job it takes the job's hosts.",
        what,
        starter if scheduled is None else scheduled.starter,
    )
