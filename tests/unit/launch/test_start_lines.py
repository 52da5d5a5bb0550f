"""What all ranks say when they start is shown of one."""

import pytest

from ring_keras.launch.start_lines import StartLines

SAID = [
    b"WARNING: All log messages before absl::InitializeLog() is called are written "
    b"to STDERR",
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild",
    b"I0000 00:00:17955.2970 %d cpu_feature_guard.cc:227] This TensorFlow binary",
    b"E0000 00:00:17955.2970 %d cuda_dnn.cc:8310] Unable to register cuDNN factory",
    b"I0000 00:00:17955.2970 %d service.cc:146] XLA service 0x%x initialized for CUDA",
    b"I0000 00:00:17955.2970 %d generator_dataset_op.cc:213] Memory patch applied: x",
    b"2026-01-02 10:20:30.40500%d: I tensorflow/core/util/port.cc:113] oneDNN is on",
    b"2026-01-02 10:20:30.40500%d: E external/local_xla/xla/cuda_blas.cc:1] Unable",
]


def of_rank(line, rank):
    """As that rank would print it."""
    return line % ((rank,) * line.count(b"%"))


@pytest.mark.parametrize("line", SAID)
def test_the_first_rank_s_is_shown(line):
    lines = StartLines()

    assert lines.select(1, [of_rank(line, 1)]) == [of_rank(line, 1)]
    assert lines.select(0, [b"before", of_rank(line, 0)]) == [b"before"]
    # A process that it starts says so, too.
    assert lines.select(1, [of_rank(line, 1)]) == [of_rank(line, 1)]


@pytest.mark.parametrize(
    "line",
    [
        b"loss: 0.5",
        b"W0000 00:00:17955.29 7 local_rendezvous.cc:412] Local rendezvous is aborting",
        b"W0000 00:00:17955.29 7 generator_dataset_op.cc:1] Error occurred when",
        b"W0000 00:00:17955.29 7 my_service.cc:1] out of patience",
        b"F0000 00:00:17955.29 7 cuda_driver.cc:1] Check failed",
        b"he said: I0000 00:00:17955.29 7 service.cc:1] hello",
    ],
)
def test_any_other_is_shown_of_each(line):
    lines = StartLines()

    assert [lines.select(rank, [line]) for rank in range(3)] == [[line]] * 3


def test_another_text_is_another_line():
    lines = StartLines()
    start = b"I0000 00:00:17955.29 7 gpu_device.cc:2020] Created device "

    assert lines.select(0, [start + b"GPU:0"]) == [start + b"GPU:0"]
    assert lines.select(1, [start + b"GPU:1"]) == [start + b"GPU:1"]


def test_an_error_of_all_ranks_is_logged_of_one():
    lines = StartLines()

    def logged(rank, what):
        return [
            b"W0000 00:00:17955.29%d 7 local_rendezvous.cc:412] Local rendezvous is "
            b"aborting with status: UNAVAILABLE: PeerLostError: [RK201] %s"
            % (rank, what),
            b"\t [[{{node RingKerasAllreduce}}]]",
            b"Executing non-communication op <RingKerasAllreduce> originally returned",
            b"\t [[{{node mine}}]] follows",
        ]

    assert lines.select(1, logged(1, b"rank 3")) == logged(1, b"rank 3")
    assert lines.select(0, logged(0, b"rank 3")) == []
    assert lines.select(0, [b"loss: 1", b"\t [[{{node mine}}]]"]) == [
        b"loss: 1",
        b"\t [[{{node mine}}]]",
    ]
    assert lines.select(0, logged(0, b"rank 2")) == logged(0, b"rank 2")


WARNING = [
    b"/site-packages/keras/x.py:70: UserWarning: `shuffle=True` was passed",
    b"  warnings.warn(",
]


def test_a_warning_of_python_is_shown_of_one_rank_with_its_line():
    lines = StartLines()

    assert lines.select(0, WARNING) == WARNING
    assert lines.select(1, [*WARNING, b"  indented", b"loss"]) == [
        b"  indented",
        b"loss",
    ]
    # Its two lines may come apart.
    assert lines.select(2, WARNING[:1]) == []
    assert lines.select(2, [*WARNING[1:], b"loss"]) == [b"loss"]
    # One that has no such line, and one of another rank that is not the same.
    other = WARNING[0].replace(b"shuffle", b"repeat")
    assert lines.select(1, [WARNING[0], b"loss", other]) == [b"loss", other]
    assert lines.select(0, WARNING) == WARNING
