# SPDX-License-Identifier: Apache-2.0
"""Values without elements: nothing computes them, and what is made of nothing is a constant."""

from __future__ import annotations

from fusec.ir.attributes import ConcatAttributes, ConstantAttributes, Scalar
from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.ir.ops import OPS
from fusec.ir.types import DType
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

_COMPUTED = tuple(
    n for n, op in OPS.items() if op.kind not in ("view", "create", "write", "alias", "extern", "fused") and n != "copy"
)
_SUMMED = tuple(
    n for n, op in OPS.items() if op.kind in ("reduce", "dot") and op.monoid is not None and op.monoid.of_nothing
)


def drop_empty(graph: Graph) -> Graph:
    """Afterwards only views, copies and library calls read or make values without elements."""
    return rewrite(graph, EMPTY_RULES)


def _filled(r: Rewriter, number: Scalar) -> Value:
    result = r.op.result.type
    attributes = ConstantAttributes(_as(number, result.dtype), result.dtype, result.device)
    return r.broadcast(r.constant_of(attributes), result.shape)


def _as(number: Scalar, dtype: DType) -> Scalar:
    kinds: dict[str, type[bool] | type[int] | type[float]] = {"bool": bool, "int": int, "uint": int}
    convert = kinds.get(dtype.kind, float)
    assert not isinstance(number, complex)
    return convert(number)


@rule(*_COMPUTED)
def no_elements(r: Rewriter) -> Outcome:
    """f(x) : [0, n] ⇒ broadcast(0) : [0, n]"""
    return _filled(r, 0) if r.op.result.type.is_static and r.op.result.type.size == 0 else None


@rule(*_SUMMED)
def of_no_elements(r: Rewriter) -> Outcome:
    """reduce_sum(x: [0, n]) over the first axis ⇒ broadcast(0) : [n]; the same for dot, any, all and prod"""
    x = r.operands[0].type
    if not x.is_static or x.size != 0 or r.op.result.type.size == 0:
        return None
    return _filled(r, r.op.definition.reduction.identity(r.op.result.type.dtype))


@rule("pad")
def pad_of_no_elements(r: Rewriter) -> Outcome:
    """pad(x: [0], c) ⇒ broadcast(c)"""
    x, fill = r.operands
    if not x.type.is_static or x.type.size != 0:
        return None
    return r.broadcast(fill, r.op.result.type.shape)


@rule("concat")
def concat_without_empty(r: Rewriter) -> Outcome:
    """concat(x, y: [0, n]) ⇒ concat(x)"""
    filled = [v for v in r.operands if not v.type.is_static or v.type.size != 0]
    if not filled or len(filled) == len(r.operands):
        return None
    return filled[0] if len(filled) == 1 else r.emit("concat", *filled, attributes=r.op.expect(ConcatAttributes))


EMPTY_RULES: tuple[Rule, ...] = (no_elements, of_no_elements, pad_of_no_elements, concat_without_empty)
