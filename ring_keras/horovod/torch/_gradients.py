"""The gradients of one optimizer, from backward to the update."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ring_keras.backends.common.buckets import buckets_of, plan_of
from ring_keras.errors import RingKerasError
from ring_keras.horovod._absent import absent
from ring_keras.horovod.torch._handles import Pending
from ring_keras.horovod.torch._reduce import Reduction, begin_allreduce
from ring_keras.horovod.torch._steps import Steps
from ring_keras.job.job import current_job

__all__ = ["GradientError", "GradientReducer"]

_Parameter: TypeAlias = torch.nn.Parameter

_reducers: weakref.WeakSet[GradientReducer] = weakref.WeakSet()


class GradientError(RingKerasError, AssertionError):
    """An optimizer was used so that its gradients would be none that were averaged."""


@dataclass(eq=False)
class _Bucket:
    """Gradients that travel together, in one step after the other.

    Attributes:
        number: Its place among the optimizer's, which is its collective's name.
        parameters: Whose gradients they are.
        ready: Of how many backward is through.
        pending: Their collective, once it has begun.
        sent: What was given to it: parameters, gradients, and how often those had been
            written to.
        contexts: A compressor's, and what it made of the gradients.
    """

    number: int
    parameters: list[_Parameter]
    ready: int = 0
    pending: Pending | None = None
    sent: list[tuple[_Parameter, torch.Tensor, int]] = field(default_factory=list)
    contexts: list[tuple[torch.Tensor, Any]] = field(default_factory=list)


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters while backward runs.

    Args:
        optimizer: Whose parameters.
        names: Of parameters, by their ids; those that come later have none.
        reduction: How gradients are reduced.
        compressor: A user's own, or None.
        passes: How often backward adds to a gradient before it is reduced.
        groups: Parameters whose gradients travel together.
        sparse_as_dense: Whether sparse gradients are made dense.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[int, str],
        reduction: Reduction,
        *,
        compressor: Any,
        passes: int,
        groups: Sequence[Sequence[_Parameter]],
        sparse_as_dense: bool,
    ) -> None:
        self.passes = passes
        self.has_averages = False
        """Whether what backward has computed last was averaged, and is there yet."""
        self._optimizer = weakref.ref(optimizer)
        self._names = names
        self._reduction = reduction
        self._compressor = compressor
        self._groups = groups
        self._sparse_as_dense = sparse_as_dense
        # With the parameters, so that nobody else gets their ids.
        self._hooks: dict[int, tuple[_Parameter, Any]] = {}
        self._job = current_job()
        self._is_replaced = False
        self._take_over()
        self._steps = Steps(reduction.process_set, is_used=True)
        _reducers.add(self)
        self._plan(self._trainable())
        weakref.finalize(self, _remove, self._hooks).atexit = False

    def _take_over(self) -> None:
        """From an optimizer that was made of the same parameters before."""
        own = {id(parameter) for parameter in self._trainable()}
        for other in list(_reducers):
            if own & other._hooks.keys():
                if not other.is_idle:
                    raise GradientError(
                        "[RK146] another DistributedOptimizer of the same parameters "
                        "is averaging their gradients. Call its step() or "
                        "synchronize() before you make this one."
                    )
                _remove(other._hooks)
                other._hooks.clear()
                other._is_replaced = True

    def _trainable(self) -> list[_Parameter]:
        optimizer = self._optimizer()
        assert optimizer is not None  # It keeps this.
        return [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def _plan(self, parameters: list[_Parameter]) -> None:
        """Forgets what was, and puts all gradients into buckets."""
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._done: dict[int, int] = {}
        known = {id(parameter) for parameter in parameters}
        kept = [[one for one in group if id(one) in known] for group in self._groups]
        self._add(buckets_of(parameters, [group for group in kept if group]))

    def _add(self, buckets: list[list[_Parameter]]) -> None:
        for parameters in buckets:
            bucket = _Bucket(len(self._buckets), parameters)
            self._buckets.append(bucket)
            for parameter in parameters:
                self._bucket_of[id(parameter)] = bucket
                self._done[id(parameter)] = 0
                if id(parameter) not in self._hooks:
                    hook = functools.partial(_passed, weakref.ref(self))
                    handle = parameter.register_post_accumulate_grad_hook(hook)
                    self._hooks[id(parameter)] = parameter, handle

    def _take_up_job(self) -> None:
        """What was under way in another job has ended with it."""
        if self._job is not current_job() and not self._is_replaced:
            self._job = current_job()
            self._steps = Steps(self._reduction.process_set)
            self.has_averages = False
            self._plan(self._trainable())

    @property
    def is_idle(self) -> bool:
        """Whether no gradient waits for its average."""
        self._take_up_job()
        return not any(self._done.values())

    def passed(self, parameter: _Parameter) -> None:
        """Backward has added to a parameter's gradient."""
        if not self._reduction.process_set.included():
            return
        self._take_up_job()
        self.has_averages = False
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None:  # It was frozen meanwhile: see `synchronize`.
            return
        if self._done[id(parameter)] >= self.passes:
            raise GradientError(
                f"[RK146] backward has computed the gradient of "
                f"{self._name_of(parameter)} more than {self.passes} times since the "
                "last step() or synchronize(), and it is being averaged. For several "
                "backward passes before a step give DistributedOptimizer "
                "backward_passes_per_step."
            )
        self._done[id(parameter)] += 1
        if self._done[id(parameter)] == self.passes:
            bucket.ready += 1
            if bucket.ready == len(bucket.parameters):
                try:
                    self._send(bucket)
                except BaseException as error:
                    self._end_step(error)
                    raise

    def synchronize(self) -> None:
        """Reduces what backward has not come to, and puts all averages in place."""
        if self._is_replaced:
            raise GradientError(
                "[RK146] another DistributedOptimizer was made of the same parameters, "
                "and averages their gradients. Use that one."
            )
        if not self._reduction.process_set.included():
            return
        self._take_up_job()
        trainable = self._trainable()
        new = [one for one in trainable if id(one) not in self._bucket_of]
        self._add(buckets_of(new, []))
        error: BaseException | None = None
        try:
            for bucket in self._buckets:
                if bucket.pending is None:
                    self._send(bucket)
        except BaseException as problem:
            error = problem
        error = self._end_step(error)
        if error is not None:
            raise error
        if new or len(trainable) < len(self._bucket_of):
            self._plan(trainable)

    def _end_step(self, error: BaseException | None) -> BaseException | None:
        """Waits for all buckets that have begun. Nothing of a step outlives it.

        Args:
            error: By which some have not.

        Returns:
            The first error, if there is one.
        """
        first = error
        if error is not None:
            self._steps.give_up(error)
        for bucket in self._buckets:
            try:
                self._put_in_place(bucket)
            except BaseException as error:
                first = first or error
            bucket.ready = 0
            bucket.pending = None
            bucket.sent = []
            bucket.contexts = []
        self._done = dict.fromkeys(self._done, 0)
        self._steps.end()
        return first

    def _send(self, bucket: _Bucket) -> None:
        pairs = list(self._gradients_of(bucket))
        tensors = [gradient for _, gradient in pairs]
        if self._compressor is not None:
            bucket.contexts = [
                self._compressor.compress(gradient.detach()) for gradient in tensors
            ]
            tensors = [tensor for tensor, _ in bucket.contexts]
        bucket.sent = [(*pair, pair[1]._version) for pair in pairs]
        names = [
            f"{self._name_of(parameter)} {gradient.dtype} {list(gradient.shape)}"
            for parameter, gradient, _ in bucket.sent
        ]
        bucket.pending = begin_allreduce(
            tensors,
            self._reduction,
            in_place=True,
            name=f"{self._steps.name()}/bucket{bucket.number}",
            function="DistributedOptimizer",
            step=self._steps.take_part() if tensors else "",
            plan=plan_of([*names, str(self._reduction.op)]),
        )

    def _gradients_of(
        self, bucket: _Bucket
    ) -> Iterator[tuple[_Parameter, torch.Tensor]]:
        for parameter in bucket.parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                # Another rank may have used the parameter.
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.layout != torch.strided:
                if not self._sparse_as_dense:
                    absent(
                        "sparse gradients for PyTorch, such as that of "
                        f"{self._name_of(parameter)}",
                        "Give DistributedOptimizer sparse_as_dense=True.",
                    )
                parameter.grad = parameter.grad.to_dense()
            yield parameter, parameter.grad

    def _put_in_place(self, bucket: _Bucket) -> None:
        if bucket.pending is None:
            return
        bucket.pending.wait()
        for parameter, gradient, version in bucket.sent:
            # A part of a tensor has its versions in common with other parts.
            is_part = gradient.nbytes < gradient.untyped_storage().nbytes()
            is_same = is_part or gradient._version == version
            if parameter.grad is not gradient or not is_same:
                raise GradientError(
                    f"[RK146] the gradient of {self._name_of(parameter)} was changed "
                    "while it was being averaged. Between backward() and step() or "
                    "synchronize() leave gradients alone: call zero_grad() before "
                    "backward(), and clip after synchronize()."
                )
        results = bucket.pending.result()
        if self._compressor is not None:
            for (_, gradient, _), result, (_, context) in zip(
                bucket.sent, results, bucket.contexts, strict=True
            ):
                gradient.detach().copy_(self._compressor.decompress(result, context))

    def _name_of(self, parameter: _Parameter) -> str:
        return self._names.get(id(parameter), "a parameter without a name")


def _passed(reducer: weakref.ref[GradientReducer], parameter: _Parameter) -> None:
    found = reducer()
    if found is not None:
        found.passed(parameter)


def _remove(hooks: dict[int, tuple[_Parameter, Any]]) -> None:
    for _, handle in hooks.values():
        handle.remove()
