"""What ranks that compute with torch are told when something is wrong."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.torch_ranks import begin, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines


def mismatch_worker():
    rank, size = begin()
    with pytest.raises(dist.DistBackendError, match="RK302"):
        dist.all_reduce(torch.ones(2 + rank))
    with pytest.raises(dist.DistBackendError, match=r"RK30\d"):
        dist.broadcast(torch.ones(2, dtype=[torch.int32, torch.float32][rank]), src=0)
    fits = torch.ones(2)
    dist.all_reduce(fits)
    assert fits.tolist() == [size, size]


def sizes_worker():
    """Totals that fit, where parts do not, are an error and no shifted numbers."""
    rank, size = begin()
    mine = torch.ones([1 if rank == 0 else 3])
    with pytest.raises(dist.DistBackendError, match="RK313"):
        dist.all_gather_into_tensor(torch.empty(2 * len(mine)), mine)
    with pytest.raises((ValueError, dist.DistBackendError)):
        dist.all_gather([torch.empty(2), torch.empty(2)], mine)
    sent, out = ([1, 3], [2, 2]) if rank == 0 else ([3, 1], [3, 1])
    # The other rank gets what it expects.
    refused = pytest.raises(ValueError, match="RK145") if rank == 0 else nullcontext()
    with refused:
        dist.all_to_all_single(torch.empty(4), torch.ones(4), out, sent)
    # As many rows, of another length.
    for columns in (2, 4):
        with pytest.raises(ValueError, match="RK145"):
            dist.all_to_all_single(torch.empty(4, columns), torch.ones(4, 3))
    group = dist.distributed_c10d._get_default_group()
    with pytest.raises((TypeError, dist.DistBackendError), match="one type"):
        inputs = [torch.ones(1, dtype=torch.float64) for _ in range(size)]
        group.alltoall([torch.ones(1) for _ in range(size)], inputs).wait()
    with pytest.raises((ValueError, dist.DistBackendError), match="rank of the group"):
        group.broadcast(torch.ones(1), 7).wait()
    # The engine knows neither: they travel as bytes.
    kinds = [torch.float8_e4m3fn, torch.float8_e5m2]
    with pytest.raises(dist.DistBackendError, match="plan differs"):
        dist.broadcast(torch.zeros(2).to(kinds[rank]), src=0)
    with pytest.raises(TypeError, match="RK142"):
        dist.all_reduce(torch.tensor([3]), dist._make_nccl_premul_sum(0.5))
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == size


def test_parts_that_do_not_fit_are_refused():
    ranks(sizes_worker, 2)


def own_error_worker():
    """What one rank may not ask for ends the others' wait as well."""
    rank, size = begin()
    outputs = [torch.empty(2) for _ in range(size)]
    refused = [torch.empty(2)] if rank == 0 else outputs
    with pytest.raises((ValueError, dist.DistBackendError), match="one for each rank"):
        dist.distributed_c10d._get_default_group().allgather(
            [refused], [torch.ones(2)]
        ).wait()
    dist.all_gather(outputs, torch.full([2], float(rank)))
    assert [one[0].item() for one in outputs] == list(range(size))


def test_an_error_of_one_rank_is_told():
    ranks(own_error_worker, 2)


def test_ranks_that_differ_go_on():
    ranks(mismatch_worker, 2)


def killed_worker():
    rank, _ = begin()
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"RK201.*rank 1") as caught:
        for _ in range(2):
            dist.all_reduce(torch.ones(4))
    return str(caught.value)


def test_a_lost_rank_is_named_on_all():
    outcomes = ranks(killed_worker, 3, check=False)
    assert [outcome.returned for outcome in outcomes] == [True, False, True]


def interrupted_worker():
    rank, _ = begin()
    if rank == 0:
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(torch.ones(1))
    else:
        dist.barrier()


def test_ctrl_c_ends_a_wait():
    first, second = ranks(interrupted_worker, 2, check=False)
    assert first.returned, first.traceback
    assert "DistBackendError" in second.exception_bases, second.message


def other_device_worker():
    begin()
    with pytest.raises(Exception, match="RK141"):
        dist.distributed_c10d._get_default_group()._get_backend(
            torch.device("cpu")
        ).allreduce([torch.ones(1, device="meta")])


