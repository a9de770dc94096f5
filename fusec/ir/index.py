# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic: integer expressions over symbols, kept in one simplified, interned form.

Dimensions (``B``), loop variables and the index maps of views are all of this kind. An expression is a
sum ``c + k1*a1 + k2*a2 + ...`` of integer multiples of atoms; an atom is a symbol, a floor division, a
remainder, a minimum, a maximum or a product of atoms. Building one simplifies it with the ranges of the
symbols in it, so a reshape and its inverse cancel. Equal expressions are the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, TypeVar, Union
from weakref import ref

from fusec.ir import interval
from fusec.ir.interval import Range

Index = Union[int, "Expr"]
E = TypeVar("E", bound="Expr")


class Expr:
    """An interned integer expression. Compare with ``is`` or ``==``; both mean the same."""

    __slots__ = ("__weakref__", "_bounds", "_text", "key")
    _table: ClassVar[dict[object, ref[Expr]]] = {}
    key: tuple[object, ...]
    _bounds: Range
    _text: str

    def __add__(self, other: Index) -> Index:
        return add(self, other)

    def __radd__(self, other: Index) -> Index:
        return add(other, self)

    def __sub__(self, other: Index) -> Index:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Index) -> Index:
        return add(other, mul(self, -1))

    def __mul__(self, other: Index) -> Index:
        return mul(self, other)

    def __rmul__(self, other: Index) -> Index:
        return mul(other, self)

    def __neg__(self) -> Index:
        return mul(self, -1)

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other)

    def __mod__(self, other: Index) -> Index:
        return mod(self, other)

    def __str__(self) -> str:
        text: str | None = getattr(self, "_text", None)
        if text is None:
            text = self._text = self._spell()
        return text

    def __repr__(self) -> str:
        return str(self)

    def _spell(self) -> str:
        """The text, which is built once: sums are sorted by it."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[[str], Index], tuple[str]]:
        raise TypeError("index expressions are saved as text, not pickled")


class Symbol(Expr):
    """A named integer with an inclusive range.

    ``hi`` may be an expression: the index of an axis of ``B`` elements ends at ``B - 1``.
    """

    __slots__ = ("hi", "lo", "name")
    name: str
    lo: int | None
    hi: Index | None

    def _spell(self) -> str:
        return self.name


class Sum(Expr):
    """``constant + sum(coefficient * atom)``, the atoms in a fixed order and no coefficient 0."""

    __slots__ = ("constant", "terms")
    constant: int
    terms: tuple[tuple[Expr, int], ...]

    def _spell(self) -> str:
        parts: list[str] = []
        for atom, k in self.terms:
            text = str(atom) if abs(k) == 1 else f"{abs(k)}*{atom}"
            sign = "-" if k < 0 else "+"
            parts.append(f"{sign} {text}" if parts else (f"-{text}" if k < 0 else text))
        if self.constant or not parts:
            sign = "-" if self.constant < 0 else "+"
            parts.append(f"{sign} {abs(self.constant)}" if parts else str(self.constant))
        return parts[0] if len(parts) == 1 and parts[0].isidentifier() else f"({' '.join(parts)})"


class _Division(Expr):
    __slots__ = ("divisor", "value")
    sign: ClassVar[str]
    value: Expr
    divisor: Index

    def _spell(self) -> str:
        divisor = f"({self.divisor})" if isinstance(self.divisor, Product) else str(self.divisor)
        return f"({self.value} {self.sign} {divisor})"


class FloorDiv(_Division):
    """``floor(value / divisor)``."""

    __slots__ = ()
    sign = "//"


class Mod(_Division):
    """``value - divisor * floor(value / divisor)``, which has the divisor's sign."""

    __slots__ = ()
    sign = "%"


class Extremum(Expr):
    """The minimum or maximum of two expressions."""

    __slots__ = ("a", "b", "largest")
    a: Index
    b: Index
    largest: bool

    def _spell(self) -> str:
        return f"{'max' if self.largest else 'min'}({self.a}, {self.b})"


class Product(Expr):
    """A product of atoms, none of them a number."""

    __slots__ = ("factors",)
    factors: tuple[Expr, ...]

    def _spell(self) -> str:
        return "*".join(map(str, self.factors))


def _intern(cls: type[E], key: tuple[object, ...], **fields: object) -> E:
    """The expression of this kind and key. Those that nothing holds any more are forgotten."""
    full = (cls, *key)
    interned = Expr._table.get(full)
    found = None if interned is None else interned()
    if found is None:
        made = cls()
        made.key = full
        for name, value in fields.items():
            setattr(made, name, value)
        found = _entered(made)
    assert isinstance(found, cls)
    return found


