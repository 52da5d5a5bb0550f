"""The session, and how many tasks it can run at once."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

__all__ = ["active_session", "await_slots", "slots_of"]

# Executors that have just been started may take so long to come,
_SLOTS_S = 10.0
# and where there is none yet, the first one.
_FIRST_SLOT_S = 60.0
_LOOK_INTERVAL_S = 0.25


def active_session(given: SparkSession | None) -> SparkSession:
    """The session that was given, or else the active one.

    Raises:
        RuntimeError: If there is none.
    """
    session = given or SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "ring_keras.spark needs a session: SparkSession.builder.getOrCreate()"
        )
    return session


def await_slots(session: SparkSession, wanted: int) -> int:
    """How many tasks can run at once, when they are enough.

    Or else after 10 s, or a minute if Spark has no executor so far.
    """
    begin = time.monotonic()
    while (slots := slots_of(session) or 0) < wanted:
        if time.monotonic() > begin + (_SLOTS_S if slots else _FIRST_SLOT_S):
            break
        time.sleep(_LOOK_INTERVAL_S)
    return slots


def slots_of(session: SparkSession) -> int | None:
    """How many tasks can run at once; None: it cannot be asked."""
    if not hasattr(session, "_jsparkSession"):  # Spark Connect.
        return None
    context = session.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))
