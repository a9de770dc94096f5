"""Which exponentials need no exact function: those below a row's maximum, where elements are stored in 16 bits."""

from __future__ import annotations

import pytest
from losses import loss

from fusec.codegen.exponentials import below_maximum
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.tile.kernel import Kernel


def kernel(text: str) -> Kernel:
    (made,) = lower(parse(text), "cuda:sm_90").program.kernels
    return made


@pytest.mark.parametrize("columns", [700, 20000])
def test_all_of_a_loss(columns: int) -> None:
    assert below_maximum(kernel(loss("bf16", 3, columns)))


def test_elements_of_32_bits_are_exact() -> None:
    assert not below_maximum(kernel(loss("f32", 3, 700)))


def test_of_other_differences_none() -> None:
    """Of exponentials of other numbers than those that the maximum was taken of."""
    text = loss("bf16", 3, 700).replace("%m = reduce_max(%x)", "%n = neg(%x) : f32[3, 700]\n  %m = reduce_max(%n)")
    assert not below_maximum(kernel(text))


def test_a_minimum_is_none() -> None:
    assert not below_maximum(kernel(loss("bf16", 3, 700).replace("reduce_max", "reduce_min")))
