"""Whether the variables that ring_keras reads have values that it takes."""

from __future__ import annotations

from ring_keras.config import Config, ConfigError
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check", "config"]


def check(job: JobShape) -> list[Finding]:
    """Reads them as a rank would."""
    try:
        Config.from_environment()
    except ConfigError as error:
        return [
            Finding(
                "settings",
                State.FAILURE,
                str(error),
                expected="a value that the variable takes",
                fix="ringrun --print-env",
            )
        ]
    return [Finding("settings", State.OK, "every RING_KERAS_* variable is valid")]


def config() -> Config:
    """What is set here; the defaults where that is not valid, which `check` says."""
    try:
        return Config.from_environment()
    except ConfigError:
        return Config()
