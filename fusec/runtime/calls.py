"""Library calls of a program: what the library does itself, and pieces that the reference interpreter runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.frontend.capture import Library
from fusec.ir.attributes import ExternAttributes
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.runtime.arrays import Arrays, load_arrays
from fusec.runtime.library import prepare

INTERPRET = "fusec.interpret"
"""The target of a call whose ``arguments`` are the text of a graph."""


def bind_call(attributes: ExternAttributes, library: Library) -> Callable[..., Sequence[Any]]:
    """The function from operand arrays to result arrays of one call."""
    if attributes.target == INTERPRET:
        return _interpreted(attributes, load_arrays(library))
    run = prepare(attributes)
    return lambda *operands: run(operands)


def _interpreted(attributes: ExternAttributes, arrays: Arrays) -> Callable[..., Sequence[Any]]:
    graph = parse(attributes.arguments)

    def run(*operands: Any) -> list[Any]:
        results = interpret(graph, [_to_numpy(arrays, operand) for operand in operands])
        return [
            arrays.from_numpy(np.array(result, type.dtype.numpy, order="C"), type.dtype)
            for result, type in zip(results, attributes.types, strict=True)
        ]

    return run


def _to_numpy(arrays: Arrays, array: Any) -> np.ndarray[Any, Any]:
    dtype, shape, contents = arrays.to_bytes(array)
    return np.frombuffer(contents, dtype.numpy).reshape(shape)
