"""Masks of small values, for each map on scores its own."""

from __future__ import annotations

from fusec.ir.attributes import SliceAttributes
from fusec.ir.builder import Builder
from fusec.ir.index import symbol
from fusec.ir.parse import parse
from fusec.ir.types import TensorType, f32
from fusec.passes.masks import masks_apart

MASK = """  %a = reshape(%d) : i64[300, 1]
  %r = broadcast(%a) : i64[300, 300]
  %c = broadcast(%d) : i64[300, 300]
  %m = eq(%r, %c) : bool[300, 300]
  %w = broadcast(%m) : bool[2, 300, 300]
"""
LAYER = """  %s{n} = dot(%q{n}, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 300, 300]
  %p{n} = select(%w, %s{n}, %z) : f32[2, 300, 300]
  %o{n} = dot(%p{n}, %k) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 300, 16]
"""


def text(mask: str = MASK, given: str = "") -> str:
    inputs = f"%q1: f32[2, 300, 16], %q2: f32[2, 300, 16], %k: f32[2, 300, 16], %d: i64[300], %z0: f32[1]{given}"
    zero = "  %z1 = reshape(%z0) : f32[]\n  %z = broadcast(%z1) : f32[2, 300, 300]\n"
    layers = LAYER.format(n=1) + LAYER.format(n=2)
    return f"graph @g({inputs}) {{\n{zero}{mask}{layers}  return %o1, %o2\n}}"


def masks(source: str) -> list[str]:
    return [op.name for op in masks_apart(parse(source)).ops if op.name == "eq"]


def test_each_space_has_its_own() -> None:
    assert masks(text()) == ["eq", "eq"]


def test_a_mask_that_is_given_is_read() -> None:
    given = text("  %w = broadcast(%m) : bool[2, 300, 300]\n", ", %m: bool[300, 300]")
    assert masks(given) == []
    assert len(masks_apart(parse(given)).ops) == len(parse(given).ops)


def test_short_ones_stay() -> None:
    assert masks(text().replace("300", "30")) == ["eq"]


def test_short_ones_too_where_blocks_find_their_keys() -> None:
    graph = parse(text().replace("300", "40"))
    assert [op.name for op in masks_apart(graph, blocked=True).ops if op.name == "eq"] == ["eq", "eq"]
    small = parse(text().replace("300", "30"))
    assert [op.name for op in masks_apart(small, blocked=True).ops if op.name == "eq"] == ["eq"]


def test_a_part_of_a_symbolic_extent_is_left_alone() -> None:
    b = Builder("g")
    x = b.input(TensorType(f32, (symbol("n", 2, 64), 4)), "x")
    part = b.op("slice", x, attributes=SliceAttributes((0, 0), (2, 4), (1, 1)))[0]
    made = b.op("add", part, b.input(TensorType(f32, (2, 4)), "y"))
    graph = b.finish(made)
    assert masks_apart(graph) is graph
