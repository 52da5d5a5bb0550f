"""Jobs as barrier stages of Spark; see docs/engines.md.

Needs `pip install ring-keras[spark]`, and a Java that Spark runs on.
"""

from ring_keras.engines.outcomes import RankFailedError
from ring_keras.spark.job import run

__all__ = ["RankFailedError", "run"]
