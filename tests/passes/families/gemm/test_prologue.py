"""What makes a matmul's operand on a GPU joins it where that costs less than memory, and else says why not."""

from __future__ import annotations

import pytest
from programs import group_kinds

from fusec.ir.parse import parse
from fusec.passes.families.gemm.prologue import RULE
from fusec.passes.pipeline import lower
from fusec.runtime.program import Lowered


def lowered(text: str) -> Lowered:
    return lower(parse(text), "cuda:sm_90", check=True)


def why(found: Lowered) -> list[str]:
    return [d.reason for d in found.program.declined if d.rule == RULE]


def int8(m: int, n: int = 4096, k: int = 4096) -> str:
    return f"""graph @dequantised(%x: bf16[{m}, {k}], %w: i8[{n}, {k}], %s: bf16[{n}, 1]) {{
  %a = cast(%w) : bf16[{n}, {k}]
  %b = mul(%a, %s) : bf16[{n}, {k}]
  %y = linear(%x, %b) : bf16[{m}, {n}]
  return %y
}}"""


def relu(m: int, n: int, k: int) -> str:
    return f"""graph @relu(%x: bf16[{m}, {k}], %w: bf16[{n}, {k}]) {{
  %a = relu(%x) : bf16[{m}, {k}]
  %y = linear(%a, %w) : bf16[{m}, {n}]
  return %y
}}"""


@pytest.mark.parametrize("m", [1, 16, 64])
def test_weights_of_few_rows_are_dequantised_on_their_way(m: int) -> None:
    found = lowered(int8(m))
    assert group_kinds(found) == ["gemm"]
    assert why(found) == []


def test_operands_that_are_read_often_are_made_first() -> None:
    found = lowered(relu(16384, 16384, 8192))
    assert group_kinds(found) == ["map", "gemm"]
    (reason,) = why(found)
    assert "each element of %a meets 16384 others" in reason


def test_what_others_read_too_is_made_once() -> None:
    text = """graph @two(%x: bf16[4, 64], %w: bf16[64, 32], %v: bf16[64, 48]) {
      %a = relu(%x) : bf16[4, 64]
      %y = matmul(%a, %w) : bf16[4, 32]
      %z = matmul(%a, %v) : bf16[4, 48]
      return %y, %z
    }"""
    assert group_kinds(lowered(text)) == ["map", "gemm", "gemm"]


def test_an_operand_that_is_an_output_is_stored() -> None:
    text = relu(4, 32, 64).replace("return %y", "return %y, %a")
    assert group_kinds(lowered(text)) == ["map", "gemm"]


def norm(rows: int, width: int) -> str:
    return f"""graph @norm(%x: bf16[{rows}, {width}], %g: bf16[{width}], %w: bf16[32, {width}]) {{
      %a = rms_norm(%x, %g) {{axes=[1], eps=1e-5}} : bf16[{rows}, {width}]
      %y = linear(%a, %w) : bf16[{rows}, 32]
      return %y
    }}"""


def test_a_norm_makes_its_operand_by_itself() -> None:
    found = lowered(norm(4, 64))
    assert group_kinds(found) == ["row", "gemm"]
    assert any("is a reduction" in reason for reason in why(found))


def test_one_row_is_normalised_by_each_block() -> None:
    assert group_kinds(lowered(norm(1, 64))) == ["gemm"]
    assert group_kinds(lowered(norm(1, 40000)))[0] == "row"


def test_one_row_for_products_side_by_side_is_normalised_first() -> None:
    text = norm(1, 64).replace("%w: bf16[32, 64]", "%w: bf16[32, 64], %v: bf16[32, 64]")
    text = text.replace("return %y", "%z = linear(%a, %v) : bf16[1, 32]\n return %y, %z")
    assert group_kinds(lowered(text)) == ["row", "gemm"]


def test_a_norm_whose_sum_others_read_is_a_kernel() -> None:
    text = norm(1, 64).replace("return %y", "%z = exp(%a) : bf16[1, 64]\n return %y, %z")
    assert group_kinds(lowered(text)) == ["row", "gemm"]


def test_an_epilogue_stays_with_the_product_before() -> None:
    text = """graph @chain(%x: bf16[4, 64], %w: bf16[64, 32], %v: bf16[32, 48]) {
      %h = matmul(%x, %w) : bf16[4, 32]
      %a = relu(%h) : bf16[4, 32]
      %y = matmul(%a, %v) : bf16[4, 48]
      return %y
    }"""
    found = lowered(text)
    assert group_kinds(found) == ["gemm", "gemm"]
    first, second = ([o.op for o in report.fused] for report in found.program.reports)
    assert "maximum" in first
    assert "maximum" not in second
