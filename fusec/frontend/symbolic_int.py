# SPDX-License-Identifier: Apache-2.0
"""An integer followed through a function, to learn whether what it does holds for a range of integers.

It may be added to, subtracted from, multiplied, divided, compared where the answer is the same all over the range,
and given to the library's functions, an index of an array among them. All else that Python makes of an integer (a
count, a key, a text) needs its value, and is a DimensionError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusec.errors import DimensionError
from fusec.frontend.readings import RUNNING
from fusec.frontend.source import user_location
from fusec.ir.index import Index, add, bounds, floordiv, mod, mul, sub


def _arithmetic(rule: Callable[[Index, Index], Index], combine: Callable[[int, int], int]) -> Any:
    def forward(self: SymbolicInt, other: Any) -> Any:
        return self._with(other, rule, combine)

    def backward(self: SymbolicInt, other: Any) -> Any:
        return self._with(other, lambda a, b: rule(b, a), lambda a, b: combine(b, a))

    return forward, backward


def _comparison(below: bool, strict: bool) -> Any:
    """``self < other`` and its kin."""

    def compare(self: SymbolicInt, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return self.is_below(other, strict) if below else not self.is_below(other, not strict)

    return compare


def _refused(what: str) -> Any:
    """An operator that needs the value; of arrays and the like it is theirs."""

    def needed(self: SymbolicInt, *others: Any) -> Any:
        if all(_is_followed(other) or isinstance(other, int | float | complex | None) for other in others):
            raise self._needed(what)
        return NotImplemented

    return needed


_NEVER_EQUAL = (type(None), str, bytes, tuple, list, dict)


class SymbolicInt:
    """Stands for a plain integer, ``value``, that is ``expression`` of the symbols. ``isinstance(x, int)`` holds."""

    __slots__ = ("expression", "value")

    def __init__(self, expression: Index, value: int) -> None:
        self.expression = expression
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def is_below(self, other: Any, strict: bool) -> bool:
        """Whether this is less than ``other`` (or equal, unless ``strict``), where that is so all over the range."""
        low, high = bounds(sub(self.expression, _expression(other)))
        edge = -1 if strict else 0
        if high is not None and high <= edge:
            return True
        if low is not None and low > edge:
            return False
        raise self._needed("a comparison that is not decided all over the range")

    def _with(self, other: Any, rule: Callable[[Index, Index], Index], combine: Callable[[int, int], int]) -> Any:
        if type(other) is not int and not _is_followed(other):
            return NotImplemented
        return type(self)(rule(self.expression, _expression(other)), combine(self.value, value_of(other)))

    def _needed(self, what: str) -> DimensionError:
        running = RUNNING.get()
        if running is not None:
            return running.refuse(f"{what} needs its value")
        return DimensionError(f"an integer can't be symbolic: {what} needs its value", user_location())

    __add__, __radd__ = _arithmetic(add, lambda a, b: a + b)
    __sub__, __rsub__ = _arithmetic(sub, lambda a, b: a - b)
    __mul__, __rmul__ = _arithmetic(mul, lambda a, b: a * b)

    def __neg__(self) -> Any:
        return 0 - self

    __lt__ = _comparison(below=True, strict=True)
    __le__ = _comparison(below=True, strict=False)
    __gt__ = _comparison(below=False, strict=True)
    __ge__ = _comparison(below=False, strict=False)

    def __floordiv__(self, other: Any) -> Any:
        return self._by(other, floordiv, lambda a, b: a // b)

    def __mod__(self, other: Any) -> Any:
        return self._by(other, mod, lambda a, b: a % b)

    def _by(self, other: Any, rule: Callable[[Index, int], Index], combine: Callable[[int, int], int]) -> Any:
        if type(other) is not int or other <= 0:
            raise self._needed("a division by it, or by what is not a positive number")
        return type(self)(rule(self.expression, other), combine(self.value, other))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _NEVER_EQUAL):
            return False
        if not isinstance(other, int):
            raise self._needed(f"a comparison with a {type(other).__name__}")
        low, high = bounds(sub(self.expression, _expression(other)))
        if low == high == 0:
            return True
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        raise self._needed("a comparison that is not decided all over the range")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        raise self._needed("a key or a set")

    def __index__(self) -> int:
        raise self._needed("a count, a size or an index of what is no traced array")

    def __int__(self) -> int:
        raise self._needed("int()")

    def __float__(self) -> float:
        raise self._needed("arithmetic with floats")

    def __repr__(self) -> str:
        raise self._needed("a text")

    def __format__(self, spec: str) -> str:
        raise self._needed("a text")

    def __getattr__(self, name: str) -> Any:
        if name in _OF_INTEGERS:
            raise self._needed(f".{name}")
        raise AttributeError(f"'int' object has no attribute {name!r}")


_OF_INTEGERS = frozenset(dir(0)) - {"__array__"}
for _name in ("truediv", "divmod", "pow", "and", "or", "xor", "lshift", "rshift"):
    for _operator in (f"__{_name}__", f"__r{_name}__"):
        setattr(SymbolicInt, _operator, _refused(_name))
for _name in ("__rfloordiv__", "__rmod__", "__abs__", "__invert__", "__round__", "__trunc__", "__floor__", "__ceil__"):
    setattr(SymbolicInt, _name, _refused(_name))


def _expression(other: Any) -> Index:
    return other.expression if _is_followed(other) else int(other)


def _is_followed(item: Any) -> bool:
    return issubclass(type(item), SymbolicInt)  # isinstance() would ask for the class that it pretends to have


def value_of(item: Any) -> Any:
    """The plain integer in the place of one that is followed; in slices and containers, too."""
    kind = type(item)
    if _is_followed(item):
        return item.value
    if kind in (tuple, list) or (issubclass(kind, tuple) and holds_followed(tuple(item))):
        return kind(map(value_of, item))
    if kind is dict:
        return {key: value_of(part) for key, part in item.items()}
    if kind is slice:
        return slice(value_of(item.start), value_of(item.stop), value_of(item.step))
    return item


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which gets the values of integers that are followed."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*value_of(args), **value_of(kwargs))

    return call


def holds_followed(item: Any) -> bool:
    """Whether :func:`value_of` would change anything."""
    kind = type(item)
    if kind is list or issubclass(kind, tuple):
        return any(map(holds_followed, item))
    if kind is dict:
        return any(map(holds_followed, item.values()))
    if kind is slice:
        return any(map(holds_followed, (item.start, item.stop, item.step)))
    return _is_followed(item)
