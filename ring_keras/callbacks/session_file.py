"""What one `fit` writes for the page "Ring", in the thread that gathers."""

import collections
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from ring_keras.callbacks.summary_file import SummaryFile
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.monitoring import records
from ring_keras.monitoring.events import event
from ring_keras.monitoring.history import History, Table
from ring_keras.monitoring.meetings import Apart, scalars_of_apart
from ring_keras.monitoring.meter import collective_totals, common_step
from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.scalars import scalars_of
from ring_keras.monitoring.stragglers import find_stragglers

__all__ = ["SessionFile"]

# The updates that tell who is slow now.
_RECENT = 20
# To find that out takes up to this part of the time: it holds Python's lock, which a
# short step would feel.
_FIND_PART = 0.005


class SessionFile:
    """Turns what the ranks sent into scalars and records.

    A disk that is full ends the writing, not the training.

    Args:
        file: Where to write.
        process_set: The ranks that train together.
    """

    def __init__(self, file: SummaryFile, process_set: ProcessSet) -> None:
        self._file = file
        # Asked now: when ranks are lost, the job may be over before this is.
        self._root = process_set.ranks[0]
        began_at = time.time()
        self._rows = records.Series(records.ROWS, began_at)
        self._steps = records.Series(records.STEPS, began_at)
        self._events = records.Series(records.EVENTS, began_at)
        self._rows_due = records.Thinning(began_at)
        self._pending: Update | None = None
        self._recent: collections.deque[Table] = collections.deque(maxlen=_RECENT)
        self._last_step = 0
        self.buckets: list[dict[str, Any]] = []
        """Of the gradients, as `bucket_figures` gives them."""
        self._straggler = -1
        self._find_from = 0.0
        self._failed = False
        size = process_set.size()
        text = "1 rank begins" if size == 1 else f"{size} ranks begin"
        self._write(0, {}, {}, [event("membership", f"{text} to train.", self._root)])

    def write(self, messages: Sequence[dict[str, Any]]) -> None:
        """An update of all ranks; by rank, as `RingSummaries.update` sends them."""
        now = time.time()
        rows = tuple(Row.from_json(message["row"]) for message in messages)
        update = Update(messages[0]["step"], now, rows)
        contents: dict[str, Any] = {}
        scalars: dict[str, float] = {}
        ranks = common_step([message["last_steps"] for message in messages])
        if ranks and ranks[0]["step"] > self._last_step:
            self._last_step = ranks[0]["step"]
            contents[self._steps.next_tag()] = ranks
        if update.steps:
            self._recent.append(Table.of(update))
            scalars = scalars_of(update, self.buckets)
            scalars["ring/straggler_rank"] = self._find_straggler(now)
            self._pending = self._pending.plus(update) if self._pending else update
        scalars |= scalars_of_apart(
            [list(map(Apart.from_json, message["apart"])) for message in messages]
        )
        if self._pending is not None and self._rows_due.is_due(now):
            contents |= self._take_pending()
        events = [found for message in messages for found in message["events"]]
        self._write(update.step, scalars, contents, events)

    def end(self, error: Exception | None) -> None:
        """Writes what is left, and what ended the gathering, if it was an error."""
        events = []
        if error is not None:
            first_line = str(error).splitlines()[0] if str(error) else ""
            text = f"{type(error).__name__}: {first_line}"
            events = [event("fault", text, self._root)]
        step = self._recent[-1].step if self._recent else 0
        self._write(step, {}, self._take_pending(), events)

    def _find_straggler(self, now: float) -> float:
        """The rank of the first straggler, -1 without one; as it was a moment ago."""
        if now >= self._find_from:
            began_at = time.perf_counter()
            found = find_stragglers(History.of(self._recent))
            self._straggler = -1
            if found and found[0].pattern != "past":
                self._straggler = found[0].ranks[0]
            self._find_from = now + (time.perf_counter() - began_at) / _FIND_PART
        return self._straggler

    def _take_pending(self) -> dict[str, Any]:
        pending, self._pending = self._pending, None
        if pending is None:
            return {}
        contents: dict[str, Any] = {self._rows.next_tag(): pending.to_json()}
        with contextlib.suppress(RingKerasError):  # The job is over.
            totals = {"collectives": collective_totals(), "buckets": self.buckets}
            contents[f"{records.PLUGIN}/{records.TOTALS}"] = totals
        return contents

    def _write(
        self,
        step: int,
        scalars: dict[str, float],
        contents: dict[str, Any],
        events: list[dict[str, Any]],
    ) -> None:
        if events:
            contents = {**contents, self._events.next_tag(): events}
        if self._failed or not (scalars or contents):
            return
        try:
            self._file.write(step, scalars, contents)
        except Exception as error:  # Of the file system: nothing that ranks wait for.
            self._failed = True
            logging.warning("ring_keras: TensorBoard's files end here: %s", error)
