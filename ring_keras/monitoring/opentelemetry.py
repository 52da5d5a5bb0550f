"""What this rank measures, as metrics of OpenTelemetry."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ring_keras._version import __version__
from ring_keras.errors import NotInitializedError
from ring_keras.monitoring.stats import Stats, stats

__all__ = ["add_opentelemetry_metrics"]

# What `StepTotals` calls it, how the metric ends, its unit, and what it is.
_COUNTERS = (
    ("steps", "steps", "{step}", "Steps that the rank has taken"),
    ("examples", "examples", "{example}", "Examples in them, where known"),
    ("duration_s", "step", "s", "How long the steps took"),
    ("input_s", "input", "s", "For how long the rank waited for its data"),
    ("compute_s", "compute", "s", "For how long it computed"),
    ("wait_s", "wait", "s", "For how long it waited for other ranks"),
    ("exposed_s", "exposed", "s", "For how long it waited for bytes to move"),
    ("bytes", "collective", "By", "Bytes of its tensors in collectives"),
)


def add_opentelemetry_metrics(meter_provider: Any = None) -> None:
    """Lets OpenTelemetry collect how this rank's steps spend their time.

    Call it once, on every rank. The SDK's configuration, in the program or in
    `OTEL_...` variables, says what is collected, how often, and where it is sent. The
    metrics are counters `ring_keras.*` since `init()`, with the attributes `rank` and
    `host`. There are none while the rank is in no job.

    Examples:
        With `ring-keras[opentelemetry]`:

        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> ring.monitoring.add_opentelemetry_metrics(MeterProvider())

    Args:
        meter_provider: A meter provider of OpenTelemetry. Defaults to the global one.

    Raises:
        ImportError: If OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ImportError(
            "[RK710] "
            "metrics of OpenTelemetry need its SDK: pip install "
            f"'ring-keras[opentelemetry]', on every host. ({error})"
        ) from error
    meter = metrics.get_meter("ring_keras", __version__, meter_provider)
    for field, name, unit, text in _COUNTERS:
        meter.create_observable_counter(
            f"ring_keras.{name}",
            [functools.partial(_observe, metrics.Observation, field)],
            unit,
            text,
        )
    meter.create_observable_counter(
        "ring_keras.waited_for",
        [functools.partial(_observe_waits, metrics.Observation)],
        "s",
        "For how long the rank waited for the other one, which came last",
    )


def _observe(observation: Any, field: str, options: Any) -> Iterator[Any]:
    now = _now()
    if now is not None:
        attributes = {"rank": now.rank, "host": now.host}
        yield observation(getattr(now.totals, field), attributes)


def _observe_waits(observation: Any, options: Any) -> Iterator[Any]:
    now = _now()
    for other, seconds in enumerate(now.totals.waited_for_s if now else ()):
        if now and seconds > 0:
            yield observation(seconds, {"rank": now.rank, "other": other})


def _now() -> Stats | None:
    """None outside of a job; it may end at any time, as this is another thread."""
    try:
        return stats(most_steps=0)
    except NotInitializedError:
        return None
