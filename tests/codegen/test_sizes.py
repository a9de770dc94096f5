"""Sizes and what depends on them, in the JSON of a saved module."""

from __future__ import annotations

import pytest

from fusec.codegen.sizes import indices_from_json, indices_to_json, sizes_from_json, sizes_to_json
from fusec.ir.index import add, floordiv, mul, symbol

B, T = symbol("B", 2, 64), symbol("T", 2, 2048)


def test_what_is_written_is_read() -> None:
    sizes = sizes_from_json(sizes_to_json((B, T)))
    assert sizes == (B, T)
    indices = (7, mul(B, T), floordiv(add(mul(T, 4), 63), 64))
    assert indices_from_json(indices_to_json(indices), sizes) == indices


def test_a_size_that_the_kernel_does_not_take() -> None:
    with pytest.raises(KeyError):
        indices_from_json(indices_to_json((mul(B, T),)), (B,))
