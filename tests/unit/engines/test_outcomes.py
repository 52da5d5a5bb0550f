"""Which rank's failure is told."""

from __future__ import annotations

import pickle

import pytest

from ring_keras.engines.outcomes import Outcome, RankFailedError, results_of


def test_results_come_by_rank() -> None:
    outcomes = [Outcome(result=pickle.dumps(value)) for value in ("a", None)]

    assert results_of(outcomes) == ["a", None]


def test_one_that_lost_a_peer_is_never_the_cause() -> None:
    outcomes = [
        Outcome(failure="raised PeerLostError: rank 1 ...", follows=True, ended_at=1),
        Outcome(failure="raised OSError: 5", where="host b, pid 7", ended_at=3),
        Outcome(failure="was killed by SIGKILL", ended_at=2, where="host c, pid 8"),
        Outcome(result=b""),
    ]

    with pytest.raises(RankFailedError) as caught:
        results_of(outcomes)

    assert caught.value.rank == 2
    assert str(caught.value) == "rank 2 (host c, pid 8) was killed by SIGKILL"


def test_the_error_travels_with_its_traceback() -> None:
    outcome = Outcome(failure="raised ValueError: x", details="Traceback ...")
    with pytest.raises(RankFailedError) as caught:
        results_of([outcome])

    error = pickle.loads(pickle.dumps(caught.value))

    assert (error.rank, error.details) == (0, "Traceback ...")
    assert str(error) == "rank 0 raised ValueError: x\n\nTraceback ..."
