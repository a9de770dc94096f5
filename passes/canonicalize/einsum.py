# SPDX-License-Identifier: Apache-2.0
"""einsum as dots: one for each pair of operands, in an order that keeps the intermediates small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import opt_einsum

from fusec.ir.attributes import EinsumAttributes, StridedAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import Dim, bf16, contiguous_strides, f16, f32
from fusec.passes.canonicalize.composites import upcast
from fusec.passes.canonicalize.contractions import dot
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule


@dataclass(frozen=True)
class _Term:
    """A value with one letter an axis."""

    value: Value
    letters: str

    def extent(self, letter: str) -> Dim:
        return self.value.type.shape[self.letters.index(letter)]

    def axes(self, letters: str) -> tuple[int, ...]:
        return tuple(self.letters.index(letter) for letter in letters)


@rule("einsum")
def einsum(r: Rewriter) -> Outcome:
    """einsum("ab,bc->ac", x, y) ⇒ permute(dot(x, y)); letters in one operand alone are summed up before"""
    left, _, wanted = r.op.expect(EinsumAttributes).equation.partition("->")
    letters = left.split(",")
    exact = len(letters) == 2 and not _lonely(letters, wanted)
    terms: list[_Term] = []
    for value, axes in zip(r.operands, letters, strict=True):
        term = _diagonal(r, _Term(value if exact else upcast(r, value), axes))
        if isinstance(term, Reject):
            return term
        terms.append(term)
    for step in _path(terms, wanted):
        joined = [terms[k] for k in sorted(step)]
        terms = [t for k, t in enumerate(terms) if k not in step]
        while joined:
            outside = wanted + "".join(t.letters for t in (*terms, *joined[2:]))
            first, *second = joined[:2]
            first, second = _summed(r, first, outside, second), [_summed(r, t, outside, [first]) for t in second]
            contracted = _contraction(r, first, second[0], outside) if second else first
            joined = [contracted, *joined[2:]] if len(joined) > 1 else []
        terms.append(contracted)
    (result,) = terms
    return r.cast(r.permute(result.value, result.axes(wanted)), r.op.result.type.dtype)


def _lonely(terms: Sequence[str], wanted: str) -> bool:
    """True when a letter is to be summed over within one operand."""
    return any(
        letter not in wanted and all(letter not in o for n, o in enumerate(terms) if n != k)
        for k, term in enumerate(terms)
        for letter in term
    )


def _path(terms: Sequence[_Term], wanted: str) -> list[tuple[int, ...]]:
    """Which terms to join, one step after another; each step's result goes to the end of the list."""
    if len(terms) == 1:
        return [(0,)]
    if len(terms) == 2:
        return [(0, 1)]
    if not all(t.value.type.is_static for t in terms):
        return [(0, 1), *((0, n) for n in range(len(terms) - 2, 0, -1))]
    equation = ",".join(t.letters for t in terms) + "->" + wanted
    shapes = [t.value.type.static_shape for t in terms]
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")
    return [tuple(step) for step in path]


def _diagonal(r: Rewriter, term: _Term) -> _Term | Reject:
    """The term with each letter once: ``ii`` reads the diagonal, a strided view."""
    if len(set(term.letters)) == len(term.letters):
        return term
    if not term.value.type.is_static:
        return Reject(f"the diagonal of {term.value} needs static extents, not {term.value.type}")
    shape = term.value.type.static_shape
    steps: dict[str, int] = {}
    extents: dict[str, int] = {}
    for letter, extent, stride in zip(term.letters, shape, contiguous_strides(shape)):
        steps[letter] = steps.get(letter, 0) + stride
        extents[letter] = extent
    attributes = StridedAttributes(tuple(extents.values()), tuple(steps.values()))
    return _Term(r.emit("strided", term.value, attributes=attributes, hint="diagonal"), "".join(steps))


def _summed(r: Rewriter, term: _Term, outside: str, partner: Sequence[_Term]) -> _Term:
    """The term without the letters that nothing else has."""
    needed = outside + "".join(t.letters for t in partner)
    lonely = "".join(letter for letter in term.letters if letter not in needed)
    if not lonely:
        return term
    total = r.reduce("reduce_sum", term.value, sorted(term.axes(lonely)), hint="sum")
    return _Term(total, "".join(letter for letter in term.letters if letter in needed))


def _contraction(r: Rewriter, a: _Term, b: _Term, outside: str) -> _Term:
    """The contraction of two terms, summed over the letters that both have and nothing outside needs."""
    shared = [letter for letter in a.letters if letter in b.letters]
    contracted = "".join(letter for letter in shared if letter not in outside)
    batch = "".join(letter for letter in shared if letter in outside)
    own_a = "".join(letter for letter in a.letters if letter not in shared)
    own_b = "".join(letter for letter in b.letters if letter not in shared)
    letters = batch + own_a + own_b
    if not contracted:
        return _Term(r.emit("mul", _spread(r, a, letters), _spread(r, b, letters)), letters)
    axes = (a.axes(contracted), b.axes(contracted))
    left, right = _as_multiplied(r, a.value, b.value)
    return _Term(dot(r, left, right, axes, (a.axes(batch), b.axes(batch)), dtype=a.value.type.dtype), letters)


def _as_multiplied(r: Rewriter, *pair: Value) -> tuple[Value, ...]:
    """Operands of a contraction, of several of half types as the library multiplies them: in that type, so that what
    was made of others is rounded. Sums of one operand alone are not."""
    kind = r.op.result.type.dtype
    if kind not in (f16, bf16) or len(r.operands) < 3 or any(v.type.dtype is not f32 for v in pair):
        return pair
    makers = [r.producer(v) for v in pair]
    if any(made is not None and made.name == "reduce_sum" for made in makers):
        return pair
    given = (made.operands[0] if made is not None and made.name == "cast" else None for made in makers)
    return tuple(x if x is not None and x.type.dtype is kind else r.cast(v, kind) for v, x in zip(pair, given))


def _spread(r: Rewriter, term: _Term, letters: str) -> Value:
    """The term's axes in the order of ``letters``, with extents of 1 for those that it lacks."""
    own = [letter for letter in letters if letter in term.letters]
    value = r.permute(term.value, term.axes("".join(own)))
    return r.reshape(value, [term.extent(k) if k in term.letters else 1 for k in letters], hint="spread")


EINSUM_RULES: tuple[Rule, ...] = (einsum,)
