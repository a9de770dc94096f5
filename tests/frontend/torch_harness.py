"""Runs a captured torch function through the NumPy interpreter and compares it with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from fusec.frontend.capture import ArgumentSource, Capture
from fusec.frontend.torch import capture, flatten
from fusec.ir.attributes import ExternAttributes
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.ir.verify import verify
from fusec.runtime.library import run_extern


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def run_library(attributes: ExternAttributes, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [to_numpy(t) for t in run_extern(attributes, [to_torch(a) for a in operands])]


def fetch(captured: Capture, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    leaves, _ = flatten(args, kwargs)
    return [leaves[s.index] if isinstance(s, ArgumentSource) else s.fetch() for s in captured.sources]


def run(captured: Capture, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
    """The user's result by the interpreter; mutated inputs are written back."""
    inputs = fetch(captured, args, kwargs or {})
    outputs = [to_torch(a) for a in interpret(captured.graph, [to_numpy(t) for t in inputs], extern=run_library)]
    for position, port in enumerate(captured.graph.output_ports):
        if port.mutates is not None:
            with torch.no_grad():
                inputs[port.mutates].copy_(outputs[position])
            outputs[position] = inputs[port.mutates]
    return captured.rebuild(outputs)


def check(
    f: Callable[..., Any], *args: Any, ulps: float = 16, extern: int = 0, fallback: str = "eager", **kwargs: Any
) -> Capture:
    """Captures ``f``, interprets it and compares values, dtypes, strides and changed arguments with eager."""
    theirs = copy.deepcopy((args, kwargs))
    untouched = copy.deepcopy((args, kwargs))
    with torch.no_grad():
        captured = capture(f, args, kwargs, fallback=fallback)  # type: ignore[arg-type]
    assert_same(untouched, (args, kwargs), 0)
    verify(captured.graph)
    assert str(parse(str(captured.graph))) == str(captured.graph)
    names = [v.name for op in captured.graph.ops for v in op.results]
    assert not [n for n in names if n.startswith(".")], names
    externs = [op for op in captured.graph.ops if op.name == "extern"]
    assert len(externs) == extern, (str(captured.graph), captured.notes)
    got = run(captured, args, kwargs)
    with torch.no_grad():
        expected = f(*theirs[0], **theirs[1])
    assert_same(expected, got, ulps)
    assert_same(theirs, (args, kwargs), ulps)
    _check_strides(captured, expected)
    return captured


def _check_strides(captured: Capture, expected: Any) -> None:
    slots = captured.rebuild(list(range(len(captured.graph.outputs))))
    for slot, tensor in zip(_leaves(slots, int), _leaves(expected, torch.Tensor), strict=True):
        port = captured.graph.output_ports[slot]
        recorded = port.strides or contiguous_strides(tensor.shape)
        assert recorded == tuple(tensor.stride()), (recorded, tensor.stride())


def _leaves(value: Any, kind: type) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _leaves(part, kind)]
    return [value] if type(value) is kind or (kind is torch.Tensor and isinstance(value, kind)) else []


def assert_same(expected: Any, got: Any, ulps: float) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        tolerance = ulps * torch.finfo(expected.dtype).eps if expected.dtype.is_floating_point else 0
        a, b = expected.detach(), got.detach()
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(expected, dict):
        assert type(expected) is type(got)
        assert list(expected) == list(got)
        for key in expected:
            assert_same(expected[key], got[key], ulps)
    elif isinstance(expected, tuple | list):
        assert type(expected) is type(got)
        assert len(expected) == len(got)
        for a, b in zip(expected, got, strict=True):
            assert_same(a, b, ulps)
    else:
        assert expected == got or expected is got or isinstance(expected, torch.nn.Module)
