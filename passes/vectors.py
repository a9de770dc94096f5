# SPDX-License-Identifier: Apache-2.0
"""Matmuls of one vector (a batch), on CPUs: each element of the other operand is read once and used once.

A matmul's kernel arranges that operand for use by many rows, and attention's has a query on each vector lane. With one
row (a token that looks at the keys and values of those before it) a sum of products along memory is all there is to do.
"""

from __future__ import annotations

from fusec.ir.attributes import CastAttributes, DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import DType
from fusec.passes.canonicalize.composites import compute_dtype
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.passes.skip_masked import skip_masked

LARGE = 8 << 20
"""Bytes of a matrix. Zen 5, one thread, f32: sums take half of a matmul's time at 4 MB, over twice it at 16 MB."""


def open_vectors(graph: Graph) -> Graph:
    """Afterwards no dot has one row or one column, but those of weights and of large matrices read across."""
    weights = _weights(graph)

    @rule("dot")
    def sum_of_products(r: Rewriter) -> Outcome:
        """dot(a: [b, 1, k], c: [b, k, n]) ⇒ reduce_sum(a * c)"""
        return _sum_of_products(r, weights)

    opened = rewrite(graph, (sum_of_products,))
    return skip_masked(opened)


def _weights(graph: Graph) -> set[str]:
    """Names of the weights, kept packed or read in place, and of what is views of them."""
    ports = zip(graph.inputs, graph.input_ports, strict=True)
    found = {v.name for v, port in ports if port.role in ("parameter", "static")}
    for op in graph.ops:
        if op.definition.kind == "view" and op.operands[0].name in found:
            found.add(op.result.name)
    return found


def _sum_of_products(r: Rewriter, weights: set[str]) -> Outcome:
    attributes = r.op.expect(DotAttributes)
    wide = compute_dtype(r.operands[0].type.dtype)
    if (
        not attributes.lhs_contract
        or not wide.is_float
        or r.op.result.type.dtype not in (wide, r.operands[0].type.dtype)
    ):
        return None
    sides = (
        (r.operands[0], attributes.lhs_batch, attributes.lhs_contract),
        (r.operands[1], attributes.rhs_batch, attributes.rhs_contract),
    )
    for vector, matrix in (sides, sides[::-1]):
        if _is_vector(*vector) and (
            attributes.lhs_batch
            or _is_vector(*matrix)
            or not (matrix[0].name in weights or _is_large_across(matrix[0], matrix[2]))
        ):
            return _summed(r, vector, matrix)
    return None


def _is_large_across(matrix: Value, contract: tuple[int, ...]) -> bool:
    """Whether sums would go across memory, through more of it than caches hold: a matmul's kernel is twice as fast."""
    last = matrix.type.rank - 1
    return last not in contract and matrix.type.is_static and matrix.type.nbytes > LARGE


def _is_vector(value: Value, batch: tuple[int, ...], contract: tuple[int, ...]) -> bool:
    return all(value.type.shape[axis] == 1 for axis in free_axes(value.type.rank, batch, contract))


def _summed(
    r: Rewriter,
    vector: tuple[Value, tuple[int, ...], tuple[int, ...]],
    matrix: tuple[Value, tuple[int, ...], tuple[int, ...]],
) -> Value:
    """The matrix is read as it lies; the vector is laid out along its axes."""
    (v, v_batch, v_contract), (m, m_batch, m_contract) = vector, matrix
    of_matrix = dict(zip((*m_batch, *m_contract), (*v_batch, *v_contract), strict=True))
    order = [of_matrix[axis] for axis in sorted(of_matrix)]
    rest = [axis for axis in range(v.type.rank) if axis not in order]
    shape = [n if axis in of_matrix else 1 for axis, n in enumerate(m.type.shape)]
    along = r.reshape(r.permute(v, [*order, *rest]), shape, hint="along")
    result = r.op.result.type
    wide = compute_dtype(v.type.dtype)
    product = r.emit("mul", r.broadcast(r.cast(along, wide), m.type.shape), r.cast(m, wide), hint="products")
    total = r.reduce("reduce_sum", product, sorted(m_contract), hint="sum")
    retained = [axis for axis in range(m.type.rank) if axis not in m_contract]
    wanted = [*m_batch, *(axis for axis in retained if axis not in m_batch)]
    ordered = r.permute(total, [retained.index(axis) for axis in wanted])
    return _rounded(r, r.reshape(ordered, result.shape), result.dtype)


def _rounded(r: Rewriter, value: Value, dtype: DType) -> Value:
    """As a matmul's own result is: digits beyond the dtype's may stay."""
    if value.type.dtype == dtype:
        return value
    return r.emit("cast", value, attributes=CastAttributes(dtype, True))
