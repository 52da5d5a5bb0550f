"""A traceback that several ranks have is one, and no line is lost."""

from pathlib import Path
from traceback import format_exc

import keras
import pytest
import tensorflow as tf
from keras.src.utils import traceback_utils

import ring_keras
from ring_keras.errors import RankMismatchError, translated
from ring_keras.launch.shared_tracebacks import SharedTracebacks

LATER = 100.0
PACKAGE_DIR = Path(ring_keras.__file__).parent


def traceback(message, name="ValueError", function="work", rank=0):
    return [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        f"    {function}()",
        f"    ^^^^^^ 0x7f{rank}",
        f"{name}: {message}",
    ]


LOST = "[RK202] rank 0 (host h, pid 7) left: raised ValueError: no; allreduce 'g' waits"


class Terminal:
    """What `size` ranks print, and what of it is shown."""

    def __init__(self, size):
        self._shared = SharedTracebacks()
        for rank in range(size):
            self._shared.add_rank(rank)
        self.shown = []
        self.now = 0.0

    def prints(self, rank, lines):
        texts = [line.encode() for line in lines]
        self._show(self._shared.feed(rank, b"[%d] " % rank, texts, self.now))

    def interrupt(self):
        self._shared.interrupted = True

    def ends(self, *ranks):
        for rank in ranks:
            self._show(self._shared.end(rank, self.now))

    def waits(self, seconds=LATER):
        """As ringrun does, until nothing is left to be done."""
        until = self.now + seconds
        while (deadline := self._shared.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self._show(self._shared.poll(self.now))
        self.now = until

    def _show(self, lines):
        self.shown += [(line.prefix + line.text).decode() for line in lines]


def of(rank, lines):
    return [f"[{rank}] {line}" for line in lines]


def test_the_same_of_all_is_shown_once_with_whose_it_is():
    terminal = Terminal(4)
    for rank in (2, 0, 3, 1):
        terminal.prints(rank, traceback(f"no, says rank {rank}", rank=rank))
    assert terminal.shown == []

    terminal.ends(0, 1, 2, 3)

    assert terminal.shown == [
        *of(0, traceback("no, says rank 0")),
        "ringrun: ranks 0-3 raised this ValueError",
    ]


def test_different_ones_are_all_shown():
    terminal = Terminal(3)
    for rank, error in enumerate([("a",), ("b",), ("a", "KeyError")]):
        terminal.prints(rank, traceback(*error))
    terminal.ends(0, 1, 2)

    assert terminal.shown == [
        *of(0, traceback("a")),
        *of(1, traceback("b")),
        *of(2, traceback("a", "KeyError")),
    ]


def test_who_fails_because_of_one_that_did_gets_a_line():
    """Whoever comes late to a collective is told of the last that has failed."""
    exited = "[RK201] rank 2 (host h, pid 9) exited with code 1"
    terminal = Terminal(3)
    terminal.prints(1, traceback(exited, "ring_keras.errors.PeerLostError"))
    terminal.prints(2, traceback(LOST, "ring_keras.errors.PeerLostError"))
    terminal.prints(0, traceback("no"))
    terminal.ends(0, 1, 2)

    assert terminal.shown == [
        *of(0, traceback("no")),
        f"ringrun: rank 2: PeerLostError because of rank 0: {LOST}",
        f"ringrun: rank 1: PeerLostError because of rank 2: {exited}",
    ]


def test_who_fails_because_of_another_gets_a_line():
    terminal = Terminal(5)
    for rank in (3, 1, 2):
        terminal.prints(rank, traceback(LOST, "ring_keras.errors.PeerLostError"))
    terminal.prints(0, traceback("no"))
    terminal.ends(0, 1, 2, 3, 4)

    assert terminal.shown == [
        *of(0, traceback("no")),
        f"ringrun: ranks 1-3: PeerLostError because of rank 0: {LOST}",
    ]


def test_of_a_rank_that_said_nothing_the_others_say_it_once():
    terminal = Terminal(3)
    killed = "[RK201] rank 0 (host h, pid 7) was killed by SIGKILL"
    for rank in (1, 2):
        terminal.prints(
            rank, traceback(killed, "PeerLostError", function=f"at_place_{rank}")
        )
    terminal.ends(0, 1, 2)

    assert terminal.shown == [
        *of(1, traceback(killed, "PeerLostError", "at_place_1")),
        "ringrun: ranks 1-2 raised this PeerLostError",
    ]


@pytest.mark.parametrize(
    "between",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_what_led_to_it_belongs_to_it(between):
    chained = [*traceback("first"), "", between, "", *traceback("second", "OSError")]
    other = [*traceback("other"), "", between, "", *traceback("second", "OSError")]
    terminal = Terminal(3)
    terminal.prints(0, chained)
    terminal.prints(1, chained)
    terminal.prints(2, other)
    terminal.ends(0, 1, 2)

    assert terminal.shown == [
        *of(0, chained),
        "ringrun: ranks 0-1 raised this OSError",
        *of(2, other),
    ]


def test_a_message_of_many_lines_is_compared_and_the_rest_is_shown():
    graph = [
        *traceback("Graph execution error:", "tensorflow.errors.UnavailableError"),
        "",
        "Detected at node G defined at (most recent call last):",
        '  File "train.py", line 3, in step',
        "RankMismatchError: [RK302] allreduce 'g': shape differs across ranks",
        "\t [[{{node G}}]] [Op:__inference_step_%d]",
        "of rank %d",
    ]
    terminal = Terminal(2)
    for rank in range(2):
        lines = [line % rank if "%" in line else line for line in graph]
        terminal.prints(rank, [*lines, f"own {rank}"])
    terminal.ends(0, 1)

    lines = [line % 0 if "%" in line else line for line in graph]
    assert terminal.shown == [
        *of(0, [*lines, "own 0"]),
        "ringrun: ranks 0-1 raised this RankMismatchError",
        "[1] own 1",
    ]


def test_a_program_that_goes_on_is_shown_after_a_moment():
    terminal = Terminal(2)
    terminal.prints(0, ["before", *traceback("caught")])
    assert terminal.shown == ["[0] before"]
    terminal.waits(0.5)
    terminal.prints(0, ["after"])
    terminal.waits(2.0)
    assert terminal.shown == of(0, ["before", *traceback("caught"), "after"])

    terminal.prints(0, ["at once"])
    assert terminal.shown[-1] == "[0] at once"


def test_the_same_again_is_shown_again_and_later_ranks_are_named():
    terminal = Terminal(3)
    terminal.prints(0, traceback("x"))
    terminal.waits()
    terminal.prints(1, traceback("x"))
    terminal.waits()
    terminal.prints(0, traceback("x"))
    terminal.waits()

    assert terminal.shown == [
        *of(0, traceback("x")),
        "ringrun: rank 1 raised ValueError too, as rank 0 did",
        *of(0, traceback("x")),
    ]


def test_a_rank_that_ends_in_the_middle_loses_nothing():
    terminal = Terminal(2)
    terminal.prints(0, traceback("x")[:3])
    terminal.prints(1, traceback("x")[:3])
    terminal.ends(0, 1)

    assert terminal.shown == [*of(0, traceback("x")[:3]), *of(1, traceback("x")[:3])]


def test_a_rank_that_stops_in_the_middle_goes_on_in_order():
    terminal = Terminal(2)
    terminal.prints(0, traceback("x")[:3])
    terminal.waits()
    terminal.prints(0, traceback("x")[3:])
    terminal.ends(0, 1)

    assert terminal.shown == of(0, traceback("x"))


def test_what_is_logged_between_is_no_part_of_it_but_shown():
    noise = "W0000 00:00:17955.297%d    7 local_rendezvous.cc:412] x"
    terminal = Terminal(2)
    for rank in range(2):
        lines = traceback("x")
        terminal.prints(rank, [*lines[:2], noise % rank, *lines[2:]])
    terminal.ends(0, 1)

    lines = traceback("x")
    assert terminal.shown == [
        *of(0, [*lines[:2], noise % 0, *lines[2:]]),
        "ringrun: ranks 0-1 raised this ValueError",
        f"[1] {noise % 1}",
    ]


def test_two_of_one_rank_stay_in_order():
    terminal = Terminal(2)
    for rank in range(2):
        terminal.prints(rank, [*traceback("a"), *traceback("b")])
    terminal.ends(0, 1)

    assert terminal.shown == [
        *of(0, traceback("a")),
        "ringrun: ranks 0-1 raised this ValueError",
        *of(0, traceback("b")),
        "ringrun: ranks 0-1 raised this ValueError",
    ]


def test_it_keeps_back_no_more_than_it_should():
    terminal = Terminal(2)
    lines = [*traceback("x"), *["y" * 1000] * 1000]
    for start in range(0, len(lines), 100):
        terminal.prints(0, lines[start : start + 100])
    terminal.ends(0)

    assert terminal.shown == of(0, lines)


def test_a_rank_alone_is_not_kept_waiting():
    terminal = Terminal(1)
    terminal.prints(0, traceback("x"))

    assert terminal.shown == of(0, traceback("x"))


OUR_FRAMES = [
    f'  File "{PACKAGE_DIR}/data/shard.py", line 99, in shard',
    "    part = _split(data)",
    "           ^^^^^^^^^^^^",
    f'  File "{PACKAGE_DIR}/data/shard.py", line 150, in _split',
    "    raise ValueError(",
]


@pytest.mark.parametrize("is_coded", [True, False])
def test_our_own_frames_are_left_out_where_a_code_says_more(is_coded):
    terminal = Terminal(2)
    printed = traceback("[RK510] batched" if is_coded else "a fault of ours")
    logged = "W0000 00:00:17955.29 7 x.cc:1] patience"
    printed[-1:-1] = [*OUR_FRAMES, logged]
    for rank in range(2):
        terminal.prints(rank, printed)

    terminal.ends(0, 1)

    told = [line for line in printed if not is_coded or line not in OUR_FRAMES]
    assert terminal.shown[: len(told)] == of(0, told)


def test_ranks_that_differ_in_our_own_frames_alone_have_one_error():
    terminal = Terminal(2)
    for rank in range(2):
        printed = traceback("[RK510] batched")
        printed[-1:-1] = OUR_FRAMES[: -2 if rank else None]
        terminal.prints(rank, printed)

    terminal.ends(0, 1)

    assert terminal.shown == [
        *of(0, traceback("[RK510] batched")),
        "ringrun: ranks 0-1 raised this ValueError",
    ]


def test_ranks_that_differ_in_frames_that_are_shown_have_two_errors():
    terminal = Terminal(2)
    printed = [traceback("a fault of ours"), traceback("a fault of ours")]
    printed[0][-1:-1] = OUR_FRAMES
    for rank in range(2):
        terminal.prints(rank, printed[rank])

    terminal.ends(0, 1)

    assert terminal.shown == of(0, printed[0]) + of(1, printed[1])


@pytest.mark.parametrize("filters", [True, False])
def test_our_own_frames_stay_where_keras_shows_its_own(filters):
    """Which a user chooses by `keras.config.disable_traceback_filtering()`."""

    @traceback_utils.filter_traceback
    def fit():
        raise ValueError("[RK510] batched")

    was_on = keras.config.is_traceback_filtering_enabled()
    switch = keras.config.enable_traceback_filtering
    (switch if filters else keras.config.disable_traceback_filtering)()
    try:
        fit()
    except ValueError:
        printed = format_exc().splitlines()
    finally:
        (switch if was_on else keras.config.disable_traceback_filtering)()
    printed[-1:-1] = OUR_FRAMES
    terminal = Terminal(2)
    for rank in range(2):
        terminal.prints(rank, printed)

    terminal.ends(0, 1)

    told = [line for line in printed if not filters or line not in OUR_FRAMES]
    assert terminal.shown[: len(told)] == of(0, told)


OP_PY = """
@translated()
def allreduce(error):
    raise error
"""


def shown_of_an_op(message):
    """What is shown of an error that an op of ours has translated."""
    error = tf.errors.FailedPreconditionError(None, None, message)
    names = {"translated": translated}
    exec(compile(OP_PY, str(PACKAGE_DIR / "ops" / "allreduce.py"), "exec"), names)
    try:
        names["allreduce"](error)
    except RankMismatchError:
        printed = format_exc().splitlines()
    terminal = Terminal(2)
    for rank in range(2):
        terminal.prints(rank, printed)
    terminal.ends(0, 1)
    return [line.removeprefix("[0] ") for line in terminal.shown]


def test_an_ops_error_is_told_of_once():
    shown = shown_of_an_op("RankMismatchError: [RK302] 'x' differs [Op:Allreduce] ")
    frame = next(
        line for line in shown if line.startswith(f'  File "{__file__}", line')
    )
    assert [line for line in shown if line.strip(" ^~")] == [
        "Traceback (most recent call last):",
        frame,
        '    names["allreduce"](error)',
        "ring_keras.errors.RankMismatchError: [RK302] 'x' differs",
        "ringrun: ranks 0-1 raised this RankMismatchError",
    ]


def test_what_tensorflow_says_more_of_an_ops_error_is_shown():
    text = "RankMismatchError: [RK302] 'x' differs"
    shown = shown_of_an_op(f"{text}\n\nDetected at node 'x' defined at train.py:7")
    assert shown.count("Traceback (most recent call last):") == 2
    assert (
        f"tensorflow.python.framework.errors_impl.FailedPreconditionError: {text}"
        in (shown)
    )
    assert not any("/contextlib.py" in line for line in shown)


def test_a_traceback_of_nothing_but_our_own_frames_is_shown():
    terminal = Terminal(2)
    printed = [traceback("")[0], *OUR_FRAMES, "ValueError: [RK510] batched"]
    for rank in range(2):
        terminal.prints(rank, printed)

    terminal.ends(0, 1)

    assert terminal.shown[:-1] == of(0, printed)


def interrupted(function="work", line=3):
    lines = traceback("", "KeyboardInterrupt", function)
    lines[1] = f'  File "train.py", line {line}, in <module>'
    return [
        *lines[:3],
        '  File "/v/lib/python3.11/site-packages/keras/src/trainer.py", line 9, in fit',
        "    step()",
        "KeyboardInterrupt",
    ]


@pytest.mark.parametrize("size", [1, 2])
def test_after_an_interrupt_a_line_says_where_the_ranks_were(size):
    terminal = Terminal(size)
    terminal.interrupt()
    for rank in range(size):
        terminal.prints(rank, [*interrupted(), "cleaned up"])
        terminal.ends(rank)

    who = "rank 0" if size == 1 else "ranks 0-1"
    assert terminal.shown == [
        f"ringrun: interrupted: {who} in train.py, line 3",
        *(f"[{rank}] cleaned up" for rank in range(size)),
    ]


def test_after_an_interrupt_other_places_and_errors_are_shown():
    terminal = Terminal(4)
    terminal.interrupt()
    terminal.prints(0, interrupted())
    terminal.prints(1, interrupted(line=8))
    left = LOST.replace("ValueError: no", "KeyboardInterrupt")
    terminal.prints(2, traceback(left, "PeerLostError"))
    between = "During handling of the above exception, another exception occurred:"
    own = [*interrupted(), "", between, "", *traceback("cannot save", "OSError")]
    terminal.prints(3, own)
    terminal.ends(0, 1, 2, 3)

    assert terminal.shown == [
        "ringrun: interrupted: rank 0 in train.py, line 3; rank 1 in train.py, line 8",
        *of(3, own),
    ]


def test_without_an_interrupt_it_is_an_error_like_others():
    terminal = Terminal(2)
    terminal.prints(0, interrupted())
    terminal.ends(0, 1)

    assert terminal.shown == of(0, interrupted())
