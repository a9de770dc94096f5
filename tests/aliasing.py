"""Compares a jitted function with the function as written: results, errors, and which arrays share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import fusec


def leaves(value: Any) -> Iterator[Any]:
    """The tensors and arrays in a result, in order."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        yield from leaves(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from leaves(part)


def memory(value: Any) -> tuple[int, ...]:
    """What tells the memory of a tensor (its storage) or an array (its first byte and what follows the last)."""
    if isinstance(value, torch.Tensor):
        return (value.untyped_storage().data_ptr(),)
    return tuple(np.lib.array_utils.byte_bounds(value))


def share(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return memory(a) == memory(b)


def describe(result: Any, arguments: Sequence[Any]) -> list[object]:
    """Each array of a result: its layout, and which arguments and earlier results it is, or shares memory with.

    Of a tensor's axis of one element the stride says nothing: fake tensors have others there than real ones.
    """
    found = list(leaves(result))
    given = list(leaves(arguments))
    rows: list[object] = []
    for k, x in enumerate(found):
        before = [*given, *found[:k]]
        is_tensor = isinstance(x, torch.Tensor)
        strides = tuple(s for s, n in zip(x.stride(), x.shape) if n != 1) if is_tensor else x.strides
        same = [j for j, other in enumerate(before) if other is x]
        shared = [j for j, other in enumerate(before) if share(x, other)]
        rows.append((str(x.dtype), tuple(x.shape), tuple(strides) if 0 not in x.shape else (), same, shared))
    return rows


def outcome(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, type[Exception] | None, str]:
    try:
        return function(*arguments), None, ""
    except Exception as error:
        return None, type(error), str(error)


def check(function: Callable[..., Any], *arguments: Any, captured: bool = True) -> None:
    """Asserts that two calls of the jitted function do what the function does, also to its arguments."""
    compiled = fusec.jit(function)
    for _ in range(2):
        ours, theirs = [[x.clone() if isinstance(x, torch.Tensor) else x.copy() for x in arguments] for _ in range(2)]
        ours = [_laid_like(x, y) for x, y in zip(ours, arguments, strict=True)]
        theirs = [_laid_like(x, y) for x, y in zip(theirs, arguments, strict=True)]
        with torch.no_grad():
            expected, error, said = outcome(function, theirs)
            got, raised, message = outcome(compiled, ours)
        assert raised is error, f"{raised} ({message}), as written {error} ({said})"
        assert message == said
        for a, b in zip(ours, theirs, strict=True):
            _equal(a, b)
        if error is None:
            assert describe(got, ours) == describe(expected, theirs)
            for a, b in zip(leaves(got), leaves(expected), strict=True):
                _equal(a, b)
    assert not captured or not compiled.dispatcher.eager_calls, dict(compiled.dispatcher.eager_calls)


def _laid_like(copy: Any, original: Any) -> Any:
    if isinstance(copy, torch.Tensor) and copy.stride() != original.stride():
        return torch.empty_strided(original.shape, original.stride(), dtype=original.dtype).copy_(copy)
    return copy


def _equal(a: Any, b: Any) -> None:
    a, b = (torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x for x in (a, b))
    torch.testing.assert_close(a, b, equal_nan=True)
