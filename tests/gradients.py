"""What tests of gradients through jitted PyTorch functions share: the same calls in eager, jitted and in float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jitted import plans

import fusec


def leaf(*shape: int, **named: Any) -> Any:
    return torch.randn(*shape, **named).requires_grad_()


def compiled(function: Any) -> Any:
    """The function jitted; it must be compiled where it is called with gradients."""
    return fusec.jit(fallback="error")(function)


def has_backward(jitted: Any) -> bool:
    return any(plan.gradient is not None for plan in plans(jitted))


def reasons(jitted: Any) -> list[str]:
    """Why calls of a jitted function ran as written."""
    made = getattr(jitted, "_fusec", jitted)
    return list(made.dispatcher.eager_calls)


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fusec.RunsAsWritten)
        return function(*args)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple | list) else []


def copies(inputs: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
    """Leaves with memory of their own, in the layout of the inputs."""
    made = []
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        floats = x.is_floating_point() and dtype is not None
        reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) if x.numel() else 0
        flat = x.detach().as_strided((reach,), (1,)).clone().to(dtype if floats else x.dtype)
        made.append(flat.as_strided(x.shape, x.stride()).requires_grad_(x.requires_grad))
    return made


def differentiated(function: Callable[..., Any], inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    """Results, and the gradients of inputs and parameters for gradients that differ from element to element."""
    results = tensors(function(*inputs))
    led = [x for x in results if x.requires_grad]
    given = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype, device=x.device).reshape(x.shape) for x in led]
    torch.autograd.backward(led, given)
    module = getattr(function, "_module", function)
    owned = [*module.parameters()] if isinstance(module, torch.nn.Module) else []
    buffers = [*module.buffers()] if isinstance(module, torch.nn.Module) else []
    leaves = [x for x in inputs if isinstance(x, torch.Tensor)]
    return [*(x.detach() for x in results), *leaves, *buffers, *(x.grad for x in (*leaves, *owned))]


def check(function: Any, *inputs: Any, calls: int = 2) -> Any:
    """The jitted function, whose results, inputs, buffers and gradients are as near to float64's as eager's are.

    Gradients of parameters add up over the calls, and so do changes of inputs and buffers.
    """
    exact = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    eager = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    jitted = compiled(function)
    own, plain, wide = copies(inputs), copies(inputs), copies(inputs, torch.float64)
    for _ in range(calls):
        found = differentiated(jitted, own)
        wanted = differentiated(eager, plain)
        true = differentiated(exact, wide)
        assert len(found) == len(wanted)
        for one, other, best in zip(found, wanted, true, strict=True):
            near(one, other, best)
    assert has_backward(jitted)
    return jitted


def near(found: Any, wanted: Any, true: Any) -> None:
    """``found`` is at most twice as far from the truth as eager's ``wanted``, but for a few roundings."""
    assert (found is None) == (wanted is None)
    if found is None:
        return
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if not found.is_floating_point():
        assert torch.equal(found, wanted)
        return
    scale = float(true.detach().abs().max()) if true.numel() else 0.0
    error, allowed = ((x.detach().double() - true).abs().max() if x.numel() else 0.0 for x in (found, wanted))
    assert error <= 2 * allowed + 4 * scale * torch.finfo(found.dtype).eps, (error, allowed, scale)
