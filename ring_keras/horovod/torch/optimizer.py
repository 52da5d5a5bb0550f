"""Optimizers whose gradients are averaged over the ranks while backward runs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ring_keras.horovod._absent import absent
from ring_keras.horovod.torch._gradients import GradientError, GradientReducer
from ring_keras.horovod.torch._reduce import Reduction
from ring_keras.horovod.torch._scalers import guard_scalers
from ring_keras.horovod.torch.compression import Compression, wire_and_own
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.reduce_op import Adasum, Average, ReduceOp, Sum

__all__ = ["DistributedOptimizer"]


class _Updates:
    """When an optimizer averages, and when it updates."""

    def __init__(self, reducer: GradientReducer) -> None:
        self.reducer = reducer
        self.skips = False

    def synchronize(self) -> None:
        self.reducer.synchronize()
        self.reducer.has_averages = True

    def run(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An update: `step(*args, **kwargs)` of averaged gradients."""
        closure = kwargs.get("closure", args[0] if args else None)
        if closure is not None:
            kwargs = kwargs | {"closure": self._averaged(closure)}
            args = args[1:]
        elif self.skips:
            if not self.reducer.is_idle:
                raise GradientError(
                    "[RK146] step() within skip_synchronize(), and gradients are "
                    "still being averaged. Call synchronize() before."
                )
        elif not self.reducer.has_averages:
            self.synchronize()
        else:
            # To average averages costs time, and would make another number of a sum.
            warnings.warn(
                "step() after synchronize() averages nothing anew; put it into `with "
                "optimizer.skip_synchronize():`.",
                stacklevel=4,
            )
        try:
            return step(*args, **kwargs)
        finally:
            self.reducer.has_averages = False

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def averaged() -> Any:
            loss = closure()
            if self.reducer.has_averages:
                return loss  # It has seen to that itself.
            if self.skips:
                raise GradientError(
                    "[RK146] step(closure) within skip_synchronize(), and the closure "
                    "computes gradients that nobody has averaged. Call "
                    "optimizer.synchronize() in it, or leave out skip_synchronize()."
                )
            self.synchronize()
            return loss

        return averaged


class _Distributed:
    """What an optimizer's class gets besides."""

    _ring_updates: _Updates

    def synchronize(self) -> None:
        """Waits until all gradients are averages, which may be clipped then.

        Raises:
            RankMismatchError: If the ranks reduce gradients of different parameters.
            PeerLostError: If a rank has died or left.
            GradientError: If a gradient was changed while it was being averaged.
        """
        self._ring_updates.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For a `step()` that follows `synchronize()`.

        Examples:
            >>> loss.backward()
            >>> optimizer.synchronize()
            >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            >>> with optimizer.skip_synchronize():
            ...     optimizer.step()
        """
        self._ring_updates.skips = True
        try:
            yield
        finally:
            self._ring_updates.skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How often backward runs before the next updates.

        Raises:
            ValueError: If it is less than 1.
            GradientError: If gradients wait for their average.
        """
        if passes < 1:
            raise ValueError(
                "[RK149] backward_passes_per_step must be 1 or more. "
                f"Received: {passes!r}"
            )
        if not self._ring_updates.reducer.is_idle:
            raise GradientError(
                "[RK146] set_backward_passes_per_step() between backward() and step(): "
                "call it after step()."
            )
        self._ring_updates.reducer.passes = passes

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As without Horovod; not between `backward()` and `step()`.

        Raises:
            GradientError: If gradients are being averaged, or wait for that.
        """
        if not self._ring_updates.reducer.is_idle:
            raise GradientError(
                "[RK146] zero_grad() after backward() and before step() or "
                "synchronize(), while gradients are being averaged. Call it before "
                "backward()."
            )
        self._ring_updates.reducer.has_averages = False
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Averages the gradients, unless that is done, and updates the parameters."""
        return self._ring_updates.run(super().step, args, kwargs)  # type: ignore[misc]

    # The class below has torch's hooks around its own.
    step.hooked = True  # type: ignore[attr-defined]


def _check_before_scaling(optimizer: Any) -> None:
    if isinstance(optimizer, _Distributed) and (
        not optimizer._ring_updates.reducer.is_idle
    ):
        raise GradientError(
            "[RK146] a GradScaler is about to change gradients that are being "
            "averaged. Call optimizer.synchronize() before, and scaler.step() within "
            "optimizer.skip_synchronize()."
        )


guard_scalers(_check_before_scaling)


