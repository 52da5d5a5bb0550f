"""What users may choose about the reduction of gradients."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.join import WhyNeeded, needed_in_meetings, needed_in_updates
from ring_keras.states.local_variables import layers_of, refuse_global_clipnorm
from ring_keras.values.compression import Compression, Compressor, PowerSGD
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["ReductionOptions"]

_OPS = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM)


@dataclass(frozen=True)
class ReductionOptions:
    """See `DistributedOptimizer`, whose arguments these are.

    Equal options are equal keys, so tapes of one step after the other can share
    what their ranks have agreed on.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    process_set: ProcessSet = global_process_set
    bucket_size_bytes: int | None = None
    compression: Compression = Compression.none
    compressor: Any = None
    """Makes what is reduced of each dense gradient, and undoes it."""
    low_rank: PowerSGD | None = None
    """Whether matrices travel as two thin ones."""
    gradient_predivide_factor: float = 1.0
    sparse_as_dense: bool | None = None
    num_groups: int = 0
    groups: tuple[tuple[Hashable, ...], ...] = ()
    """Keys of variables, by `internals.variable_key`."""
    local_layers: tuple[keras.layers.Layer, ...] = ()
    local_variables: frozenset[Hashable] = field(default=frozenset())
    """Keys of further variables that are not reduced."""
    scale_local_gradients: bool = True
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    shard_state: bool = False
    fused_update: bool = True
    meets: bool = False
    """Whether it is of ranks that train apart, and what they reduce is no gradient."""

    @classmethod
    def read(
        cls,
        *,
        op: ReduceOp | str,
        process_set: ProcessSet | None,
        compression: Compression | Compressor | PowerSGD | str,
        groups: Sequence[Sequence[Any]] | None,
        local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None,
        **others: Any,
    ) -> "ReductionOptions":
        """Takes arguments as users give them.

        Raises:
            ValueError: If one is not what it must be, or contradicts another.
        """
        compressor = low_rank = None
        if isinstance(compression, PowerSGD):
            low_rank, compression = compression, Compression.none
        elif isinstance(compression, Compressor):
            compressor, compression = compression, Compression.none
        options = cls(
            op=ReduceOp(op),
            process_set=process_set or global_process_set,
            compression=Compression(compression),
            compressor=compressor,
            low_rank=low_rank,
            groups=_keys_of(groups),
            local_layers=layers_of(local_layers),
            **others,
        )
        options._check()
        return options

    @property
    def passes_factor(self) -> float:
        """Makes the sum of the accumulated gradients of their mean."""
        if self.average_aggregated_gradients:
            return 1.0
        return float(self.backward_passes_per_step)

    @property
    def needs_all(self) -> WhyNeeded | None:
        """Why no rank may be in join(); None if any may."""
        if self.shard_state:
            return needed_in_updates
        return needed_in_meetings if self.meets else None

    @property
    def keeps_local(self) -> bool:
        """Whether the gradients of some variables stay on their rank."""
        return bool(self.local_layers or self.local_variables)

    def is_local(self, source: Any) -> bool:
        """Whether the gradient of that variable does, and so its value.

        Of local layers also what is frozen now, and what changes without gradients.
        """
        if not self.keeps_local or isinstance(source, str):
            return False
        key = internals.variable_key(source)
        return key in self.local_variables or any(
            key == internals.variable_key(weight)
            for layer in self.local_layers
            for weight in layer.weights
        )

    def require_clipping_apart(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Raises if an optimizer clips by all gradients, of which some are local.

        Raises:
            ValueError: If it does.
        """
        if self.keeps_local:
            refuse_global_clipnorm(optimizer)

    def _check(self) -> None:
        if self.op not in _OPS:
            raise ValueError(
                "Gradients can be combined with op=ring_keras.Average, "
                f"ring_keras.Sum or ring_keras.Adasum. Received: op='{self.op}'"
            )
        factor = self.gradient_predivide_factor
        if factor <= 0:
            raise ValueError(
                "`gradient_predivide_factor` must be above 0. "
                f"Received: gradient_predivide_factor={factor}"
            )
        if factor != 1.0 and self.op is not ReduceOp.AVERAGE:
            raise ValueError(
                "[RK420] "
                "`gradient_predivide_factor` divides the work of an average into "
                "what comes before and what comes after the sum, so it goes with "
                "op=ring_keras.Average alone. Received: "
                f"gradient_predivide_factor={factor}, op='{self.op}'"
            )
        if self.op is ReduceOp.ADASUM and self.sparse_as_dense is False:
            raise ValueError(
                "[RK420] "
                "op=ring_keras.Adasum combines whole tensors, so sparse gradients "
                "must be made dense for it. Received: sparse_as_dense=False"
            )
        if self.op is ReduceOp.ADASUM and self.low_rank is not None:
            raise ValueError(
                "[RK420] "
                "op=ring_keras.Adasum combines whole gradients, and PowerSGD sends "
                "none: choose one of them. Received: op='adasum', "
                f"compression=Compression.powersgd(rank={self.low_rank.rank})"
            )
        if self.num_groups < 0:
            raise ValueError(
                "`num_groups` must be 0 or more. "
                f"Received: num_groups={self.num_groups}"
            )
        if self.num_groups and self.groups:
            raise ValueError(
                "[RK420] "
                "`num_groups` and `groups` both say which gradients travel "
                "together: give one of them. "
                f"Received: num_groups={self.num_groups}, "
                f"{len(self.groups)} groups"
            )
        if self.num_groups and self.bucket_size_bytes is not None:
            raise ValueError(
                "[RK420] "
                "`num_groups` fixes the number of buckets, and `bucket_size_bytes` "
                "their size: give one of them. Received: "
                f"num_groups={self.num_groups}, "
                f"bucket_size_bytes={self.bucket_size_bytes}"
            )
        if self.backward_passes_per_step < 1:
            raise ValueError(
                "`backward_passes_per_step` must be 1 or more. Received: "
                f"backward_passes_per_step={self.backward_passes_per_step}"
            )


def _keys_of(
    groups: Sequence[Sequence[Any]] | None,
) -> tuple[tuple[Hashable, ...], ...]:
    try:
        keys = tuple(
            tuple(internals.variable_key(variable) for variable in group)
            for group in groups or ()
        )
    except (AttributeError, TypeError):
        raise ValueError(
            "`groups` must be a list of lists of variables. "
            f"Received: groups={groups!r}"
        ) from None
    flat = [key for group in keys for key in group]
    if len(set(flat)) != len(flat):
        raise ValueError("`groups` must name no variable twice; one is in two groups.")
    return keys
