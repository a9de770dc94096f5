"""Sums over columns beside reductions over rows: parts of them are made by the kernel that has the rows at hand."""

from __future__ import annotations

import numpy as np
import pytest
from programs import group_kinds, random_inputs, reductions

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.passes.share_rows import share_rows
from fusec.runtime.program import Launch

SMS = 132


def backward(n: int, c: int, dtype: str = "bf16") -> str:
    """The gradient of an RMS norm, and that of its weight."""
    return f"""graph @g(%dy: {dtype}[{n}, {c}], %x: {dtype}[{n}, {c}], %r: f32[{n}, 1], %w: {dtype}[{c}]) {{
  %g = cast(%dy) : f32[{n}, {c}]
  %v = cast(%x) : f32[{n}, {c}]
  %u = cast(%w) : f32[{c}]
  %h = mul(%v, %r) : f32[{n}, {c}]
  %f = mul(%g, %h) : f32[{n}, {c}]
  %dw = reduce_sum(%f) {{axes=[0]}} : f32[{c}]
  %a = mul(%g, %u) : f32[{n}, {c}]
  %b = mul(%a, %h) : f32[{n}, {c}]
  %s = reduce_sum(%b) {{axes=[1]}} : f32[{n}]
  %k = reshape(%s) : f32[{n}, 1]
  %d = mul(%k, f32({1 / c})) : f32[{n}, 1]
  %e = mul(%h, %d) : f32[{n}, {c}]
  %o = sub(%a, %e) : f32[{n}, {c}]
  %q = mul(%o, %r) : f32[{n}, {c}]
  %dx = cast(%q) : {dtype}[{n}, {c}]
  %dv = cast(%dw) : {dtype}[{c}]
  return %dx, %dv
}}"""


def parts(graph: Graph) -> list[tuple[int, ...]]:
    """Shapes of what is added up in parts."""
    return [shape for shape, axes in reductions(graph) if axes == (1,) and len(shape) == 3]


@pytest.mark.parametrize(
    ("n", "c", "found"),
    [
        (8192, 4096, (256, 32, 4096)),  # two CTAs an SM
        (65536, 768, (512, 128, 768)),
        (8192, 8192, (128, 64, 8192)),
        (1024, 768, (512, 2, 768)),
        (1021, 768, (341, 3, 768)),  # zeros behind the last row
    ],
)
def test_a_part_for_each_block(n: int, c: int, found: tuple[int, ...]) -> None:
    graph = share_rows(parse(backward(n, c)), SMS)
    assert parts(graph) == [found]
    assert any(op.name == "pad" for op in graph.ops) == (n % found[0] != 0)


@pytest.mark.parametrize(
    ("n", "c"),
    [(64, 768), (100, 8192), (8192, 16384)],
    ids=["few elements", "few rows", "rows that leave no registers"],
)
def test_left_as_it_is(n: int, c: int) -> None:
    graph = parse(backward(n, c))
    assert share_rows(graph, SMS) is graph


def test_sums_of_other_values_are_left() -> None:
    text = (
        backward(8192, 768).replace("%f = mul(%g, %h)", "%f = mul(%z, %z)").replace("%w: ", "%z: f32[8192, 768], %w: ")
    )
    graph = parse(text)
    assert share_rows(graph, SMS) is graph


def test_sums_that_the_rows_need_are_left() -> None:
    text = (
        backward(8192, 768).replace("  %u = cast(%w) : f32[768]\n", "").replace("%a = mul(%g, %u)", "%a = mul(%g, %dw)")
    )
    graph = parse(text)
    assert share_rows(graph, SMS) is graph


