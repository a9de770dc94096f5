# SPDX-License-Identifier: Apache-2.0
"""Terms of sums that a mask hides: they count as 0, so that a CPU need not read what they are made of.

One token that looks at a cache of keys and values is two sums of products (:mod:`fusec.passes.vectors`), and its mask
shows which places of the cache are filled. A sum of products that is only seen where a mask holds is 0 elsewhere; and
of a sum weighted with the softmax of :mod:`fusec.passes.canonicalize.attention` the terms that the mask hides are 0,
whatever their values hold: such keys are not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from fusec.ir.attributes import PermuteAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import bool_
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

_LINEAR = ("mul", "div", "add", "sub")
"""A score is its sum of products after some of these with a number."""


def skip_masked(graph: Graph) -> Graph:
    """Afterwards sums of products whose terms or results a mask hides add up ``select(mask, term, 0)``."""
    uses = Counter(v for op in graph.ops for v in op.operands)
    uses.update(graph.outputs)
    return rewrite(graph, (_hidden_sums(uses), hidden_terms))


def _hidden_sums(uses: Mapping[Value, int]) -> Rule:
    def seen_where(r: Rewriter) -> Outcome:
        """select(m, f(reduce_sum(a * b)), c) ⇒ select(m, f(reduce_sum(select(m, a * b, 0))), c)"""
        mask, *sides = r.operands
        for position, side in enumerate(sides):
            chain = _down_to_sum(r, side, uses)
            if chain is None or r.scalar(sides[1 - position]) is None:
                continue
            seen = _within(r, mask, side)
            if seen is None:
                continue
            seen = seen if position == 0 else r.emit("logical_not", seen, hint="seen")
            result = _summed_where(r, chain, r.broadcast(seen, side.type.shape))
            others = [result, sides[1]] if position == 0 else [sides[0], result]
            return r.emit("select", mask, *others)
        return None

    return Rule("seen-where", ("select",), (seen_where.__doc__ or "").strip(), seen_where)


def _within(r: Rewriter, mask: Value, side: Value) -> Value | None:
    """The mask with no more axes than what it picks; None where it picks an element of that at several positions."""
    shape = mask.type.shape
    extra = max(len(shape) - side.type.rank, 0)
    own = zip(reversed(shape), reversed(side.type.shape))
    if any(n != 1 for n in shape[:extra]) or any(n not in (1, extent) for n, extent in own):
        return None
    return r.reshape(mask, shape[extra:], hint="mask")


def _down_to_sum(r: Rewriter, value: Value, uses: Mapping[Value, int]) -> list[Op] | None:
    """The ops from a sum of products up to ``value``, none of which has another use; None where there is no such."""
    chain: list[Op] = []
    while uses[value] == 1 and (made := r.producer(value)) is not None:
        chain.insert(0, made)
        if made.name == "reduce_sum":
            return chain if r.producer(made.operands[0], "mul") is not None else None
        if made.name in _LINEAR:
            numbers = [r.scalar(x) is not None for x in made.operands]
            if sum(numbers) != 1:
                return None
            value = made.operands[numbers.index(False)]
        elif made.name in ("cast", "reshape", "permute"):
            (value,) = made.operands
        else:
            return None
    return None


def _summed_where(r: Rewriter, chain: list[Op], seen: Value) -> Value:
    """The chain's result with 0 for terms that are not seen; ``seen`` has the shape of the result."""
    total, *rest = chain
    for op in reversed(rest):
        seen = _before(r, op, seen)
    attributes = total.expect(ReduceAttributes)
    terms = total.operands[0]
    seen = r.broadcast(r.keep(seen, terms, attributes.axes), terms.type.shape, hint="seen")
    value = r.emit("reduce_sum", _where(r, seen, terms), attributes=attributes, hint="sum")
    before = total.result
    for op in rest:
        operands = tuple(value if x == before else x for x in op.operands)
        before, value = op.result, r.emit(op.name, *operands, attributes=op.attributes)
    return value


def _before(r: Rewriter, op: Op, seen: Value) -> Value:
    """A mask over an op's result as one over its operand."""
    match op.attributes:
        case PermuteAttributes(permutation):
            return r.permute(seen, [permutation.index(axis) for axis in range(len(permutation))])
        case _ if op.name == "reshape":
            return r.reshape(seen, op.operands[0].type.shape)
        case _:
            return seen


def _where(r: Rewriter, seen: Value, terms: Value) -> Value:
    zero = r.constant(0 if terms.type.dtype.is_integer else 0.0, terms)
    return r.emit("select", seen, terms, zero, hint="seen")


@rule("reduce_sum")
def hidden_terms(r: Rewriter) -> Outcome:
    """reduce_sum(weights * x) ⇒ reduce_sum(select(m, weights * x, 0)), where weights are 0 unless m"""
    terms = r.producer(r.operands[0], "mul")
    if terms is None:
        return None
    for weights in terms.operands:
        seen = _zero_unless(r, weights)
        if seen is not None:
            return r.emit("reduce_sum", _where(r, seen, terms.result), attributes=r.op.attributes)
    return None


def _zero_unless(r: Rewriter, value: Value) -> Value | None:
    """A mask of the value's shape without which attention's weights, or a view of them, are 0."""
    made = r.producer(value, "cast", "reshape", "permute", "broadcast", "div", "exp")
    if made is None:
        return None
    if made.name == "exp":
        return _mask_of_powers(r, made)
    if made.name == "div" and not _is_instead(r, made.operands[1], 0.0):
        return None
    seen = _zero_unless(r, made.operands[0])
    if seen is None or made.name == "cast":
        return seen
    if made.name == "div":
        return r.broadcast(seen, value.type.shape)
    return r.emit(made.name, seen, attributes=made.attributes, hint="seen")


def _mask_of_powers(r: Rewriter, powers: Op) -> Value | None:
    """m of ``exp(select(m, scores, -inf) - shift)`` with a shift that is not -inf: NaN there is NaN for all keys."""
    shifted = r.producer(powers.operands[0], "sub")
    if shifted is None:
        return None
    masked = r.producer(shifted.operands[0], "select")
    if masked is None or r.scalar(masked.operands[2]) != -inf or not _is_instead(r, shifted.operands[1], -inf):
        return None
    mask = masked.operands[0]
    return r.broadcast(mask, powers.result.type.shape, hint="seen") if mask.type.dtype == bool_ else None


def _is_instead(r: Rewriter, value: Value, number: float) -> bool:
    """Whether a value is another number where it would be ``number``, perhaps with axes of 1 put back."""
    made = r.producer(value, "select", "reshape", "broadcast")
    while made is not None and made.name != "select":
        made = r.producer(made.operands[0], "select", "reshape", "broadcast")
    if made is None:
        return False
    found = r.producer(made.operands[0], "eq")
    other = r.scalar(made.operands[1])
    return found is not None and r.scalar(found.operands[1]) == number and other is not None and other != number
