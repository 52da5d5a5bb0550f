"""One rank of a job that runs the tests one after the other."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import ring_keras as ring
import ring_keras.torch
from c10d_share.torchs_tests import load

_LIMIT = datetime.timedelta(seconds=20)


def _said(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


class _Barrier:
    """In the store of the first default group, as PyTorch's is in files."""

    def __init__(self) -> None:
        self.count = 0
        self.store = _get_default_store()

    def __call__(self, *_: Any, **__: Any) -> None:
        self.count += 1
        self.store.add(f"share/{self.count}", 1)
        end = time.monotonic() + _LIMIT.total_seconds()
        while self.store.add(f"share/{self.count}", 0) < ring.size():
            if time.monotonic() > end:
                raise TimeoutError("the test's barrier")
            time.sleep(0.002)


def _outcome(case: type[unittest.TestCase], name: str, skips: set[int]) -> list[str]:
    """On this rank."""
    try:
        test: Any = case(name)
        test.rank = ring.rank()
        test._barrier = _Barrier()
        torch.manual_seed(1234)
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest as skipped:
        return ["skipped", str(skipped)]
    except SystemExit as ended:
        is_skip = ended.code in skips
        return ["skipped" if is_skip else "failed", f"exit status {ended.code}"]
    except BaseException as error:  # PyTorch's own end a rank, too.
        return ["failed", _said(error)]
    return ["passed", ""]


def _run(case: type[unittest.TestCase], name: str, skips: set[int]) -> list[str]:
    backend = os.environ["C10D_SHARE_BACKEND"]
    dist.init_process_group(backend, init_method="ring://", timeout=_LIMIT)
    everyones = ring.allgather_object(_outcome(case, name, skips))
    # Some tests have done so.
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    for outcome in ("failed", "passed", "skipped"):
        for rank, (theirs, why) in enumerate(everyones):
            if theirs == outcome:
                return [outcome, f"rank {rank}: {why}" if outcome == "failed" else why]
    raise AssertionError(everyones)


def main() -> None:
    """Runs what is not done."""
    ring.init()
    torch.set_num_threads(1)
    directory = Path(os.environ["C10D_SHARE_DIRECTORY"])
    own = directory / "of_tests"
    if ring.rank() == 0:
        for part in ("barrier", "test_dir", "init_dir"):
            (own / part).mkdir(parents=True, exist_ok=True)
    ring.allgather_object(None)
    os.environ |= {
        "TEMP_DIR": str(own),
        "WORLD_SIZE": str(ring.size()),
        "RANK": str(ring.rank()),
        "INIT_METHOD": "ring://",
        # Of MPI alone some tests of groups do with fewer ranks than 8.
        "BACKEND": "mpi",
    }
    tests = load(os.environ["C10D_SHARE_BACKEND"])

    class Case(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        """All of them."""

    done = set(json.loads(os.environ["C10D_SHARE_DONE"]))
    only = os.environ["C10D_SHARE_ONLY"]
    skips = {one.exit_code for one in tests.TEST_SKIPS.values()}
    names = [n for n in unittest.TestLoader().getTestCaseNames(Case) if only in n]
    with (directory / "results").open("a") as book:
        if ring.rank() == 0:
            print(json.dumps({"tests": len(names)}), file=book, flush=True)
        for name in names:
            if name in done:
                continue
            if ring.rank() == 0:
                print(json.dumps({"test": name}), file=book, flush=True)
            result = _run(Case, name, skips)
            if ring.rank() == 0:
                line = {"test": name, "result": result}
                print(json.dumps(line), file=book, flush=True)


if __name__ == "__main__":
    main()