def _entered(made: Expr) -> Expr:
    """The expression itself, or the equal one that another thread entered meanwhile."""
    own = ref(made, partial(_forget, made.key))
    while True:
        interned = Expr._table.setdefault(made.key, own)
        found = interned()
        if found is not None:
            return found
        _forget(made.key, interned)


def _forget(key: object, gone: ref[Expr], table: dict[object, ref[Expr]] = Expr._table) -> None:
    """The table is the function's own: expressions go after the module's names when Python ends."""
    if table.get(key) is gone:
        del table[key]


def symbol(name: str, lo: int | None = 0, hi: Index | None = None) -> Symbol:
    """The symbol of this name and inclusive range. Two ranges of one name are two symbols."""
    return _intern(Symbol, (name, lo, hi), name=name, lo=lo, hi=hi)


def _order(e: Index) -> tuple[str, int]:
    """By text; two symbols of one name are told apart by identity."""
    return str(e), id(e)


def _term_order(term: tuple[Expr, int]) -> tuple[str, int]:
    atom = term[0]
    return getattr(atom, "_text", None) or str(atom), id(atom)


def terms_of(e: Index) -> tuple[int, dict[Expr, int]]:
    """The constant of a sum, and the coefficient of each atom."""
    constant, terms = _ordered_terms(e)
    return constant, dict(terms)


def _ordered_terms(e: Index) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    if isinstance(e, Sum):
        return e.constant, e.terms
    return (e, ()) if isinstance(e, int) else (0, ((e, 1),))


def _make_sum(constant: int, terms: dict[Expr, int]) -> Index:
    if 0 in terms.values():
        terms = {a: k for a, k in terms.items() if k != 0}
    for atom in terms:
        if isinstance(atom, (Mod, Product)):
            constant, terms = _join_remainders(constant, terms)
            break
    return _sum_of(constant, tuple(sorted(terms.items(), key=_term_order)))


def _sum_of(constant: int, terms: tuple[tuple[Expr, int], ...]) -> Index:
    """The sum of terms that are in order, none of which is 0 or joins another."""
    if not terms:
        return constant
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return _intern(Sum, (constant, tuple([(id(a), k) for a, k in terms])), constant=constant, terms=terms)


def _join_remainders(constant: int, terms: dict[Expr, int]) -> tuple[int, dict[Expr, int]]:
    """``k*c*(x // c) + k*(x % c) => k*x``, which undoes a reshape; ``k`` and ``c`` may hold symbols."""
    for atom, k in list(terms.items()):
        remainder, others = _remainder_in(atom)
        if remainder is None or atom not in terms:
            continue
        whole = mul(mul(floordiv(remainder.value, remainder.divisor), remainder.divisor), others)
        joined = _quotient_of(remainder, k, terms) if atom is remainder else None
        if joined is not None:
            rest = {a: v for a, v in terms.items() if a is not joined and a is not atom}
            return terms_of(add(_make_sum(constant, rest), mul(joined.value, k)))
        q_constant, q_terms = terms_of(whole)
        if q_terms and all(terms.get(a) == k * qk for a, qk in q_terms.items()):
            rest = {a: v for a, v in terms.items() if a not in q_terms and a is not atom}
            base = _make_sum(constant - k * q_constant, rest)
            return terms_of(add(base, mul(mul(remainder.value, others), k)))
    return constant, terms


def _quotient_of(remainder: Mod, k: int, terms: dict[Expr, int]) -> FloorDiv | None:
    """The quotient that ``k*(x % c)`` completes: of ``x``, or of what differs from it by a multiple of ``c``, as
    ``y % (c*n)`` does from ``y``."""
    c = remainder.divisor
    if not isinstance(c, int):
        return None
    for atom, factor in terms.items():
        if isinstance(atom, FloorDiv) and atom.divisor == c and factor == k * c and mod(atom.value, c) is remainder:
            return atom
    return None


def _remainder_in(atom: Expr) -> tuple[Mod | None, Index]:
    """The remainder that an atom is, or is a multiple of, and the other factors."""
    if isinstance(atom, Mod):
        return atom, 1
    found = [f for f in atom.factors if isinstance(f, Mod)] if isinstance(atom, Product) else []
    if len(found) != 1:
        return None, 1
    assert isinstance(atom, Product)
    return found[0], product(f for f in atom.factors if f is not found[0])


def add(a: Index, b: Index) -> Index:
    ca, ta = _ordered_terms(a)
    cb, tb = _ordered_terms(b)
    if not ta or not tb:
        return _sum_of(ca + cb, ta or tb)
    terms = dict(ta)
    for atom, k in tb:
        terms[atom] = terms.get(atom, 0) + k
    return _make_sum(ca + cb, terms)


