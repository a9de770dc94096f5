"""Parts of the columns of grouped products: which are two products, and that they give the same."""

from __future__ import annotations

import numpy as np
import pytest

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.verify import verify
from fusec.passes.pipeline import lower
from fusec.passes.product_columns import split_columns


def product(contract: int, low: str, high: str, width: int = 3, returned: str = "%y") -> Graph:
    """Gate and up of one product, whose columns are ``low`` and ``high``."""
    matrices = "f32[2, 6, 4]" if contract == 2 else "f32[2, 4, 6]"
    return parse(f"""graph @f(%x: f32[5, 4], %w: {matrices}) {{
  %h = grouped_dot(%x, %w) {{rhs_contract={contract}, sizes=[3, 2]}} : f32[5, 6]
  %a = slice(%h) {{{low}}} : f32[5, {width}]
  %b = slice(%h) {{{high}}} : f32[5, {width}]
  %s = silu(%a) : f32[5, {width}]
  %y = mul(%s, %b) : f32[5, {width}]
  return {returned}
}}""")


HALVES = ("starts=[0, 0], stops=[5, 3], steps=[1, 1]", "starts=[0, 3], stops=[5, 6], steps=[1, 1]")
EVERY_SECOND = ("starts=[0, 0], stops=[5, 6], steps=[1, 2]", "starts=[0, 1], stops=[5, 6], steps=[1, 2]")


def check(graph: Graph) -> int:
    """How many products there are afterwards."""
    after = split_columns(graph)
    verify(after)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=v.type.static_shape).astype(np.float32) for v in graph.inputs]
    for got, wanted in zip(interpret(after, args), interpret(graph, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return [op.name for op in after.ops].count("grouped_dot")


@pytest.mark.parametrize(("contract", "parts"), [(1, HALVES), (2, HALVES), (2, EVERY_SECOND)])
def test_two_parts_are_two_products(contract: int, parts: tuple[str, str]) -> None:
    assert check(product(contract, *parts)) == 2


def test_columns_beside_one_another_stay_together() -> None:
    """A block of every second column of a row would be read element by element."""
    assert check(product(1, *EVERY_SECOND)) == 1


def test_a_product_that_is_read_by_itself_stays() -> None:
    assert check(product(2, *HALVES, returned="%y, %h")) == 1


def test_parts_of_some_rows_stay() -> None:
    rows = ("starts=[0, 0], stops=[4, 3], steps=[1, 1]", "starts=[1, 3], stops=[5, 6], steps=[1, 1]")
    text = str(product(2, *HALVES)).replace("f32[5, 3]", "f32[4, 3]")
    for before, after in zip(HALVES, rows, strict=True):
        text = text.replace(before, after)
    assert check(parse(text)) == 1


def test_one_kernel_combines_both() -> None:
    text = str(product(2, *HALVES)).replace("f32", "bf16")
    program = lower(parse(text), "cuda:sm_90", check=True).program
    assert len(program.kernels) == 1


def plain_product(contract: int, low: str, high: str, rows: int = 5, dtype: str = "bf16") -> Graph:
    """Gate and up of one product of rows and a matrix."""
    matrix = "[6, 4]" if contract == 1 else "[4, 6]"
    text = f"""graph @f(%x: {dtype}[{rows}, 4], %w: {dtype}{matrix}) {{
  %h = dot(%x, %w) {{contract=[1]x[{contract}], batch=[]x[]}} : {dtype}[{rows}, 6]
  %a = slice(%h) {{{low}}} : {dtype}[{rows}, 3]
  %b = slice(%h) {{{high}}} : {dtype}[{rows}, 3]
  %s = exp(%a) : {dtype}[{rows}, 3]
  %y = mul(%s, %b) : {dtype}[{rows}, 3]
  return %y
}}"""
    return parse(text.replace("stops=[5,", f"stops=[{rows},"))


def plain_dots(graph: Graph) -> int:
    after = split_columns(graph)
    verify(after)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=v.type.static_shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, wanted in zip(interpret(after, args), interpret(graph, args), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2)
    return [op.name for op in after.ops].count("dot")


@pytest.mark.parametrize(("contract", "parts"), [(1, HALVES), (0, HALVES), (1, EVERY_SECOND)])
def test_gate_and_up_of_one_matrix_are_two_products(contract: int, parts: tuple[str, str]) -> None:
    assert plain_dots(plain_product(contract, *parts)) == 2
    assert plain_dots(plain_product(contract, *parts, rows=1)) == 2


def test_plain_products_that_stay() -> None:
    assert plain_dots(plain_product(0, *EVERY_SECOND)) == 1, "columns beside one another"
    assert plain_dots(plain_product(1, *HALVES, dtype="f32")) == 1, "no 16 bits"
    apart = str(plain_product(1, *HALVES)).replace("mul(%s, %b)", "neg(%b)").replace("return %y", "return %y, %s")
    assert plain_dots(parse(apart)) == 1, "nothing reads both"


def test_one_kernel_combines_gate_and_up() -> None:
    program = lower(plain_product(1, *HALVES, rows=16), "cuda:sm_90", check=True).program
    assert len(program.kernels) == 1
