"""What the tests share: real ranks, run as real processes."""

from support.job import Job
from support.outcome import RankOutcome
from support.rank_pool import RankPool
from support.run_ranks import run_ranks

__all__ = ["Job", "RankOutcome", "RankPool", "run_ranks"]
