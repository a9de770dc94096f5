# SPDX-License-Identifier: Apache-2.0
"""Gathers of a few elements before what is computed on all of them, so that a loss never stores what it picks from."""

from __future__ import annotations

from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.passes.inline import COPIES
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

FEW = 4
"""A gather that picks at most one of so many elements comes first: they are computed again where it reads them."""


def sink_gathers(graph: Graph) -> Graph:
    """The graph in which gathers of few elements read what elementwise ops read, not what they make."""
    return rewrite(graph, GATHER_RULES)


@rule("gather_elements", "gather")
def gather_before_map(r: Rewriter) -> Outcome:
    """gather(f(a, b), i) ⇒ f(gather(a, i), gather(b, i)), where few elements are picked"""
    source, index = r.operands
    made = r.producer(source)
    if made is None or made.definition.kind != "elementwise" or made.name in COPIES or not source.type.is_static:
        return None
    if not r.op.result.type.is_static or FEW * r.op.result.type.size > source.type.size:
        return None

    def picked(v: Value) -> Value:
        whole = r.broadcast(v, source.type.shape)
        return v if v.type.rank == 0 else r.emit(r.op.name, whole, index, attributes=r.op.attributes, hint="at")

    return r.emit(made.name, *map(picked, made.operands), attributes=made.attributes)


GATHER_RULES: tuple[Rule, ...] = (gather_before_map,)
