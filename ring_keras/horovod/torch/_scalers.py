"""torch's scalers of losses, whose writes to gradients autograd does not see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["guard_scalers"]


def guard_scalers(check: Callable[[Any], None]) -> None:
    """Has torch's `GradScaler` call this before it touches an optimizer's gradients.

    Args:
        check: Gets the optimizer, and raises if its gradients are under way.
    """
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is None:  # Before torch 2.3 there is none for CPUs.
        return
    for name in ("unscale_", "step"):
        setattr(scaler, name, _guarded(getattr(scaler, name), check))


def _guarded(
    method: Callable[..., Any], check: Callable[[Any], None]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled():
            check(optimizer)
        return method(self, optimizer, *args, **kwargs)

    return guarded
