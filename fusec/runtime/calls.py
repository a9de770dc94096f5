# SPDX-License-Identifier: Apache-2.0
"""Library calls of a program: what the library does itself, and pieces of the graph that no kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from fusec.frontend.capture import Library
from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import TensorType
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.attentions import bind_attention
from fusec.runtime.eight_bit_matmuls import bind_eight_bit_matmul
from fusec.runtime.library import ResultsDifferError, prepare
from fusec.runtime.matmuls import bind_matmul
from fusec.target.gpu import is_gpu

INTERPRET = "fusec.interpret"
"""The target of a call whose ``arguments`` are the text of a graph."""


MATMUL = "fusec.matmul"
"""The target of a call that is a matmul of the library, said by ``arguments`` (:mod:`fusec.runtime.matmuls`)."""


EIGHT_BIT_MATMUL = "fusec.eight_bit_matmul"
"""The same for matmuls of 8 bits (:mod:`fusec.runtime.eight_bit_matmuls`)."""


ATTENTION = "fusec.attention"
"""The same for attention (:mod:`fusec.runtime.attentions`)."""


def bind_call(attributes: ExternAttributes, library: Library) -> Callable[..., Sequence[Any]]:
    """The function from operand arrays to result arrays of one call."""
    if attributes.target == INTERPRET:
        return _interpreted(attributes, load_arrays(library))
    if attributes.target == MATMUL:
        return bind_matmul(attributes.arguments)
    if attributes.target == EIGHT_BIT_MATMUL:
        return bind_eight_bit_matmul(attributes.arguments)
    if attributes.target == ATTENTION:
        return bind_attention(attributes.arguments)
    return prepare(attributes)


def first_checked(
    run: Callable[..., Sequence[Any]],
    target: str,
    wanted: Mapping[int, TensorType],
    arrays: Arrays,
    anywhere: Set[int] = frozenset(),
) -> list[Callable[..., Sequence[Any]]]:
    """A list of one function, to be called from there: ``run``, after a first call that looks at its results.

    ResultsDifferError where results, by their numbers, are not of the ``wanted`` types: kernels would read past them.
    Those that no kernel reads may lie ``anywhere``: stand-ins put a random state on the GPU that PyTorch keeps on the
    CPU.
    """

    def first(*operands: Any) -> Sequence[Any]:
        made = run(*operands)
        for number, type in wanted.items():
            try:
                found = arrays.layout(made[number]).type
            except TypeError as error:
                raise ResultsDifferError(f"{target} gave a result that can't be read: {error}") from None
            if number in anywhere:
                found = replace(found, device=type.device)
            if type.is_static and found != type:
                raise ResultsDifferError(f"{target} gave {found} as result {number}, {type} was captured")
        cell[0] = run
        return made

    cell: list[Callable[..., Sequence[Any]]] = [first]
    return cell


def _interpreted(attributes: ExternAttributes, arrays: Arrays) -> Callable[..., Sequence[Any]]:
    graph = parse(attributes.arguments)
    on_gpu = any(is_gpu(v.type.device) for v in (*graph.inputs, *graph.outputs))
    own = all(op.definition.kind in ("scan", "view") or op.name in ("grouped_dot", "grouped_outer") for op in graph.ops)
    if arrays.library == "torch" and (on_gpu or own):
        return _by_library(graph)

    def run(*operands: Any) -> list[Any]:
        given = operands if arrays.library == "numpy" else [_to_numpy(arrays, operand) for operand in operands]
        results = interpret(graph, given)
        return [
            arrays.from_numpy(np.array(result, type.dtype.numpy, order="C"), type.dtype)
            for result, type in zip(results, attributes.types, strict=True)
        ]

    return run


def _by_library(graph: Graph) -> Callable[..., Sequence[Any]]:
    """The reference would fetch operands from a GPU; the library's functions compute where they are.

    On a CPU PyTorch's scans add up in f64, on all cores; its products are those of matrices.
    """
    from fusec.runtime.torch_graph import graph_function  # torch is imported only where its tensors come

    run = graph_function(graph)
    return lambda *operands: [result.contiguous() for result in run(operands)]


def _to_numpy(arrays: Arrays, array: Any) -> np.ndarray[Any, Any]:
    dtype, shape, contents = arrays.to_bytes(array)
    return np.frombuffer(contents, dtype.numpy).reshape(shape)
