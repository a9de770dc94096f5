"""Index expressions in C++."""

from __future__ import annotations

import pytest

from fusec.codegen.cuda.indices import spell_index
from fusec.ir.index import Index, floordiv, maximum, mod, symbol

I = symbol("i", 0, 4095)  # noqa: E741
J = symbol("j", 0, 63)
N = symbol("n", -10, 10)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (I * 3 + 8, "(i * 3 + 8)"),
        (I - 8, "(i - 8)"),
        (mod(I, 96), "(i % 96)"),
        (floordiv(I + J, 7), "((i + j) / 7)"),
        (floordiv(N, 7), "floor_divide<int>(n, 7)"),
        (maximum(I, J), "maximum<int>(i, j)"),
        (I * 2**20, "i64(i) * 1048576"),
    ],
)
def test_spelling(index: Index, text: str) -> None:
    assert spell_index(index, {I: "i", J: "j", N: "n"}) == text
