"""Reductions of small windows become maps of their few elements."""

from __future__ import annotations

import pytest
from programs import check, group_kinds
from rewriting import becomes, computes_the_same, unchanged

from fusec.ir.library_calls import MOST_TAPS
from fusec.passes.windows import FEW_TAPS, MOST_LAID_OUT, open_windows


def test_the_largest_of_each_window() -> None:
    becomes(
        open_windows,
        """
        graph @g(%x: f32[9]) {
          %s = windows(%x) {axis=0, size=3, step=2} : f32[4, 3]
          %y = reduce_max(%s) {axes=[1]} : f32[4]
          return %y
        }
        """,
        """
        graph @g(%x: f32[9]) {
          %s = windows(%x) {axis=0, size=3, step=2} : f32[4, 3]
          %y_slice = slice(%s) {starts=[0, 0], stops=[4, 1], steps=[1, 1]} : f32[4, 1]
          %y_slice_1 = slice(%s) {starts=[0, 1], stops=[4, 2], steps=[1, 1]} : f32[4, 1]
          %y_slice_2 = slice(%s) {starts=[0, 2], stops=[4, 3], steps=[1, 1]} : f32[4, 1]
          %y_maximum = maximum(%y_slice, %y_slice_1) : f32[4, 1]
          %y_maximum_1 = maximum(%y_maximum, %y_slice_2) : f32[4, 1]
          %y = reshape(%y_maximum_1) : f32[4]
          return %y
        }
        """,
    )


def test_products_with_weights_which_are_laid_out_by_place() -> None:
    becomes(
        open_windows,
        """
        graph @g(%x: f32[2, 4, 5], %w: f32[5, 2]) {
          %s = windows(%x) {axis=1, size=2} : f32[2, 3, 5, 2]
          %m = mul(%s, %w) : f32[2, 3, 5, 2]
          %y = reduce_sum(%m) {axes=[3]} : f32[2, 3, 5]
          return %y
        }
        """,
        """
        graph @g(%x: f32[2, 4, 5], %w: f32[5, 2]) {
          %s = windows(%x) {axis=1, size=2} : f32[2, 3, 5, 2]
          %y_permute = permute(%w) {permutation=[1, 0]} : f32[2, 5]
          %y_laid_out = copy(%y_permute) : f32[2, 5]
          %y_permute_1 = permute(%y_laid_out) {permutation=[1, 0]} : f32[5, 2]
          %y_slice = slice(%s) {starts=[0, 0, 0, 0], stops=[2, 3, 5, 1], steps=[1, 1, 1, 1]} : f32[2, 3, 5, 1]
          %y_slice_1 = slice(%y_permute_1) {starts=[0, 0], stops=[5, 1], steps=[1, 1]} : f32[5, 1]
          %y_mul_1 = mul(%y_slice, %y_slice_1) : f32[2, 3, 5, 1]
          %y_slice_2 = slice(%s) {starts=[0, 0, 0, 1], stops=[2, 3, 5, 2], steps=[1, 1, 1, 1]} : f32[2, 3, 5, 1]
          %y_slice_3 = slice(%y_permute_1) {starts=[0, 1], stops=[5, 2], steps=[1, 1]} : f32[5, 1]
          %y_mul_2 = mul(%y_slice_2, %y_slice_3) : f32[2, 3, 5, 1]
          %y_add = add(%y_mul_1, %y_mul_2) : f32[2, 3, 5, 1]
          %y = reshape(%y_add) : f32[2, 3, 5]
          return %y
        }
        """,
        special=False,
    )


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("axes", [(3,), (4,), (3, 4), (2, 3, 4)], ids=str)
def test_any_places_of_a_window(reduction: str, axes: tuple[int, ...]) -> None:
    shape = (3, 4, 2, 3, 2)
    result = [n for a, n in enumerate(shape) if a not in axes]
    graph = computes_the_same(
        open_windows,
        f"""
        graph @g(%x: f32[5, 5, 2], %w: f32[2, 1, 2], %s: f32[]) {{
          %u = windows(%x) {{axis=0, size=3}} : f32[3, 5, 2, 3]
          %v = windows(%u) {{axis=1, size=2}} : f32[3, 4, 2, 3, 2]
          %m = mul(%v, %w) : f32[3, 4, 2, 3, 2]
          %n = add(%m, %s) : f32[3, 4, 2, 3, 2]
          %y = reduce_{reduction}(%n) {{axes={list(axes)}}} : f32{result}
          return %y
        }}
        """,
        special=reduction != "sum",
    )
    assert not [op for op in graph.ops if op.definition.kind == "reduce"]


