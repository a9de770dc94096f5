# SPDX-License-Identifier: Apache-2.0
"""``associative_scan`` is captured as running sums, products, extremes, log-sum-exps and recurrences.

PyTorch runs its function that combines two elements on slices of slices, log2(length) times, or compiles it. What the
function does to two elements is traced once; a scan that is none of ours runs as PyTorch's on slices.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fusec.frontend.torch_operators import define

_MODULE = "torch._higher_order_ops.associative_scan"
_lock = threading.Lock()
_capturing = threading.local()
_captures = 0
_as_written: dict[str, Any] = {}

_aten = torch.ops.aten
_SCANS: dict[Any, Callable[[Tensor], Tensor]] = {
    _aten.add.Tensor: lambda x: torch.cumsum(x, 0, dtype=x.dtype),
    _aten.mul.Tensor: lambda x: torch.cumprod(x, 0, dtype=x.dtype),
    _aten.maximum.default: lambda x: torch.cummax(x, 0).values,
    _aten.minimum.default: lambda x: torch.cummin(x, 0).values,
    _aten.logaddexp.default: lambda x: torch.logcumsumexp(x, 0),
}
"""What a call combines two elements by, and the scan along the first axis."""


@contextmanager
def scans_as_ops(*, recurrences: bool) -> Iterator[None]:
    """Runs the body with ``associative_scan`` as what it computes, in this thread. recurrences: those, too, which have
    no derivative here."""
    global _captures
    module = sys.modules.get(_MODULE)
    if module is None:  # nobody calls it
        yield
        return
    with _lock:
        if not _captures:
            _replace(module)
        _captures += 1
    outer = getattr(_capturing, "recurrences", None)
    _capturing.recurrences = recurrences
    try:
        yield
    finally:
        _capturing.recurrences = outer
        with _lock:
            _captures -= 1
            if not _captures:
                for name, value in _as_written.items():
                    setattr(module, name, value)


def _replace(module: Any) -> None:
    for name in ("generic_associative_scan", "_maybe_compile_and_run_fn"):
        _as_written[name] = getattr(module, name)
    module.generic_associative_scan = _generic
    module._maybe_compile_and_run_fn = _pointwise


def _generic(combine: Callable[..., Any], leaves: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
    """Along the first axis, of a function of two slices of the leaves each."""
    found = None if args or kwargs.get("additional_inputs") or kwargs.get("dim") else running(combine, leaves)
    return _as_written["generic_associative_scan"](combine, leaves, *args, **kwargs) if found is None else found


def _pointwise(function: Any, combine: Callable[..., Any], leaves: Sequence[Tensor]) -> Any:
    """The same where PyTorch would compile the function, which works on single elements alike; what it then gives has
    the structure of what the function gives."""
    combined = _combined(combine, leaves) if getattr(_capturing, "recurrences", None) is not None else None
    if combined is None:
        return _as_written["_maybe_compile_and_run_fn"](function, combine, leaves)
    return tree_unflatten(_generic(combine, leaves), combined.structure)


def running(combine: Callable[..., Any], leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """The scan of ``leaves`` along their first axis; None where this thread captures nothing, or what combines two
    elements is no op of ours."""
    recurrences, first = getattr(_capturing, "recurrences", None), leaves[0]
    alike = all(x.shape == first.shape and x.dtype is first.dtype and x.device == first.device for x in leaves)
    if recurrences is None or not alike or first.dtype is torch.bool or first.is_complex() or first.shape[0] < 2:
        return None
    combined = _combined(combine, leaves)
    if combined is None:
        return None
    leaves = [x.contiguous() for x in leaves]  # so do results lie that slices are put together to
    made: list[Tensor] = []
    for number in range(len(leaves)):
        scan, factor = combined.scan(number), combined.factor(number) if recurrences else None
        if scan is not None:
            made.append(scan(leaves[number]))
        elif factor is not None:
            made.append(_operators()[0].recurrence(leaves[number], leaves[factor]))
        else:
            return None
    return made


@dataclass(frozen=True)
class _Combined:
    """What is made of an element of each leaf, on the left, and of another one, on the right."""

    left: Sequence[fx.Node]
    right: Sequence[fx.Node]
    results: Sequence[Any]
    structure: TreeSpec

    def scan(self, number: int) -> Callable[[Tensor], Tensor] | None:
        """The scan of a leaf whose two elements are combined by one op."""
        a, b = self.left[number], self.right[number]
        return next((scan for op, scan in _SCANS.items() if _is(self.results[number], op, a, b)), None)

    def factor(self, number: int) -> int | None:
        """The number of the leaf f whose elements are multiplied, where this one's give ``f_right * left + right``."""
        node, own, other = self.results[number], self.left[number], self.right[number]
        for k, (a, b) in enumerate(zip(self.left, self.right, strict=True)):
            if k == number or not _is(self.results[k], _aten.mul.Tensor, a, b):
                continue
            products = [x for x in node.args if _is(x, _aten.mul.Tensor, own, b)] if isinstance(node, fx.Node) else []
            if any(_is(node, _aten.add.Tensor, x, other) for x in products):
                return k
        return None


def _combined(combine: Callable[..., Any], leaves: Sequence[Tensor]) -> _Combined | None:
    """What is done to two slices of each leaf; None for a function that reads other tensors, or fails."""
    slices = [torch.empty((2, *x.shape[1:]), dtype=x.dtype, device="meta") for x in (*leaves, *leaves)]
    structure: list[TreeSpec] = []

    def flat(*given: Any) -> list[Any]:
        results, found = tree_flatten(combine(*given))
        structure.append(found)
        return results

    try:
        with _disable_current_modes():
            traced = _trace(flat, *slices)
    except Exception:
        return None
    (*given, output) = (n for n in traced.graph.nodes if n.op in ("placeholder", "output"))
    (results,), count = output.args, len(leaves)
    if len(given) != 2 * count or not isinstance(results, tuple | list) or len(results) != count:
        return None
    return _Combined(given[:count], given[count:], results, structure[-1])


def _trace(function: Callable[..., Any], *slices: Tensor) -> fx.GraphModule:
    made: fx.GraphModule = make_fx(function)(*slices)
    return made


def prepare_scans() -> None:
    """Has PyTorch import what the first ``associative_scan`` imports, before a capture, in which no function may."""
    if _MODULE in sys.modules:
        _prepared()


@cache
def _prepared() -> None:
    _trace(torch.vmap(torch.add), *(torch.empty(2, 2, device="meta") for _ in range(2)))


def _is(node: Any, op: Any, a: Any, b: Any) -> bool:
    """Whether a node is a commutative op of two others, and no more."""
    return isinstance(node, fx.Node) and node.target is op and node.args in ((a, b), (b, a)) and not node.kwargs


@cache
def _operators() -> Any:
    """Makes the recurrence known to PyTorch, once."""
    return define(("recurrence(Tensor x, Tensor factor) -> Tensor", _recurrence, lambda x, factor: torch.empty_like(x)))


def _recurrence(x: Tensor, factor: Tensor) -> Tensor:
    """``y[0] = x[0], y[t] = factor[t] * y[t - 1] + x[t]``"""
    found = x.clone()
    for t in range(1, x.shape[0]):
        found[t] += factor[t] * found[t - 1]
    return found
