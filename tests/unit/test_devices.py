"""Which GPU a rank takes, and which choices do not go together."""

from __future__ import annotations

import pytest

from ring_keras.devices.choice import Choice, choose, disagreement


def chosen(setting="auto", gpus=4, visible=None, local_rank=0, listed=None):
    visible = range(gpus) if visible is None else visible
    return choose(
        setting, gpus, list(visible), local_rank, host="a", cuda_visible_devices=listed
    )


@pytest.mark.parametrize("local_rank", range(4))
def test_each_rank_of_a_host_takes_the_gpu_of_its_number(local_rank):
    assert chosen(local_rank=local_rank) == Choice("a", local_rank, str(local_rank))


def test_without_gpus_or_with_all_hidden_it_is_the_cpu():
    assert chosen(gpus=0) == Choice("a")
    assert chosen(visible=[]) == Choice("a")
    assert chosen("cpu") == Choice("a", asked=True)


def test_what_the_user_made_visible_is_kept():
    assert chosen(visible=[2], local_rank=0).gpu == 2
    assert chosen(visible=[2], local_rank=1).gpu == 2
    assert chosen(visible=[1, 3], local_rank=1).gpu == 3


def test_a_launcher_may_show_each_rank_one_gpu():
    ranks = [chosen(gpus=1, local_rank=n, listed=str(n + 4)) for n in range(2)]

    assert [(rank.gpu, rank.identity) for rank in ranks] == [(0, "4"), (0, "5")]
    assert disagreement(ranks) is None


def test_more_ranks_than_gpus_are_refused():
    ranks = [chosen(gpus=2, local_rank=n) for n in range(3)]

    message = disagreement(ranks)

    assert message.startswith("rank 2 on host a: it is number 3 of its host's ranks")
    assert "2 GPUs" in message and "RING_KERAS_DEVICE=cpu" in message


def test_one_gpu_for_two_ranks_is_refused():
    ranks = [chosen(gpus=1, local_rank=n, listed="GPU-8f2a") for n in range(2)]

    message = disagreement(ranks)

    assert "ranks 0 and 1 have one GPU between them: GPU GPU-8f2a of host a" in message


def test_one_gpu_for_two_ranks_is_allowed_to_who_asks_for_it():
    assert disagreement([chosen("0"), chosen("0", local_rank=1)]) is None


def test_the_same_number_on_another_host_is_another_gpu():
    assert disagreement([Choice("a", 0, "0"), Choice("b", 0, "0")]) is None


def test_so_it_is_in_a_container_of_the_same_name():
    ranks = [Choice("a", 0, "0", host_id=host_id) for host_id in ("uts:1", "uts:2")]

    assert disagreement(ranks) is None


def test_gpus_on_some_ranks_only_are_refused():
    message = disagreement([Choice("a", 0, "0"), Choice("b"), Choice("c")])

    assert "ranks [1, 2] train on the CPU (host b)" in message
    assert "ranks [0] on GPUs (host a)" in message


def test_a_gpu_that_is_not_there_is_refused():
    message = disagreement([chosen("1", gpus=1, listed="7")])

    assert "RING_KERAS_DEVICE=1, but TensorFlow lists 1 GPU" in message
    assert "CUDA_VISIBLE_DEVICES=7" in message
