# SPDX-License-Identifier: Apache-2.0
"""Where a function needs no more digits than bf16 keeps.

A factor's relative error is that of the product, and rounding to bf16 makes one of 2**-8: a factor with an error of
2**-13 on the way to it is as good as an exact one. Sums pass nothing on, since they may cancel.
"""

from __future__ import annotations

from fusec.codegen.tvm.context import Numbers
from fusec.ir.types import bf16
from fusec.tile.scalar import Apply, ScalarExpr

_FACTORS = ("mul", "div", "neg", "abs", "copy", "cast")


def short_nodes(stored: ScalarExpr, numbers: Numbers) -> frozenset[int]:
    """The numbers of nodes that only factors of a value rounded to bf16 are made of, the value itself among them."""
    exact: set[int] = set()
    short: set[int] = set()
    waiting = [(stored, True)]
    while waiting:
        e, is_factor = waiting.pop()
        number = numbers.number(e)
        found = short if is_factor else exact
        if number in found:
            continue
        found.add(number)
        if isinstance(e, Apply):
            passes = is_factor and e.op in _FACTORS and (e.op != "cast" or e.dtype.is_float)
            waiting += [(a, passes or (e.op == "cast" and e.dtype is bf16)) for a in e.args]
    return frozenset(short - exact)
