"""The order of axes in which intermediate results lie on a GPU."""

from __future__ import annotations

import pytest

from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.runtime.program import Slot

TEXT = """graph @heads(%x: bf16[2, 3, 5, 16], %w: bf16[{columns}, 7]) {{
  %f = cast(%x) : f32[2, 3, 5, 16]
  %m = reduce_max(%f) {{axes=[3]}} : f32[2, 3, 5]
  %k = reshape(%m) : f32[2, 3, 5, 1]
  %s = sub(%f, %k) : f32[2, 3, 5, 16]
  %n = cast(%s) : bf16[2, 3, 5, 16]
  %t = permute(%n) {{permutation=[{order}]}} : bf16[{shape}]
  %r = reshape(%t) : bf16[{rows}, {columns}]
  %y = dot(%r, %w) {{contract=[1]x[0]}} : bf16[{rows}, 7]
  return {outputs}
}}
"""


def result(order: str, shape: str, rows: int, columns: int, outputs: str = "%y") -> Slot:
    """The slot of what the matmul reads."""
    text = TEXT.format(order=order, shape=shape, rows=rows, columns=columns, outputs=outputs)
    slots = lower(parse(text), "cuda:sm_90").program.slots
    return next(slot for slot in slots if slot.name == "n")


def test_a_result_lies_as_its_reader_takes_it() -> None:
    assert result("0, 2, 1, 3", "2, 5, 3, 16", 10, 48).strides == (240, 16, 48, 1)


@pytest.mark.parametrize(
    "case",
    [
        ("0, 1, 3, 2", "2, 3, 16, 5", 96, 5),  # the last axis would not be
        ("0, 1, 2, 3", "2, 3, 5, 16", 30, 16),
    ],
    ids=str,
)
def test_others_are_row_major(case: tuple[str, str, int, int]) -> None:
    assert result(*case).strides == (240, 80, 16, 1)


def test_what_the_caller_gets_is_row_major() -> None:
    assert result("0, 2, 1, 3", "2, 5, 3, 16", 10, 48, "%y, %n").strides == (240, 80, 16, 1)
