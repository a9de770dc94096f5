"""Runs a captured NumPy function through the interpreter and compares it with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.frontend.capture import ArgumentSource, Capture
from fusec.frontend.numpy import capture, is_array
from fusec.frontend.structures import flatten
from fusec.ir.attributes import ExternAttributes
from fusec.ir.interpret import interpret


def run_extern(attributes: ExternAttributes, operands: Sequence[Any]) -> Sequence[Any]:
    """The library call that an extern op stands for."""
    target: Any = np
    for name in attributes.target.split(".")[1:]:
        target = getattr(target, name)
    text = attributes.arguments
    for i in reversed(range(len(operands))):
        text = text.replace(f"${i}", f"operands[{i}]")
    args, kwargs = eval(text, {"numpy": np, "operands": operands})
    result = target(*args, **kwargs)
    return list(result) if isinstance(result, tuple | list) else [result]


def run(captured: Capture, *args: Any, **kwargs: Any) -> Any:
    """What the captured function gives; in-place writes reach the arguments."""
    leaves, _ = flatten(args, kwargs, is_array)
    inputs = [leaves[s.index] if isinstance(s, ArgumentSource) else s.fetch() for s in captured.sources]
    outputs = interpret(captured.graph, inputs, extern=run_extern)
    results = []
    for value, port, made in zip(captured.graph.outputs, captured.graph.output_ports, outputs):
        if port.mutates is not None:
            inputs[port.mutates][...] = made
            results.append(inputs[port.mutates])
        elif value in captured.graph.inputs:
            results.append(inputs[captured.graph.inputs.index(value)])
        else:
            results.append(_laid_out(made, port.strides))
    return captured.rebuild(results)


def _laid_out(array: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or any(s < 0 for s in strides):
        return np.array(array, order="C")
    order = sorted(range(array.ndim), key=lambda a: -strides[a])
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def copied(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return _with_strides(x)
    if isinstance(x, list | tuple):
        return type(x)(copied(part) for part in x)
    if isinstance(x, dict):
        return {k: copied(v) for k, v in x.items()}
    return x


def _with_strides(x: Any) -> Any:
    """A copy that lies in memory as ``x`` does."""
    if x.flags.c_contiguous or x.flags.f_contiguous or not x.size:
        return x.copy(order="K")
    reach = [(n - 1) * s for n, s in zip(x.shape, x.strides)]
    low = -sum(min(r, 0) for r in reach)
    memory = np.zeros(low + sum(max(r, 0) for r in reach) + x.itemsize, np.uint8)
    made = np.ndarray(x.shape, x.dtype, memory, low, x.strides)
    made[...] = x
    return made


def same(made: Any, wanted: Any, ulps: float = 8) -> None:
    """Asserts equal types, dtypes, shapes and strides, and elements to a few units in the last place."""
    assert type(made) is type(wanted), (made, wanted)
    if isinstance(wanted, list | tuple):
        assert len(made) == len(wanted)
        for a, b in zip(made, wanted):
            same(a, b, ulps)
    elif isinstance(wanted, dict):
        assert list(made) == list(wanted)
        for key in wanted:
            same(made[key], wanted[key], ulps)
    elif isinstance(wanted, np.ndarray | np.generic):
        assert made.dtype == wanted.dtype, (made.dtype, wanted.dtype)
        assert made.shape == wanted.shape, (made.shape, wanted.shape)
        assert _order(wanted) in ((), _order(made)), (made.strides, wanted.strides)
        if wanted.dtype.kind in "fc":
            tolerance = ulps * float(np.finfo(wanted.dtype).eps)
            np.testing.assert_allclose(made, wanted, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(made, wanted)
    else:
        assert made == wanted


def _order(x: Any) -> tuple[int, ...]:
    """Strides of a dense array along the axes that have any extent; empty for what is a part of a larger array."""
    axes = [a for a in range(x.ndim) if x.shape[a] > 1]
    dense = x.transpose(sorted(range(x.ndim), key=lambda a: -x.strides[a])).flags.c_contiguous
    return tuple(x.strides[a] for a in axes) if dense and x.size else ()


def check(f: Callable[..., Any], *args: Any, ulps: float = 8, fallback: Any = "error", **kwargs: Any) -> Capture:
    """Captures ``f``, runs the graph and compares results and written arguments with NumPy's."""
    captured = capture(f, args, kwargs, fallback=fallback)
    mine, theirs = copied(args), copied(args)
    with np.errstate(all="ignore"):
        wanted = f(*theirs, **kwargs)
        made = run(captured, *mine, **kwargs)
    same(made, wanted, ulps)
    same(mine, theirs, ulps)
    assert captured.environment.holds(), captured.environment.why_changed()  # type: ignore[attr-defined]
    return captured
