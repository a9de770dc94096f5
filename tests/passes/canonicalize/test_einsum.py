from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.ir.ops import OPS
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.einsum import EINSUM_RULES

opened = applying(*EINSUM_RULES)
EXTENTS = {"a": 3, "b": 4, "c": 5, "d": 2, "e": 6, "i": 3, "j": 3}


def test_a_batched_product_is_one_dot() -> None:
    becomes(
        opened,
        """
        graph @g(%q: f32[2, 4, 8, 16], %k: f32[2, 6, 8, 16]) {
          %s = einsum(%q, %k) {equation="bihd,bjhd->bhij"} : f32[2, 8, 4, 6]
          return %s
        }
        """,
        """
        graph @g(%q: f32[2, 4, 8, 16], %k: f32[2, 6, 8, 16]) {
          %s = dot(%q, %k) {contract=[3]x[3], batch=[0, 2]x[0, 2]} : f32[2, 8, 4, 6]
          return %s
        }
        """,
    )


def test_several_half_operands_are_multiplied_as_halves() -> None:
    """As the library does, pair by pair: sums in f32, which are rounded for the next product."""
    becomes(
        opened,
        """
        graph @g(%x: bf16[9, 4], %y: bf16[4, 8], %z: bf16[8, 2]) {
          %s = einsum(%x, %y, %z) {equation="ab,bc,cd->ad"} : bf16[9, 2]
          return %s
        }
        """,
        """
        graph @g(%x: bf16[9, 4], %y: bf16[4, 8], %z: bf16[8, 2]) {
          %s_dot = dot(%y, %z) {contract=[1]x[0], dtype=f32} : f32[4, 2]
          %s_bf16 = cast(%s_dot) : bf16[4, 2]
          %s_dot_1 = dot(%x, %s_bf16) {contract=[1]x[0], dtype=f32} : f32[9, 2]
          %s = cast(%s_dot_1) : bf16[9, 2]
          return %s
        }
        """,
    )


def test_a_product_without_a_sum_is_a_mul() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f32[3], %y: f32[4]) {
          %z = einsum(%x, %y) {equation="i,j->ij"} : f32[3, 4]
          return %z
        }
        """,
        """
        graph @g(%x: f32[3], %y: f32[4]) {
          %z_spread = reshape(%x) : f32[3, 1]
          %z_spread_1 = reshape(%y) : f32[1, 4]
          %z = mul(%z_spread, %z_spread_1) : f32[3, 4]
          return %z
        }
        """,
    )


EQUATIONS = [
    "ab->ba",
    "ab->",
    "ab->b",
    "ii->i",
    "ii->",
    "iji->j",
    "ab,bc->ac",
    "ab,bc->ca",
    "ab,bc->",
    "ab,ab->ab",
    "ab,ab->a",
    "ab,ab->",
    "a,b->ba",
    "abc,cd->abd",
    "abc,abd->acd",
    "abc,abd->dca",
    "ab,cd->ac",
    "ab,a->",
    "iib,bc->ic",
    "ab,bc,cd->ad",
    "ab,bc,cd,de->ea",
    "ab,ab,ab->ab",
    "ab,b,c->ac",
    ",ab->ab",
    "abc,a,b,c->",
]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str, dtype: str) -> None:
    left, _, right = equation.partition("->")
    terms = left.split(",")

    def type_of(letters: str) -> str:
        return f"{dtype}[{', '.join(str(EXTENTS[x]) for x in letters)}]"

    inputs = ", ".join(f"%x{k}: {type_of(term)}" for k, term in enumerate(terms))
    names = ", ".join(f"%x{k}" for k in range(len(terms)))
    graph = computes_the_same(
        opened,
        f"""
        graph @g({inputs}) {{
          %y = einsum({names}) {{equation="{equation}"}} : {type_of(right)}
          return %y
        }}
        """,
        special=False,
    )
    assert all(OPS[op.name].kind != "composite" for op in graph.ops)
    assert np.all([len(op.operands) < 3 for op in graph.ops])


def test_chains_are_joined_in_the_cheaper_order() -> None:
    graph = computes_the_same(
        canonicalize,
        """
        graph @g(%a: f32[64, 64], %b: f32[64, 64], %x: f32[64]) {
          %y = einsum(%a, %b, %x) {equation="ij,jk,k->i"} : f32[64]
          return %y
        }
        """,
        special=False,
    )
    assert max(op.result.type.size for op in graph.ops) == 64


def test_symbolic_extents() -> None:
    text = """
    graph @g(%a: f32[B, 4], %b: f32[4, 5], %c: f32[5, B]) {
      %y = einsum(%a, %b, %c) {equation="ij,jk,kl->il"} : f32[B, B]
      return %y
    }
    """
    assert [op.name for op in opened(parse(dedent(text))).ops] == ["dot", "dot", "permute"]


def test_a_symbolic_diagonal_is_left() -> None:
    text = """
    graph @g(%a: f32[B, B]) {
      %y = einsum(%a) {equation="ii->i"} : f32[B]
      return %y
    }
    """
    assert unchanged(applying(*EINSUM_RULES), text) == [
        "einsum: %y: the diagonal of %a needs static extents, not f32[B, B]"
    ]