def DistributedOptimizer(  # noqa: N802  Named like the class it stands for.
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes an optimizer average its gradients over the ranks.

    A gradient begins to travel as soon as backward has computed it and those that
    travel with it. `step()` waits for all, and updates. A parameter that this rank has
    not used counts with zeros.

    Args:
        optimizer: Changed in place: it gets a subclass of its class, with
            `synchronize()`, `skip_synchronize()` and `set_backward_passes_per_step()`.
        named_parameters: `model.named_parameters()`, by which errors name gradients,
            and ranks notice that their models differ.
        compression: See `allreduce`.
        backward_passes_per_step: How often backward adds to a gradient before it is
            averaged. The passes' gradients are summed.
        op: `Average` or `Sum`.
        gradient_predivide_factor: Of an average: divides the gradients before, and
            multiplies them after.
        num_groups: Into how many groups of about as many gradients they are put;
            0: by size, in bytes.
        groups: Parameters whose gradients travel together, a list for each group.
        sparse_as_dense: Whether sparse gradients are made dense. Else they are an
            error.
        process_set: The ranks that average. The optimizers of others are as before.

    Returns:
        `optimizer`.

    Raises:
        ValueError: If an argument does not fit, or the optimizer is distributed
            already, or `LBFGS`.
        AbsentError: If `op` is `Adasum`.
        NotInitializedError: If `hvd.init()` has not run.
    """
    if op == Adasum:
        absent("op=Adasum for PyTorch", "Use hvd.Average.")
    _check(optimizer, backward_passes_per_step, op, gradient_predivide_factor)
    names = _names_of(optimizer, named_parameters)
    wire_dtype, own = wire_and_own(compression)
    reducer = GradientReducer(
        optimizer,
        names,
        Reduction(
            op,
            process_set,
            1.0 / gradient_predivide_factor,
            gradient_predivide_factor,
            wire_dtype,
        ),
        compressor=own,
        passes=backward_passes_per_step,
        groups=_groups_of(optimizer, num_groups, groups),
        sparse_as_dense=sparse_as_dense,
    )
    updates = _Updates(reducer)
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (_Distributed, cls), {})
    optimizer._ring_updates = updates
    if "step" in vars(optimizer):
        # A scheduler's, which counts updates, and calls the class's as it was.
        counted = optimizer.step

        @functools.wraps(counted)
        def step(*args: Any, **kwargs: Any) -> Any:
            return updates.run(counted, args, kwargs)

        optimizer.step = step
    return optimizer


def _check(
    optimizer: Any, passes: int, op: ReduceOp, gradient_predivide_factor: float
) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            "[RK149] DistributedOptimizer of horovod.torch takes an optimizer of "
            f"PyTorch. Received: {type(optimizer).__module__}."
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "[RK149] DistributedOptimizer got an optimizer that is one already."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "[RK149] DistributedOptimizer does not take torch.optim.LBFGS: it decides "
            "by the loss of each rank's own data, so that ranks would go apart. Use "
            "another optimizer, such as Adam."
        )
    if passes < 1:
        raise ValueError(
            f"[RK149] backward_passes_per_step must be 1 or more. Received: {passes!r}"
        )
    if op not in (Average, Sum):
        raise ValueError(
            "[RK149] DistributedOptimizer takes op=hvd.Average or hvd.Sum. "
            f"Received: op={op}"
        )
    if op != Average and gradient_predivide_factor != 1.0:
        raise ValueError(
            "[RK149] gradient_predivide_factor goes with op=hvd.Average alone. "
            f"Received: op={op}, gradient_predivide_factor={gradient_predivide_factor}"
        )


def _names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Any
) -> dict[int, str]:
    """The names by the parameters' ids."""
    own = [one for group in optimizer.param_groups for one in group["params"]]
    if named_parameters is None:
        return {id(one): f"parameter {number}" for number, one in enumerate(own)}
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "[RK149] named_parameters must be pairs of a name and a parameter, such as "
            "model.named_parameters()."
        )
    given = [name for name, _ in pairs]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise ValueError(f"[RK149] named_parameters has several of the names {twice}.")
    names = {id(parameter): str(name) for name, parameter in pairs}
    missing = sum(id(one) not in names for one in own)
    if missing:
        raise ValueError(
            f"[RK149] named_parameters has no names for {missing} of the optimizer's "
            f"{len(own)} parameters."
        )
    return names


def _groups_of(
    optimizer: torch.optim.Optimizer,
    num_groups: int,
    groups: Any,
) -> list[list[torch.nn.Parameter]]:
    own = [
        one
        for group in optimizer.param_groups
        for one in group["params"]
        if one.requires_grad
    ]
    if isinstance(groups, int):  # Horovod takes a number there, too.
        num_groups, groups = groups, None
    if groups is not None and num_groups:
        raise ValueError(
            "[RK149] `groups` says which gradients travel together, and `num_groups` "
            f"into how many groups they are put: give one of the two. Received: "
            f"num_groups={num_groups}"
        )
    if groups is None:
        count = min(num_groups, len(own))
        if count <= 0:
            return []
        bounds = [len(own) * number // count for number in range(count + 1)]
        return [own[a:b] for a, b in itertools.pairwise(bounds)]
    lists = [list(group) for group in groups]
    everyone = [id(one) for group in lists for one in group]
    if len(set(everyone)) < len(everyone) or not set(everyone) <= {
        id(one) for group in optimizer.param_groups for one in group["params"]
    }:
        raise ValueError(
            "[RK149] `groups` must be lists of the optimizer's parameters, each in one "
            "list at most."
        )
    return lists
