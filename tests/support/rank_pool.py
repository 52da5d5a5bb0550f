"""Warm ranks that run one worker after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.job import Environment
from support.rank_processes import RankProcesses, report

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0


class RankPool:
    """`size` processes that have TensorFlow imported and `init()` done.

    A worker must leave ring_keras as it found it: communicators removed,
    nothing pending, still initialized. After any failure the processes are
    killed, and the next run gets new ones.
    """

    def __init__(
        self,
        size: int,
        env: Environment | None = None,
        *,
        before_run: Callable[[RankPool], None] | None = None,
    ) -> None:
        self.size = size
        self._env = env
        self._before_run = before_run
        self._ranks: RankProcesses | None = None
        self._tests: list[str] = []  # That these processes have run.

    @property
    def alive(self) -> bool:
        """Whether it has processes now."""
        return self._ranks is not None

    def run(
        self,
        worker: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout_s: float = 120,
    ) -> list[Any]:
        """Runs `worker` on every rank; returns what each returned, by rank.

        Args:
            worker: Module-level function, or a `functools.partial` of one.
            args: Positional arguments, the same on every rank.
            kwargs: Keyword arguments.
            timeout_s: Time for this run; starting the pool does not count.

        Raises:
            AssertionError: If a rank raised, died or was late.
        """
        if self._before_run is not None:
            self._before_run(self)
        if self._ranks is None:
            self._ranks = RankProcesses(self.size, env=self._env, warm=True)
            self._tests = []
        self._tests.append(os.environ.get("PYTEST_CURRENT_TEST", "no test"))
        try:
            self._ranks.wait_until_ready(START_TIMEOUT_S)
            outcomes = self._ranks.run(
                worker,
                args,
                kwargs,
                timeout_s=timeout_s,
                last=False,
                hurry_after_failure=True,
            )
        except BaseException:
            self.kill()
            raise
        if not all(outcome.ok for outcome in outcomes):
            self.kill()
            raise AssertionError(
                report(outcomes, f"{worker!r} on a pool of {self.size} ranks")
            )
        return [outcome.result for outcome in outcomes]

    def kill(self) -> None:
        """Ends the processes at once."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def close(self) -> None:
        """Lets the processes exit by themselves, and checks that they can.

        Raises:
            AssertionError: If one did not end with exit code 0.
        """
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return
        try:
            outcomes = ranks.end(END_TIMEOUT_S)
        finally:
            ranks.close()
        bad = [o for o in outcomes if o.returncode != 0 or o.timed_out]
        if bad:
            raise AssertionError(
                report(
                    bad,
                    f"a pool of {self.size} ranks did not exit cleanly. It had run, "
                    "the last one last:\n  " + "\n  ".join(dict.fromkeys(self._tests)),
                )
            )


class RankPools:
    """The session's pools: one per size and environment.

    Args:
        max_processes: Beyond this many, the processes of the pool unused for
            longest end. It starts new ones when it is used again.
    """

    def __init__(self, max_processes: int = 12) -> None:
        self._max_processes = max_processes
        # The one used last is last.
        self._pools: dict[tuple[int, tuple[tuple[str, str], ...]], RankPool] = {}
        self._errors: list[str] = []

    def __call__(self, size: int, env: Mapping[str, str] | None = None) -> RankPool:
        """The pool of `size` ranks whose environment has `env` besides."""
        key = (size, tuple(sorted((env or {}).items())))
        if key not in self._pools:

            def make_room(_: RankPool) -> None:
                self._pools[key] = self._pools.pop(key)
                self._make_room(key)

            self._pools[key] = RankPool(size, dict(env or {}), before_run=make_room)
        return self._pools[key]

    def close(self) -> list[str]:
        """Ends every pool; returns what those say that did not end cleanly."""
        for pool in self._pools.values():
            self._close(pool)
        return self._errors

    def _make_room(self, key: tuple[int, tuple[tuple[str, str], ...]]) -> None:
        count = key[0]
        for other, pool in reversed(list(self._pools.items())):
            if other != key and pool.alive:
                count += pool.size
                if count > self._max_processes:
                    self._close(pool)

    def _close(self, pool: RankPool) -> None:
        try:
            pool.close()
        except AssertionError as error:
            # Not a failure of the test that happens to run now.
            self._errors.append(str(error))
