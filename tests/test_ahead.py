"""Which sizes of a range get kernels of their own on a GPU."""

from __future__ import annotations

import pytest

from fusec.ahead import size_classes
from fusec.ir.index import Symbol, symbol
from fusec.ir.parse import parse
from fusec.runtime.dynamic import SizeClass

B, T = symbol("B", 2, 16), symbol("T", 2, 2048)

LINEAR = """graph @g<{symbols}>(%x: bf16[{rows}, 96]{device}, %w: bf16[32, 96]{device}) {{
  %y = linear(%x, %w) : bf16[{rows}, 32]{device}
  return %y
}}"""


def classes(rows: str, ranges: str, symbols: list[Symbol], device: str = "@cuda:0") -> list[SizeClass]:
    return size_classes(parse(LINEAR.format(symbols=ranges, rows=rows, device=device)), symbols)


def test_rows_of_matmuls_say_where_classes_end() -> None:
    found = classes("4, T", "T in [2, 2048]", [T])
    assert [(c.upto, dict(c.usual)) for c in found] == [
        *((n, {"T": n}) for n in (16, 64, 256, 1024)),
        (None, {}),
    ]


def test_the_longest_of_several_is_halved_to_fit() -> None:
    found = classes("B, T", "B in [2, 16], T in [2, 2048]", [B, T])
    assert [c.upto for c in found] == [64, 256, 1024, 4096, None]
    assert all(c.usual["B"] * c.usual["T"] <= (c.upto or 0) for c in found[:-1])


@pytest.mark.parametrize("device", ["", "@cuda:0"])
def test_one_class_is_enough(device: str) -> None:
    small = symbol("T", 2, 12)
    assert len(classes("4, T", "T in [2, 12]", [small], device)) == 1
    assert len(classes("4, T", "T in [2, 2048]", [T], device)) == (5 if device else 1)
