"""Values without elements are made by nothing, and what is made of nothing is a constant."""

from __future__ import annotations

import pytest
from programs import check
from rewriting import becomes

from fusec.ir.parse import parse
from fusec.passes.empty import drop_empty


def test_a_map_of_no_elements() -> None:
    becomes(
        drop_empty,
        """
        graph @g(%x: f32[0, 3], %w: f32[3]) {
          %a = exp(%x) : f32[0, 3]
          %y = add(%a, %w) : f32[0, 3]
          return %y
        }
        """,
        """
        graph @g(%x: f32[0, 3], %w: f32[3]) {
          %y = broadcast(f32(0.0)) : f32[0, 3]
          return %y
        }
        """,
    )


@pytest.mark.parametrize(
    ("name", "dtype", "identity"),
    [
        *(("reduce_sum", "f32", "0.0"), ("reduce_sum", "i8", "0"), ("reduce_prod", "f16", "1.0")),
        *(("reduce_prod", "u8", "1"), ("reduce_any", "bool", "false"), ("reduce_all", "bool", "true")),
    ],
)
def test_reductions_of_no_elements(name: str, dtype: str, identity: str) -> None:
    becomes(
        drop_empty,
        f"""
        graph @g(%x: {dtype}[0, 3]) {{
          %y = {name}(%x) {{axes=[0]}} : {dtype}[3]
          return %y
        }}
        """,
        f"""
        graph @g(%x: {dtype}[0, 3]) {{
          %y = broadcast({dtype}({identity})) : {dtype}[3]
          return %y
        }}
        """,
    )


def test_products_over_no_elements() -> None:
    becomes(
        drop_empty,
        """
        graph @g(%x: f16[2, 0], %w: f16[0, 3]) {
          %y = dot(%x, %w) {contract=[1]x[0], dtype=f32} : f32[2, 3]
          return %y
        }
        """,
        """
        graph @g(%x: f16[2, 0], %w: f16[0, 3]) {
          %y = broadcast(f32(0.0)) : f32[2, 3]
          return %y
        }
        """,
    )


def test_padding_and_joins() -> None:
    becomes(
        drop_empty,
        """
        graph @g(%x: f32[0, 3], %w: f32[2, 3]) {
          %p = pad(%x, f32(5.0)) {low=[1, 0], high=[0, 0]} : f32[1, 3]
          %c = concat(%x, %w, %x) {axis=0} : f32[2, 3]
          %d = concat(%x, %w, %x, %w) {axis=0} : f32[4, 3]
          %y = neg(%c) : f32[2, 3]
          return %p, %y, %d
        }
        """,
        """
        graph @g(%x: f32[0, 3], %w: f32[2, 3]) {
          %p = broadcast(f32(5.0)) : f32[1, 3]
          %d = concat(%w, %w) {axis=0} : f32[4, 3]
          %y = neg(%w) : f32[2, 3]
          return %p, %y, %d
        }
        """,
    )


def test_what_has_elements_is_left_alone() -> None:
    graph = parse("""graph @g(%x: f32[2, 3], %e: f32[0]) {
        %y = exp(%x) : f32[2, 3]
        return %y, %e
    }""")
    assert drop_empty(graph) is graph


def test_the_whole_way() -> None:
    run = check("""graph @g(%x: f32[0, 3], %i: i64[0], %t: f32[5, 3]) {
        %g = gather(%t, %i) {axis=0} : f32[0, 3]
        %s = softmax(%x) {axis=1} : f32[0, 3]
        %a = add(%g, %s) : f32[0, 3]
        %m = mean(%a) {axes=[0]} : f32[3]
        %z = slice(%a) {starts=[0, 1], stops=[0, 3], steps=[1, 1]} : f32[0, 2]
        %r = reshape(%z) : f32[2, 0]
        %p = argmax(%t) {axis=0} : i64[3]
        return %a, %m, %r, %p
    }""")
    assert run.kernels == ["row", "map"]
