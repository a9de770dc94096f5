"""A partition is acyclic, and holds every compute op exactly once, whatever the graph."""

from __future__ import annotations

from itertools import pairwise

import pytest
from random_graphs import random_graph

from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.parse import parse
from fusec.passes.fuse import fuse
from fusec.passes.groups.fused import build_fused_graph, one_by_one
from fusec.passes.groups.partition import MOST_DEPTH, Group, Partition, large_parts
from fusec.passes.pipeline import lower


def compute_ops(graph: Graph) -> list[str]:
    """Names of what is computed, fused or not."""
    names = []
    for op in graph.ops:
        inner = op.attributes.body.ops if isinstance(op.attributes, FusedAttributes) else (op,)
        names += [o.results[0].name for o in inner if o.definition.kind not in ("view", "create")]
    return sorted(names)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_every_op_is_in_exactly_one_kernel(first: int) -> None:
    """The graph of kernels is topologically ordered, which the verifier checks, so there is no cycle."""
    for seed in range(first, first + 10):
        graph, _ = random_graph(seed, ops=60)
        lowered = lower(graph, "cpu", threads=2, check=True)
        before = Partition(parse(lowered.stages["outputs"]))
        wanted = sorted(op.results[0].name for op in before.graph.ops if op not in before.free)
        free = {op.results[0].name for op in before.free}
        assert [n for n in compute_ops(lowered.graph) if n not in free] == wanted, seed
        unexpressed = [d for d in lowered.program.declined if d.rule.endswith(" kernel")]
        assert not [d for d in unexpressed if "no matmul of" not in d.reason], seed


def test_a_cycle_through_a_library_call() -> None:
    """a is read by the call and by y: with y it would wait for a call that waits for it."""
    graph = parse("""graph @g(%x: f32[4, 4]) {
        %a = neg(%x) : f32[4, 4]
        %s = extern(%a) {target="numpy.sort", arguments="(($0,), {})"} : f32[4, 4]
        %y = add(%a, %s) : f32[4, 4]
        return %y
    }""")
    partition = Partition(graph)
    a, _, y = graph.ops
    assert partition.would_cycle({a}, y)
    assert partition.would_cycle({y}, a)
    kinds = [op.name for op in fuse(graph).ops]
    assert kinds == ["fused", "extern", "fused"]


def test_a_way_back_through_a_group_that_reaches_further() -> None:
    graph = parse("""graph @g(%x: f32[4], %z: f32[4]) {
        %early = neg(%z) : f32[4]
        %a = neg(%x) : f32[4]
        %b = add(%early, %x) : f32[4]
        %p = abs(%a) : f32[4]
        %late = exp(%p) : f32[4]
        %y = add(%b, %x) : f32[4]
        return %y, %late
    }""")
    partition = Partition(graph)
    early, a, b, _, late, _ = graph.ops
    partition.add(Group("map", (4,)), [early, late])
    assert partition.would_cycle({a}, b)


def test_free_ops_are_copied_into_each_reader() -> None:
    graph = parse("""graph @g(%x: f32[4, 6]) {
        %t = permute(%x) {permutation=[1, 0]} : f32[6, 4]
        %i = iota() {axis=0} : f32[6, 1]
        %s = reduce_sum(%t) {axes=[1]} : f32[6]
        %y = exp(%t) : f32[6, 4]
        %z = mul(%y, %i) : f32[6, 4]
        %m = reduce_max(%z) {axes=[0]} : f32[4]
        return %s, %m
    }""")
    partition = Partition(graph)
    assert [op.results[0].name for op in graph.ops if op in partition.free] == ["t", "i"]
    bodies = [op.attributes.body for op in fuse(graph).ops]  # type: ignore[attr-defined]
    assert len(bodies) == 2
    assert all(any(op.name == "permute" for op in body.ops) for body in bodies)
    assert all([v.name for v in body.inputs] == ["x"] for body in bodies)


