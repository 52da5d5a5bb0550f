"""What rank 0 wrote, read through TensorBoard's data provider."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from tensorboard.data import provider

from ring_keras.monitoring import records
from ring_keras.monitoring.history import Table
from ring_keras.monitoring.rows import Update

__all__ = ["Reader", "Run"]

# More than a tag has; TensorBoard itself keeps ten.
_ALL = 1000
# Points of a curve of the loss.
_POINTS = 500


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run has of each kind.

    Attributes:
        updates: Of steps, oldest first. What a later session has done anew, such as a
            job that was started again in the same folder, is that session's.
        last_session: Those of the last one; each `fit` is one.
        steps: Those of the last session that were sent with their collectives: by the
            engine's number, what each rank says of it.
        events: Oldest first.
        totals: The last word on bandwidths and buckets.
    """

    updates: tuple[Table, ...] = ()
    last_session: tuple[Table, ...] = ()
    steps: Mapping[int, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    events: tuple[dict[str, Any], ...] = ()
    totals: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Tag:
    """What was read of a tag, and how far it went then."""

    until: tuple[int, float]
    records: tuple[Any, ...]


class Reader:
    """Reads what is new, and keeps the rest.

    Args:
        data_provider: TensorBoard's.
    """

    def __init__(self, data_provider: provider.DataProvider) -> None:
        self._provider = data_provider
        self._tags: dict[tuple[str, str], dict[str, _Tag]] = {}
        self._runs: dict[tuple[str, str], Run] = {}
        # TensorBoard answers each request in a thread of its own.
        self._lock = threading.Lock()

    def runs(self, context: Any, experiment: str) -> list[str]:
        """Those with records that this version reads."""
        return sorted(
            run for run, tags in self._listed(context, experiment).items() if tags
        )

    def read(self, context: Any, experiment: str, run: str) -> Run:
        """All of a run; empty if there is no such run."""
        with self._lock:
            return self._read(context, experiment, run)

    def _read(self, context: Any, experiment: str, run: str) -> Run:
        listed = self._listed(context, experiment, run).get(run, {})
        known = self._tags.setdefault((experiment, run), {})
        stale = [
            tag
            for tag, until in listed.items()
            if tag not in known or known[tag].until != until
        ]
        if stale:
            data = self._provider.read_tensors(
                context,
                experiment_id=experiment,
                plugin_name=records.PLUGIN,
                downsample=_ALL,
                run_tag_filter=provider.RunTagFilter(runs=[run], tags=stale),
            )
            for tag, series in data.get(run, {}).items():
                kind = records.kind_of_tag(tag)
                found = tuple(_decoded(kind, datum) for datum in series)
                known[tag] = _Tag(listed[tag], found)
        gone = known.keys() - listed.keys()  # Another job's, in the same folder.
        for tag in gone:
            del known[tag]
        key = experiment, run
        if stale or gone or key not in self._runs:
            self._runs[key] = _assembled(known)
        return self._runs[key]

    def losses(
        self, context: Any, experiment: str, run: str
    ) -> dict[str, list[tuple[float, float]]]:
        """Unix times and values of the scalars that are losses, by tag.

        Those of the validation too, by the tag and ", validation".
        """
        beside = _validation_beside(run)
        wanted = provider.RunTagFilter(runs=[run, *beside])
        listed = self._provider.list_scalars(
            context,
            experiment_id=experiment,
            plugin_name="scalars",
            run_tag_filter=wanted,
        )
        tags = {tag for found in listed.values() for tag in found}
        tags = {tag for tag in tags if tag.endswith("loss")}
        if not tags:
            return {}
        data = self._provider.read_scalars(
            context,
            experiment_id=experiment,
            plugin_name="scalars",
            downsample=_POINTS,
            run_tag_filter=provider.RunTagFilter(runs=[run, *beside], tags=tags),
        )
        return {
            tag if name == run else f"{tag}, validation": [
                (point.wall_time, float(point.value)) for point in points
            ]
            for name in (run, *beside)
            for tag, points in data.get(name, {}).items()
        }

    def _listed(
        self, context: Any, experiment: str, run: str | None = None
    ) -> dict[str, dict[str, tuple[int, float]]]:
        """How far each tag of ours goes, by run."""
        wanted = provider.RunTagFilter(runs=None if run is None else [run])
        listed = self._provider.list_tensors(
            context,
            experiment_id=experiment,
            plugin_name=records.PLUGIN,
            run_tag_filter=wanted,
        )
        return {
            name: {
                tag: (series.max_step, series.max_wall_time)
                for tag, series in tags.items()
                if series.plugin_content == records.VERSION
            }
            for name, tags in listed.items()
        }


def _validation_beside(run: str) -> list[str]:
    """The run to which Keras writes the validation of this one."""
    folder, _, name = run.rpartition("/")
    if name != "train":
        return []
    return [f"{folder}/validation" if folder else "validation"]


def _decoded(kind: str | None, datum: Any) -> tuple[float, Any]:
    """When it was written, and the content; of rows as a table."""
    step, time = int(datum.step), float(datum.wall_time)
    content = records.decode_record(datum.numpy.item())
    if kind == records.ROWS:
        content = Table.of(Update.from_json(step, time, content))
    return time, content


def _assembled(tags: Mapping[str, _Tag]) -> Run:
    rows = _by_session(tags, records.ROWS)
    updates: list[Table] = []
    for session in rows:
        before = session[0].begins_after
        updates = [update for update in updates if update.step <= before] + session
    steps = _by_session(tags, records.STEPS)
    totals = _by_session(tags, records.TOTALS)
    events = [
        event
        for session in _by_session(tags, records.EVENTS)
        for found in session
        for event in found
    ]
    return Run(
        updates=tuple(updates),
        last_session=tuple(rows[-1]) if rows else (),
        steps={ranks[0]["step"]: ranks for ranks in steps[-1]} if steps else {},
        events=tuple(sorted(events, key=lambda event: event["time"])),
        totals=totals[-1][-1] if totals else {},
    )


def _by_session(tags: Mapping[str, _Tag], kind: str) -> list[list[Any]]:
    """The records of a kind, of each session that has any, oldest first."""
    sessions: dict[int, list[tuple[float, Any]]] = {}
    for tag, content in tags.items():
        if records.kind_of_tag(tag) == kind and content.records:
            found = sessions.setdefault(records.session_of_tag(tag), [])
            found.extend(content.records)
    for found in sessions.values():
        found.sort(key=lambda record: record[0])
    return [[content for _, content in sessions[number]] for number in sorted(sessions)]