def sub(a: Index, b: Index) -> Index:
    return add(a, mul(b, -1))


def mul(a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Expr)
    if isinstance(b, int):
        constant, terms = _ordered_terms(a)
        return _sum_of(constant * b, tuple([(atom, k * b) for atom, k in terms]) if b else ())
    ca, ta = _ordered_terms(a)
    cb, tb = _ordered_terms(b)
    total: Index = ca * cb
    for x, kx in ta:
        total = add(total, mul(x, kx * cb))
        for y, ky in tb:
            total = add(total, mul(_product(x, y), kx * ky))
    for y, ky in tb:
        total = add(total, mul(y, ky * ca))
    return total


def _product(x: Expr, y: Expr) -> Expr:
    factors: list[Expr] = []
    for e in (x, y):
        factors.extend(e.factors if isinstance(e, Product) else (e,))
    ordered = tuple(sorted(factors, key=_order))
    return _intern(Product, tuple(map(id, ordered)), factors=ordered)


def product(factors: Iterable[Index]) -> Index:
    """The product of integers and expressions; 1 for none."""
    total: Index = 1
    for factor in factors:
        total = mul(total, factor)
    return total


def _split(e: Index, divisor: int) -> tuple[Index, Index]:
    """``e = divisor * quotient + rest`` with as much in the quotient as divides evenly."""
    constant, terms = terms_of(e)
    whole = {a: k // divisor for a, k in terms.items() if k % divisor == 0}
    rest = {a: k for a, k in terms.items() if k % divisor != 0}
    return _make_sum(constant // divisor, whole), _make_sum(constant % divisor, rest)


def floordiv(a: Index, b: Index) -> Index:
    """Floor division, as Python's ``//``. ZeroDivisionError for a divisor of 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not isinstance(b, int):
        whole, left = _split_by(a, b)
        if isinstance(left, int):
            left = _intern(Sum, (left, ()), constant=left, terms=())
        return whole if left is None else add(whole, _intern(FloorDiv, (id(left), id(b)), value=left, divisor=b))
    if b == 1:
        return a
    if b < 0:
        return floordiv(mul(a, -1), -b)
    quotient, rest = _split(a, b)
    lo, hi = bounds(rest)
    if lo is not None and hi is not None and lo // b == hi // b:
        return add(quotient, lo // b)
    assert isinstance(rest, Expr)
    if isinstance(rest, FloorDiv) and isinstance(rest.divisor, int):
        return add(quotient, floordiv(rest.value, rest.divisor * b))
    return add(quotient, _intern(FloorDiv, (id(rest), b), value=rest, divisor=b))


def _split_by(e: Index, divisor: Expr) -> tuple[Index, Index | None]:
    """``e // divisor`` as a whole part and what is still to be divided, None where that is known to give nothing."""
    parts = _monomial(divisor)
    if parts is None:
        return (1, None) if e is divisor else (0, e)
    scale, factors = parts
    constant, terms = terms_of(e)
    whole: Index = 0
    rest: Index = constant
    for atom, k in terms.items():
        left = list(atom.factors if isinstance(atom, Product) else (atom,))
        divides = k % scale == 0
        for factor in factors:
            divides = divides and factor in left
            if divides:
                left.remove(factor)
        if divides:
            whole = add(whole, mul(product(left), k // scale))
        else:
            rest = add(rest, mul(atom, k))
    for quotient in (0, -1):
        shifted = sub(rest, mul(divisor, quotient))
        if is_at_least(shifted, 0) and is_below(shifted, divisor):
            return add(whole, quotient), None
    return whole, rest


def _monomial(e: Expr) -> tuple[int, tuple[Expr, ...]] | None:
    """``(k, factors)`` where ``e`` is ``k`` times a product of atoms and never below 1, else None."""
    low = bounds(e)[0]
    if low is None or low < 1:
        return None
    if isinstance(e, Sum):
        if e.constant or len(e.terms) != 1:
            return None
        ((atom, k),) = e.terms
        return k, atom.factors if isinstance(atom, Product) else (atom,)
    return 1, e.factors if isinstance(e, Product) else (e,)


def is_at_least(e: Index, low: Index) -> bool:
    """True where ``e >= low`` is certain."""
    least = tight_bounds(sub(e, low))[0]
    return least is not None and least >= 0


def is_below(e: Index, end: Index) -> bool:
    """True where ``e < end`` is certain."""
    return is_at_least(sub(end, 1), e)


def tight_bounds(e: Index) -> Range:
    """:func:`bounds`, with the ends of symbols that end at an expression cancelled against the rest."""
    found = bounds(e)
    if isinstance(e, int) or not any(isinstance(s.hi, Expr) for s in symbols_of(e)):
        return found
    return interval.both(found, (bounds(_outermost(e, largest=False))[0], bounds(greatest(e))[1]))


def greatest(e: Index) -> Index:
    """An expression that ``e`` does not exceed, in which symbols that end at an expression are replaced by it."""
    return _outermost(e, largest=True)


def _outermost(e: Index, *, largest: bool) -> Index:
    match e:
        case Symbol():
            if isinstance(e.hi, Expr):
                return e.hi if largest else (e.lo if e.lo is not None else e)
            return e
        case Sum():
            total: Index = e.constant
            for atom, k in e.terms:
                total = add(total, mul(_outermost(atom, largest=largest == (k > 0)), k))
            return total
        case Mod() if isinstance(e.divisor, Expr) and (bounds(e.divisor)[0] or 0) >= 1:
            return sub(e.divisor, 1) if largest else 0
        case FloorDiv() if (bounds(e.divisor)[0] or 0) >= 1:
            return floordiv(_outermost(e.value, largest=largest), e.divisor)
        case Product() if all((bounds(f)[0] or -1) >= 0 for f in e.factors):
            return product(_outermost(f, largest=largest) for f in e.factors)
    return e


def mod(a: Index, b: Index) -> Index:
    """Remainder with the divisor's sign, as Python's ``%``."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if not isinstance(b, int):
        whole, left = _split_by(a, b)
        if left is None:
            return sub(a, mul(whole, b))
        if isinstance(left, int):
            left = _intern(Sum, (left, ()), constant=left, terms=())
        return _intern(Mod, (id(left), id(b)), value=left, divisor=b)
    if b in (1, -1):
        return 0
    if b < 0:
        return mul(mod(mul(a, -1), -b), -1)
    _, rest = _split(a, b)
    lo, hi = bounds(rest)
    if lo is not None and hi is not None and lo // b == hi // b:
        return sub(rest, (lo // b) * b)
    assert isinstance(rest, Expr)
    if isinstance(rest, Mod) and isinstance(rest.divisor, int) and rest.divisor % b == 0:
        return mod(rest.value, b)
    return _intern(Mod, (id(rest), b), value=rest, divisor=b)


def minimum(a: Index, b: Index) -> Index:
    return _extremum(a, b, largest=False)


def maximum(a: Index, b: Index) -> Index:
    return _extremum(a, b, largest=True)


def _extremum(a: Index, b: Index, *, largest: bool) -> Index:
    lo, hi = tight_bounds(sub(a, b))
    if lo is not None and lo >= 0:
        return a if largest else b
    if hi is not None and hi <= 0:
        return b if largest else a
    first, second = sorted((a, b), key=_order)
    key = tuple(x if isinstance(x, int) else id(x) for x in (first, second))
    return _intern(Extremum, (largest, *key), a=first, b=second, largest=largest)


def bounds(e: Index) -> Range:
    """Inclusive lower and upper bound of ``e`` over the ranges of its symbols."""
    if isinstance(e, int):
        return e, e
    cached: Range | None = getattr(e, "_bounds", None)
    if cached is None:
        cached = _bounds(e)
        e._bounds = cached
    return cached


def _bounds(e: Expr) -> Range:
    match e:
        case Symbol():
            return e.lo, (e.hi if e.hi is None else bounds(e.hi)[1])
        case Sum():
            return interval.scaled_sum(e.constant, ((bounds(atom), k) for atom, k in e.terms))
        case FloorDiv() if isinstance(e.divisor, int):
            lo, hi = bounds(e.value)
            return (None if lo is None else lo // e.divisor), (None if hi is None else hi // e.divisor)
        case FloorDiv():
            return interval.quotient(bounds(e.value), bounds(e.divisor))
        case Mod():
            return interval.remainder(bounds(e.divisor))
        case Extremum():
            return interval.extremum(bounds(e.a), bounds(e.b), largest=e.largest)
        case Product():
            return interval.product([bounds(f) for f in e.factors])
    raise AssertionError(type(e))


def symbols_of(e: Index) -> set[Symbol]:
    """Every symbol in ``e``."""
    match e:
        case int():
            return set()
        case Symbol():
            return {e}
        case Sum():
            return {s for atom, _ in e.terms for s in symbols_of(atom)}
        case FloorDiv() | Mod():
            return symbols_of(e.value) | symbols_of(e.divisor)
        case Extremum():
            return symbols_of(e.a) | symbols_of(e.b)
        case Product():
            return {s for f in e.factors for s in symbols_of(f)}
    raise AssertionError(type(e))