def test_one_by_one() -> None:
    graph = parse("""graph @g(%x: f32[4, 6], %w: f32[6, 3]) {
        %h = dot(%x, %w) {contract=[1]x[0]} : f32[4, 3]
        %t = permute(%h) {permutation=[1, 0]} : f32[3, 4]
        %e = exp(%t) : f32[3, 4]
        %s = reduce_sum(%e) {axes=[1]} : f32[3]
        return %s, %e
    }""")
    pieces = one_by_one(graph).ops
    assert [op.attributes.kind for op in pieces] == ["gemm", "map", "row"]  # type: ignore[attr-defined]
    assert [[v.name for v in op.results] for op in pieces] == [["h"], ["e"], ["s"]]


def test_kernels_are_ordered_as_in_the_source() -> None:
    graph = parse("""graph @g(%x: f32[4], %y: f32[5], %z: f32[6]) {
        %a = exp(%x) : f32[4]
        %b = exp(%y) : f32[5]
        %c = exp(%z) : f32[6]
        return %c, %b, %a
    }""")
    partition = Partition(graph)
    for op in reversed(graph.ops):
        partition.add(Group("map", op.result.type.static_shape), [op])
    assert [op.results[0].name for op in build_fused_graph(partition).ops] == ["a", "b", "c"]


def stored(lines: str, result: str, extent: int = 4) -> list[str]:
    graph = parse(f"graph @g(%x0: f32[{extent}]) {{\n{lines}\nreturn %{result}\n}}")
    return sorted((v.name for v in large_parts(graph)), key=lambda name: int(name[1:]))


def test_deep_and_large_expressions_are_cut() -> None:
    squares = "\n".join(f"%x{k + 1} = mul(%x{k}, %x{k}) : f32[4]" for k in range(40))
    assert stored(squares, "x40") == ["x11", "x22", "x33"]
    chain = "\n".join(f"%x{k + 1} = abs(%x{k}) : f32[4]" for k in range(200))
    cuts = [int(name[1:]) for name in stored(chain, "x200")]
    assert cuts == [64, 128, 192]
    assert all(b - a == MOST_DEPTH for a, b in pairwise(cuts))


def test_views_count_and_what_they_show_is_cut() -> None:
    lines = "\n".join(
        f"%f{k} = slice(%x{k}) {{starts=[3], stops=[-1], steps=[-1]}} : f32[4]\n%x{k + 1} = abs(%f{k}) : f32[4]"
        for k in range(80)
    )
    assert stored(lines, "x80") == ["x32", "x64"]


def test_an_expression_of_the_index_alone_is_never_stored() -> None:
    lines = "%i0 = iota() {axis=0} : f32[4]\n" + "\n".join(f"%i{k + 1} = abs(%i{k}) : f32[4]" for k in range(100))
    assert stored(lines + "\n%y = add(%x0, %i100) : f32[4]", "y") == []


def _seen(padded: bool, step: int) -> list[str]:
    """What is stored where windows show the tanh of a long expression, with padding around it or without."""
    chain = [f"%x{k + 1} = tanh(%x{k}) : f32[64]" for k in range(12)]
    around = "%p = pad(%x12, f32(0.0)) {low=[0], high=[2]} : f32[66]" if padded else ""
    source, extent = ("%p", 66) if padded else ("%x12", 64)
    seen = f"f32[{(extent - 3) // step + 1}, 3]"
    shown = f"%w = windows({source}) {{axis=0, size=3, step={step}}} : {seen}\n%y = abs(%w) : {seen}"
    return stored("\n".join([*chain, around, shown]), "y", 64)


@pytest.mark.parametrize("padded", [False, True])
def test_what_windows_show_often_is_stored(padded: bool) -> None:
    """A residual sum would be computed for each place of each window."""
    assert _seen(padded, 1) == ["x12"]
    assert _seen(padded, 3) == []
