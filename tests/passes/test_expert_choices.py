# SPDX-License-Identifier: Apache-2.0
"""How many masks may hold at a position at once."""

from __future__ import annotations

import pytest

from fusec.ir.parse import parse
from fusec.passes.expert_choices import most_at_once

HEAD = "graph @g(%i: i64[6, 2], %j: i64[6, 2]) {\n"


def equal(name: str, index: str, number: int) -> str:
    return f"""  %e{name} = eq(%{index}, i64({number})) : bool[6, 2]
  %{name} = reshape(%e{name}) : bool[12]
"""


def any_of(name: str, number: int) -> str:
    return f"""  %e{name} = eq(%i, i64({number})) : bool[6, 2]
  %{name} = reduce_any(%e{name}) {{axes=[1]}} : bool[6]
"""


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (equal("a", "i", 0) + equal("b", "i", 3), 1),
        (equal("a", "i", 1) + equal("b", "i", 1), 0),
        (equal("a", "i", 0) + equal("b", "j", 1), 0),
        (any_of("a", 0) + any_of("b", 1), 2),
        (equal("a", "i", 0) + "  %b = logical_not(%a) : bool[12]\n", 0),
    ],
    ids=["numbers", "one number twice", "two arrays", "any of two", "no comparison"],
)
def test_masks(text: str, most: int) -> None:
    assert most_at_once(parse(f"{HEAD}{text}  return %a, %b\n}}")) == most
