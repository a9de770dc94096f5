# SPDX-License-Identifier: Apache-2.0
"""First-order recurrences in a loop that was unrolled by its capture: ``h = a[t]*h + b[t]``, step after step."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.attributes import CastAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import NUMBER

FEWEST_STEPS = 8
"""Steps below which one map of all of them is as good."""

Path = tuple[str, int, int]
"""How a step is spelled: add or sub, which operand the product is, and which operand of that the value before is."""


@dataclass(frozen=True)
class Step:
    """One step: the value before, what it is multiplied with, and what is added (or subtracted).

    The factor may be of a wider dtype, in which the step multiplies.
    """

    before: Value
    factor: Value
    term: Value


@dataclass(frozen=True)
class Chain:
    """Steps, each from the result of the one before. ``subtracts``: a step is ``a*h - b``."""

    results: tuple[Value, ...]
    steps: tuple[Step, ...]
    subtracts: bool

    @property
    def start(self) -> Value:
        """What the first step starts from."""
        return self.steps[0].before


def find_chains(graph: Graph) -> list[Chain]:
    """Chains of at least ``FEWEST_STEPS`` steps of one spelling and type, by where they begin.

    Each value is a result of one of them at most. Takes time that is linear in the graph's ops.
    """
    producers = graph.producers()
    length: dict[tuple[Value, Path], int] = {}
    steps: dict[tuple[Value, Path], Step] = {}
    for op in graph.ops:
        for path, step in _steps(op, producers):
            key = (op.result, path)
            steps[key] = step
            before = length.get((step.before, path), 0) if step.before.type == op.result.type else 0
            length[key] = before + 1
    order = {op.result: n for n, op in enumerate(graph.ops) if len(op.results) == 1}
    used: set[Value] = set()
    found: list[Chain] = []
    for end, path in sorted(length, key=lambda key: -length[key]):
        if length[end, path] < FEWEST_STEPS:
            break
        chain = _back_from(end, path, steps, used)
        if len(chain.results) >= FEWEST_STEPS:
            used.update(chain.results)
            found.append(chain)
    return sorted(found, key=lambda chain: order[chain.results[0]])


def _back_from(end: Value, path: Path, steps: dict[tuple[Value, Path], Step], used: set[Value]) -> Chain:
    results: list[Value] = []
    value = end
    while (value, path) in steps and value not in used and value.type == end.type:
        results.append(value)
        value = steps[value, path].before
    results.reverse()
    return Chain(tuple(results), tuple(steps[v, path] for v in results), path[0] == "sub")


def _steps(op: Op, producers: dict[Value, Op]) -> list[tuple[Path, Step]]:
    """The ways in which an op may be a step."""
    if op.name not in ("add", "sub") or op.result.type.dtype.kind not in NUMBER:
        return []
    found: list[tuple[Path, Step]] = []
    for side in (0, 1) if op.name == "add" else (0,):
        product, term = producers.get(op.operands[side]), op.operands[1 - side]
        widened = product is not None and product.name == "cast" and product.expect(CastAttributes).implied
        if product is not None and widened:  # a library's call that multiplies in f32
            product = producers.get(product.operands[0])
        if product is None or product.name != "mul":
            continue
        for which in (0, 1):
            before = (
                _narrow(product.operands[which], op, producers)
                if widened
                else _with_its_digits(product.operands[which], producers)
            )
            step = Step(before, product.operands[1 - which], term)
            found.append(((op.name, side, which), step))
    return found


def _with_its_digits(value: Value, producers: dict[Value, Op]) -> Value:
    """What a value of f32 was before a library's call rounded it to a half type, and the next one widened it."""
    wide = producers.get(value)
    half = producers.get(wide.operands[0]) if wide is not None and wide.name == "cast" else None
    if half is None or half.name != "cast" or not half.expect(CastAttributes).implied:
        return value
    inner = half.operands[0]
    return inner if inner.type == value.type else value


def _narrow(value: Value, step: Op, producers: dict[Value, Op]) -> Value:
    """What a value was before it was widened from the dtype of a step's result."""
    wide = producers.get(value)
    cast = wide is not None and wide.name == "cast" and wide.operands[0].type.dtype == step.result.type.dtype
    return wide.operands[0] if wide is not None and cast else value
