"""What `ring.callbacks.TensorBoard` costs a `fit`.

    python -m benchmarks.callback [--quick]

Two ranks train the deep narrow net with and without it, in turn, many times; what is
printed is the median of the differences of a step's mean, and the quartiles. Let
nothing else run meanwhile.
"""

from __future__ import annotations

import statistics
import tempfile

import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare, started_ranks
from benchmarks.ranks.models import fit_loop

_STEPS = 200
# Batches between two looks at the ranks' numbers: two in a measurement.
_UPDATE_FREQ = 100


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    is_rank, quick = started_ranks("benchmarks.callback", __doc__ or "")
    if not is_rank:
        return
    with tempfile.TemporaryDirectory() as logs:
        spread = ring.callbacks.BroadcastGlobalVariables()
        board = ring.callbacks.TensorBoard(logs, update_freq=_UPDATE_FREQ)
        loops = {
            on: fit_loop(
                "deep",
                ring.rank(),
                distribute=ring.DistributedOptimizer,
                callbacks=[spread, board] if on else [spread],
            )
            for on in (True, False)
        }

        def mean_step_s(on: bool) -> float:
            return statistics.fmean(loops[on].run(5, _STEPS))

        pairs = 7 if quick else 40
        compare("deep narrow net, TensorBoard", mean_step_s, pairs, 1e6, "us")


if __name__ == "__main__":
    main()