@pytest.mark.parametrize("n", [1024, 1021])
def test_the_same_sums(n: int) -> None:
    graph = parse(backward(n, 520, "f32"))
    shared = share_rows(graph, SMS)
    assert parts(shared)
    given = random_inputs(graph)
    for mine, wanted in zip(interpret(shared, given), interpret(graph, given, float64=True), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n", [8192, 8191])
def test_two_kernels_and_no_large_values_between_them(n: int) -> None:
    lowered = lower(parse(backward(n, 4096)), "cuda:sm_90", check=True)
    assert group_kinds(lowered) == ["row", "row"]
    program = lowered.program
    assert sum(isinstance(s, Launch) for s in program.steps) == 2
    between = [s.type for s in program.slots if s.kind == "workspace"]
    assert all(t.most < n * 4096 / 16 for t in between), between


def test_gradients_of_weight_and_bias_are_added_up_together() -> None:
    n, c = 8192, 768
    text = backward(n, c).replace(
        "  return %dx, %dv",
        f"  %db = reduce_sum(%g) {{axes=[0]}} : f32[{c}]\n  %dc = cast(%db) : bf16[{c}]\n  return %dx, %dv, %dc",
    )
    lowered = lower(parse(text), "cuda:sm_90", check=True)
    assert [len(op.results) for op in lowered.graph.ops] == [3, 2]


def test_a_cpu_s_kernels_are_not_changed() -> None:
    assert not any(
        len(shape) == 3 for shape, _ in reductions(parse(lower(parse(backward(2048, 512)), "cpu").stages["split"]))
    )


def of_blocks(blocks: int, n: int, c: int) -> str:
    """The gradients of RMS norms before square layers, added to the residual gradient that goes on."""
    inputs = [f"%d: bf16[{n}, {c}]"]
    lines, kept, residual = [], [], "d"
    for k in range(blocks):
        inputs += [f"%x{k}: bf16[{n}, {c}]", f"%m{k}: bf16[{c}, {c}]"]
        lines += [
            f"%dot{k} = dot(%{residual}, %m{k}) {{contract=[1]x[0]}} : bf16[{n}, {c}]",
            f"%g{k} = cast(%dot{k}) : f32[{n}, {c}]",
            f"%h{k} = cast(%x{k}) : f32[{n}, {c}]",
            f"%f{k} = mul(%g{k}, %h{k}) : f32[{n}, {c}]",
            f"%dw{k} = reduce_sum(%f{k}) {{axes=[0]}} : f32[{c}]",
            f"%s{k} = reduce_sum(%f{k}) {{axes=[1]}} : f32[{n}]",
            f"%t{k} = reshape(%s{k}) : f32[{n}, 1]",
            f"%e{k} = mul(%h{k}, %t{k}) : f32[{n}, {c}]",
            f"%o{k} = sub(%g{k}, %e{k}) : f32[{n}, {c}]",
            f"%w{k} = cast(%{residual}) : f32[{n}, {c}]",
            f"%a{k} = add(%w{k}, %o{k}) : f32[{n}, {c}]",
            f"%r{k} = cast(%a{k}) : bf16[{n}, {c}]",
            f"%u{k} = cast(%r{k}) : f32[{n}, {c}]",
            f"%db{k} = reduce_sum(%u{k}) {{axes=[0]}} : f32[{c}]",
        ]
        residual = f"r{k}"
        kept += [f"%dw{k}", f"%db{k}"]
    body = "\n  ".join(lines)
    return f"graph @g({', '.join(inputs)}) {{\n  {body}\n  return %{residual}, {', '.join(kept)}\n}}"


@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_each_norm_of_a_chain_adds_up_its_own_columns(blocks: int) -> None:
    """What a norm's kernel reads ends at the gradient that was stored for the layer before: it does not grow."""
    graph = share_rows(parse(of_blocks(blocks, 8192, 768)), SMS)
    assert parts(graph) == [(512, 16, 768)] * 2 * blocks
    lowered = lower(parse(of_blocks(blocks, 8192, 768)), "cuda:sm_90")
    assert sorted(group_kinds(lowered)) == sorted(["gemm", "row", "row"] * blocks)


def test_the_same_sums_of_a_chain() -> None:
    graph = parse(of_blocks(3, 1024, 520))
    shared = share_rows(graph, SMS)
    assert len(parts(shared)) == 6
    given = random_inputs(graph)
    given = [(x * 0.04).astype(x.dtype) if x.shape == (520, 520) else x for x in given]
    for mine, wanted in zip(interpret(shared, given), interpret(graph, given), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-2)