def reduced(places: int, attributes: str = "{axes=[1]}", reduction: str = "reduce_sum", dtype: str = "f32") -> str:
    return f"""graph @g(%x: {dtype}[100]) {{
  %s = windows(%x) {{axis=0, size={places}}} : {dtype}[{101 - places}, {places}]
  %y = {reduction}(%s) {attributes} : {dtype}[{101 - places}]
  return %y
}}"""


def test_so_many_places_and_no_more() -> None:
    assert "reduce_sum(" not in str(computes_the_same(open_windows, reduced(MOST_TAPS), special=False))
    unchanged(open_windows, reduced(MOST_TAPS + 1))


UNTOUCHED = {
    "another reduction": reduced(3, reduction="reduce_prod"),
    "a sum in another dtype": reduced(3, "{axes=[1], dtype=f32}", dtype="f16").replace(
        "f16[98]\n  return", "f32[98]\n  return"
    ),
    "rows": "graph @g(%x: f32[100, 3]) {\n  %y = reduce_sum(%x) {axes=[1]} : f32[100]\n  return %y\n}",
    "a symbolic extent": """graph @g(%x: f32[N]) {
      %s = windows(%x) {axis=0, size=3} : f32[(N - 2), 3]
      %y = reduce_sum(%s) {axes=[1]} : f32[(N - 2)]
      return %y
    }""",
    "windows far above": """graph @g(%x: f32[20]) {
      %s = windows(%x) {axis=0, size=3} : f32[18, 3]
      %a = exp(%s) : f32[18, 3]
      %b = exp(%a) : f32[18, 3]
      %c = exp(%b) : f32[18, 3]
      %d = exp(%c) : f32[18, 3]
      %e = exp(%d) : f32[18, 3]
      %y = reduce_sum(%e) {axes=[1]} : f32[18]
      return %y
    }""",
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_stays(name: str) -> None:
    unchanged(open_windows, UNTOUCHED[name])


def parted(rows: int, columns: int) -> str:
    """An image in parts of ``rows`` by ``columns``."""
    return f"""graph @g(%x: f32[{2 * rows}, {2 * columns}, 3]) {{
  %r = reshape(%x) : f32[2, {rows}, 2, {columns}, 3]
  %p = permute(%r) {{permutation=[0, 2, 4, 1, 3]}} : f32[2, 2, 3, {rows}, {columns}]
  %y = reduce_max(%p) {{axes=[3, 4]}} : f32[2, 2, 3]
  return %y
}}"""


def test_parts_of_an_image() -> None:
    assert "reduce_max(" not in str(computes_the_same(open_windows, parted(FEW_TAPS // 4, 4)))
    unchanged(open_windows, parted(FEW_TAPS // 4 + 1, 4))


def test_rows_are_no_parts_of_an_image() -> None:
    unchanged(
        open_windows,
        """graph @g(%x: f32[8, 3]) {
  %r = reshape(%x) : f32[2, 4, 3]
  %p = permute(%r) {permutation=[0, 2, 1]} : f32[2, 3, 4]
  %y = reduce_max(%p) {axes=[2]} : f32[2, 3]
  return %y
}""",
    )


def weights(count: int) -> str:
    return f"""graph @g(%x: f32[4, {count}], %w: f32[{count}, 2]) {{
  %s = windows(%x) {{axis=0, size=2}} : f32[3, {count}, 2]
  %m = mul(%s, %w) : f32[3, {count}, 2]
  %y = reduce_sum(%m) {{axes=[2]}} : f32[3, {count}]
  return %y
}}"""


def test_large_weights_are_read_as_they_lie() -> None:
    few, many = (computes_the_same(open_windows, weights(n), special=False) for n in (100, MOST_LAID_OUT // 2 + 1))
    assert [op.name for op in few.ops].count("copy") == 1
    assert [op.name for op in many.ops].count("copy") == 0


def test_weights_are_laid_out_by_a_kernel_of_their_own() -> None:
    made = check(
        """graph @g(%x: f32[2, 22, 22, 64], %w: f32[64, 3, 3]) {
          %s = windows(%x) {axis=1, size=3} : f32[2, 20, 22, 64, 3]
          %t = windows(%s) {axis=2, size=3} : f32[2, 20, 20, 64, 3, 3]
          %m = mul(%t, %w) : f32[2, 20, 20, 64, 3, 3]
          %y = reduce_sum(%m) {axes=[4, 5]} : f32[2, 20, 20, 64]
          return %y
        }""",
        slack=4,
    )
    assert group_kinds(made.lowered) == ["map", "map"]
