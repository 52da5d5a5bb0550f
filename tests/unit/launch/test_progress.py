"""How fast, by ranks' reports."""

from ring_keras.launch.progress import Progress


def report(
    rank,
    steps,
    *,
    wait_s=0.0,
    waited_for_s=None,
    waits_for_s=None,
    examples=0,
    process_set=0,
):
    return {
        "rank": rank,
        "steps": steps,
        "process_set": process_set,
        "examples": examples,
        "duration_s": 0.5 * steps,
        "input_s": 0.0,
        "compute_s": 0.5 * steps - wait_s,
        "wait_s": wait_s,
        "exposed_s": 0.0,
        "bytes": 0,
        "waited_for_s": waited_for_s or {},
        "waits_for_s": waits_for_s or {},
    }


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    progress = Progress(2, "ab".__getitem__, clock)
    for second in range(20):
        clock.now = 100.0 + second
        # Twice as fast in the end.
        steps = 2 * second + max(0, second - 10) * 2
        for rank in range(2):
            progress.take(report(rank, steps, examples=16 * steps))

    assert progress.line() == "2 ranks | 4 steps/s | 128 examples/s | 0% waiting"


def test_a_job_that_stands_still_gets_slower() -> None:
    clock = Clock()
    progress = Progress(1, str, clock)
    progress.take(report(0, 0))
    clock.now += 1
    progress.take(report(0, 10))
    assert progress.line().startswith("1 rank | 10 steps/s")

    clock.now += 9

    assert progress.line().startswith("1 rank | 1 steps/s")


def test_the_rank_that_is_waited_for_most_is_the_slowest() -> None:
    clock = Clock()
    progress = Progress(3, "abc".__getitem__, clock)
    for steps in (0, 10):
        clock.now += 5
        for rank in range(3):
            waited = {} if rank == 1 else {"1": 0.1 * steps, "2": 0.001 * steps}
            progress.take(report(rank, steps, wait_s=0.1 * steps, waited_for_s=waited))

    assert progress.line() == (
        "3 ranks | 2 steps/s | slowest: rank 1, the others wait 100 ms a step | "
        "rank 1 is on b | 20% waiting"
    )


def held_up(size, waits_for_s, host_of=lambda _rank: "a", *, goes_on=False):
    """What a job says of which each rank waits for others for so long."""
    clock = Clock()
    progress = Progress(size, host_of, clock)
    for second in range(6):
        clock.now += 1
        steps = second if goes_on else min(second, 2)
        for rank, waits in enumerate(waits_for_s):
            # Until then, the others have waited for rank 0.
            waited = {"0": 0.1 * steps} if rank else {}
            one = report(rank, steps, waited_for_s=waited, waits_for_s=waits)
            progress.take(one)
    return progress.line()


def test_who_is_waited_for_comes_first() -> None:
    line = held_up(2, [{"1": 12.3}, {}])

    assert line.startswith("waiting for rank 1: 12 s | 2 ranks | 0.4 steps/s")
    assert "slowest" not in line


def test_who_is_held_up_too_is_not_the_cause() -> None:
    line = held_up(3, [{"1": 9.0, "2": 4.0}, {"2": 8.0}, {}], "abc".__getitem__)

    assert line.startswith("waiting for rank 2: 8 s | rank 2 is on c | 3 ranks")


def test_several_may_be_waited_for() -> None:
    line = held_up(7, [{str(rank): 5.0 for rank in range(1, 7)}])

    assert line.startswith("waiting for ranks 1, 2, 3 and 3 more: 5 s | 7 ranks")


def test_ranks_may_wait_for_each_other() -> None:
    line = held_up(2, [{"1": 5.0}, {"0": 4.0}])

    assert line.startswith("ranks 0 and 1 wait for each other: 5 s | 2 ranks")


def test_a_short_wait_holds_nobody_up() -> None:
    line = held_up(2, [{"1": 0.5}, {}])

    assert line.startswith("2 ranks | 0.4 steps/s | slowest")


def test_who_takes_steps_waits_in_the_background_only() -> None:
    line = held_up(2, [{"1": 9.0}, {}], goes_on=True)

    assert line.startswith("2 ranks | 1 steps/s | slowest")


def test_a_rank_that_is_waited_for_before_the_first_step_is_named() -> None:
    progress = Progress(2, str)
    progress.take(report(0, 0, waits_for_s={"1": 4.0}))

    assert progress.line().startswith("waiting for rank 1: 4 s | rank 1 is on 1 |")


def test_a_process_set_has_a_slowest_rank_of_its_own() -> None:
    clock = Clock()
    progress = Progress(4, "abcd".__getitem__, clock)
    for seconds in (0, 10):
        clock.now += 5
        for rank in range(4):
            # Two ranks train together, and two others ten times as fast.
            steps = seconds if rank < 2 else 10 * seconds
            waited = {"1": 0.1 * steps} if rank == 0 else {}
            progress.take(
                report(rank, steps, waited_for_s=waited, process_set=1 + rank // 2)
            )

    assert "| slowest: rank 1, the others wait 100 ms a step |" in progress.line()


def test_rates_do_not_fall_between_two_reports() -> None:
    clock = Clock()
    progress = Progress(1, str, clock)
    for second in range(10):
        clock.now = 100.0 + second
        progress.take(report(0, 10 * second))

    clock.now += 0.95

    assert progress.line().startswith("1 rank | 10 steps/s")


def test_a_rank_that_is_new_among_those_waited_for_most_was_so_before() -> None:
    clock = Clock()
    progress = Progress(3, "abc".__getitem__, clock)
    for steps, waited in ((1000, {"1": 50.0}), (1010, {"2": 50.1})):
        clock.now += 5
        progress.take(report(0, steps, waited_for_s=waited))

    assert "slowest" not in progress.line()


def test_nobody_is_slow_who_is_hardly_waited_for() -> None:
    clock = Clock()
    progress = Progress(2, "ab".__getitem__, clock)
    for steps in (0, 10):
        clock.now += 5
        progress.take(report(0, steps, waited_for_s={"1": 0.005 * steps}))
        progress.take(report(1, steps))

    assert "slowest" not in progress.line()


def test_ranks_that_are_late_by_turns_are_not_slow() -> None:
    clock = Clock()
    progress = Progress(2, "ab".__getitem__, clock)
    for steps in (0, 10):
        clock.now += 5
        progress.take(report(0, steps, waited_for_s={"1": 0.12 * steps}))
        progress.take(report(1, steps, waited_for_s={"0": 0.1 * steps}))

    assert "slowest" not in progress.line()


def test_another_membership_begins_anew() -> None:
    clock = Clock()
    progress = Progress(1, str, clock)
    for steps in (0, 100, 1, 3):
        clock.now += 1
        progress.take(report(0, steps))

    assert progress.line().startswith("1 rank | 2 steps/s")


def test_there_is_nothing_to_say_before_the_first_step() -> None:
    progress = Progress(2, str)
    assert progress.line() == ""
    progress.take(report(0, 0))
    progress.take(report(5, 9))  # No such rank.
    assert progress.line() == ""
