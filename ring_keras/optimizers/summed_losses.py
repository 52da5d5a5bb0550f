"""Losses that add up their batch, where gradients are averaged."""

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.keras_internals import calls
from ring_keras.optimizers.step_scope import current_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["refuse_summed_losses"]


def refuse_summed_losses(op: ReduceOp, ranks: list[int]) -> None:
    """Raises where the loss of the step adds up, and this op would be wrong.

    Args:
        op: How the gradients of the step are about to be combined.
        ranks: Whose; one, if they are about to be applied as they are.

    Raises:
        RingKerasError: If the model that runs its step has a compiled loss that
            adds up its batch, and it is not seen to that `op` gives the sum.
    """
    if op is ReduceOp.ADASUM:
        return  # It is no part of one process's update in any case.
    step = current_step()
    if step is not None:
        prepared = step.summed_losses_for
        if prepared is not None and prepared != (op, ranks):
            raise RingKerasError(
                "[RK603] "
                "The model's loss adds up its batch, and was prepared for gradients of "
                f"ranks {prepared[1]} that are combined by op='{prepared[0]}', as "
                "an optimizer of the model does; a tape or another optimizer has ranks "
                f"{ranks} and op='{op}'. Give all of them the same op and ranks: the "
                "default, ring_keras.Average over all ranks, trains as one process on "
                "the global batch."
            )
        return
    model = calls.calling_model()
    if op is ReduceOp.AVERAGE and model is not None and internals.summed_losses(model):
        raise RingKerasError(
            "[RK603] "
            f"A loss of model '{model.name}' adds up its batch (reduction='sum' or "
            "None), so the average of the gradients of n ranks would be n times too "
            "small. Give fit() a callback of ring_keras.callbacks, such as "
            "BroadcastGlobalVariables(), which corrects that, or use "
            "op=ring_keras.Sum."
        )