def test_other_devices_are_refused():
    ranks(other_device_worker, 1)


def numbered_otherwise_worker(meeting):
    import ring_keras as ring
    import ring_keras.torch

    ring.init()
    store = dist.FileStore(meeting, 2)
    with pytest.raises(ring.RingKerasError, match="RK143"):
        dist.init_process_group("ring", store=store, rank=1 - ring.rank(), world_size=2)


def test_other_numbers_are_refused(tmp_path):
    ranks(numbered_otherwise_worker, 2, str(tmp_path / "store"))


def options_worker(options):
    with pytest.raises(Exception, match=r"RK143|pg_options"):
        begin(**options)


@pytest.mark.parametrize(
    "options",
    [{"world_size": 5, "rank": 4}, {"pg_options": object()}],
    ids=["numbers", "pg_options"],
)
def test_what_would_not_be_acted_on_is_refused(options):
    ranks(options_worker, 1, options)


@contextlib.contextmanager
def no_more_files(wanted):
    """In it this process can open none, nor a socket."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted:
        used = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
        for number in range(3, used):
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.dup2(0, number)  # Those that are free below.
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def said_by(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# What fails on one rank, by which it is, before all have met in a group.
EARLY = {"pg_options": 2, "library": 2, "numbers": 2, "store": 0}


def early_worker():
    """Each of EARLY, and a group made well after it; then in a group of some ranks."""
    import ring_keras as ring
    import ring_keras.torch

    ring.init()
    rank = ring.rank()
    major, minor = torch.__version__.split(".")[:2]
    library = f"ring_keras._torch_{major}_{minor}"
    said, totals = [], []
    for what, place in EARLY.items():
        wrong = rank == place
        options = {"init_method": "ring://"}
        if what == "pg_options" and wrong:
            options["pg_options"] = object()
        if what == "numbers" and wrong:
            options["init_method"] = "ring://?rank=7"
        if what == "library" and wrong:
            sys.modules[library] = None
        with no_more_files(wanted=what == "store" and wrong):
            said.append(
                said_by(
                    lambda options=options: dist.init_process_group("ring", **options)
                )
            )
        if what == "library" and wrong:
            del sys.modules[library]
        begin()
        total = torch.ones(1)
        dist.all_reduce(total)
        totals.append(total.item())
        dist.destroy_process_group()
    begin()
    members = {"ranks": [0, 2], "backend": "ring", "use_local_synchronization": True}
    if rank != 1:
        wrong = {"pg_options": object()} if rank else {}
        said.append(said_by(lambda: dist.new_group(**members, **wrong)))
        group = dist.new_group(**members)
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        totals.append(total.item())
    return said, totals


def test_an_error_before_all_meet_is_told():
    found = ranks(early_worker, 3, timeout_s=90)

    for number, (what, place) in enumerate(EARLY.items()):
        own = found[place][0][number]
        words = {"library": "RK144", "numbers": "RK143"}.get(what, what)
        assert own and (words in own or what == "store"), own
        cause = own.partition(": ")[2].splitlines()[0][:60]
        for rank in {0, 1, 2} - {place}:
            told = found[rank][0][number]
            assert told.startswith("RankMismatchError: [RK310]"), (what, told)
            assert f"rank {place} cannot take part" in told and cause in told
    first, last = found[0][0][-1], found[2][0][-1]
    assert "[RK143] torch's group of ranks [0, 2]: rank 2: " in first
    assert "takes no pg_options" in first and "takes no pg_options" in last
    assert [totals for _, totals in found] == [
        [3.0] * 4 + [2.0],
        [3.0] * 4,
        [3.0] * 4 + [2.0],
    ]


def forked_worker():
    """A child of fork is not in the group, and hears so at once."""
    begin()
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    child = os.fork()
    if child == 0:
        code = 1
        for async_op in (False, True):
            try:
                work = dist.all_reduce(torch.ones(1), async_op=async_op)
                if work is not None:
                    work.wait()
            except dist.DistBackendError as error:
                code = 0 if "RK102" in str(error) else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    dist.barrier()


def test_a_forked_child_is_told():
    ranks(forked_worker, 2)
