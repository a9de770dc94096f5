# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions in C++: one expression, what it uses twice in variables before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import assert_never

from fusec.codegen.cuda.numbering import Numbering, children
from fusec.codegen.cuda.spelling import (
    ANY,
    BOOLS,
    COARSE,
    DOUBLES,
    EXACT,
    FAST,
    FLOATS,
    INTEGERS,
    is_widened,
    literal,
    memory_type,
    register_type,
)
from fusec.codegen.cuda.text import Names
from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index
from fusec.ir.indexing import needs_int64
from fusec.ir.types import DType, f32
from fusec.tile.kernel import Kernel
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ROUNDINGS = frozenset({"floor", "ceil", "round", "trunc"})


class Style:
    """How exact a kernel's functions must be: by its outputs' rounding."""

    def __init__(self, kernel: Kernel) -> None:
        outputs = kernel.parameters[len(kernel.parameters) - kernel.outputs :]
        fast = all(not b.dtype.is_float or b.dtype.bits < 32 for b in outputs)
        coarse = all(not b.dtype.is_float or b.dtype.name == "bf16" for b in outputs)
        self.floats = {**FLOATS, **(FAST if fast else EXACT), **(COARSE if coarse else {})}

    def spelling(self, op: str, dtype: DType) -> str | None:
        """The text of an op on operands of ``dtype``, with a placeholder for each; None for one that there is not."""
        if op in ANY:
            return ANY[op]
        if dtype.name == "bool":
            return BOOLS.get(op)
        if dtype.is_float:
            return (DOUBLES if dtype.bits == 64 else self.floats).get(op)
        return "{0}" if op in _ROUNDINGS else INTEGERS.get(op)


class Scalars:
    """Writes expressions at one point of a domain.

    read: the text of a load, in the type that computes it. index: the text of an index expression.
    line: takes a line that must stand before. ``roots`` are all expressions to be written at this point.
    """

    def __init__(
        self,
        style: Style,
        names: Names,
        read: Callable[[Load], str],
        index: Callable[[Index], str],
        line: Callable[[str], None],
        roots: Sequence[ScalarExpr],
    ) -> None:
        self._style, self._names, self._read, self._index, self._line = style, names, read, index, line
        self._number = Numbering().number
        self._uses: Counter[int] = Counter()
        self._done: dict[int, str] = {}
        for root in roots:
            self._count(root)

    def value(self, e: ScalarExpr) -> str:
        """The expression as C++; half types are float, and not rounded."""
        number = self._number(e)
        if number not in self._done:
            text = self._spell(e)
            if isinstance(e, Apply) and self._uses[number] > 1 and not isinstance(e.args[0], Const):
                name = self._names.unique(e.op if e.op != "cast" else f"as_{e.dtype.name}")
                self._line(f"const {register_type(e.dtype)} {name} = {bare(text)};")
                text = name
            self._done[number] = text
        return self._done[number]

    def _count(self, e: ScalarExpr) -> None:
        number = self._number(e)
        self._uses[number] += 1
        if self._uses[number] > 1:
            return
        for part in children(e):
            self._count(part)

    def gathered(self, load: Load, *, inside: bool = False) -> str:
        """The offset of an element at loaded subscripts. ``inside``: subscripts that are indices are moved inside."""
        parts = []
        for i, extent, stride in zip(load.index, load.buffer.shape, load.buffer.strides, strict=True):
            text = bare(self._index(i) if isinstance(i, int | Expr) else self.value(i))
            if inside and isinstance(i, int | Expr):
                text = f"clamped<i64>({text}, {extent - 1})"
            parts.append(f"i64({text}) * {stride}" if stride != 1 else f"i64({text})")
        return " + ".join(parts) or "0"

    # Spelling

    def _spell(self, e: ScalarExpr) -> str:
        match e:
            case Const():
                return literal(e.value, e.dtype)
            case IndexValue():
                return self._index_value(e)
            case Load():
                return self._read(e)
            case Apply(op="cast"):
                return self._cast(e.args[0], e.dtype)
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def _index_value(self, e: IndexValue) -> str:
        text = self._index(e.index)
        if e.dtype.name == "bool":
            return f"({text} != 0)"
        return f"{register_type(e.dtype)}({bare(text)})"

    def _cast(self, argument: ScalarExpr, dtype: DType) -> str:
        if isinstance(argument, IndexValue) and dtype.is_float and dtype.bits < 64 and _is_small(argument):
            return self._round(f"float({bare(self._index(argument.index))})", f32, dtype)
        return self._round(self.value(argument), argument.dtype, dtype)

    def _round(self, text: str, source: DType, dtype: DType) -> str:
        if dtype is source:
            return text
        if dtype.name == "bool":
            return f"({text} != {literal(0, source)})"
        if is_widened(dtype):
            inner = bare(text) if source.is_float or is_widened(source) else f"float({bare(text)})"
            return f"float({dtype.name}({inner}))"
        if is_widened(source) and dtype.name == "f32":
            return text
        return f"{register_type(dtype)}({bare(text)})"

    def _apply(self, e: Apply) -> str:
        operand = e.args[-1].dtype
        if e.op in _COMPARISONS and all(map(_is_small, e.args)):
            a, b = map(self._small, e.args)
            return ANY[e.op].format(a, b)
        spelling = self._style.spelling(e.op, operand)
        if spelling is None:
            raise LoweringError(f"{e.op} of {operand} in CUDA C++")
        inverse = _inverse(e.args[1]) if spelling is FAST["div"] else None
        if inverse is not None:
            return f"({self.value(e.args[0])} * {inverse})"
        args = [self.value(a) for a in e.args]
        if e.op in INTEGERS and operand.is_integer:
            return spelling.format(*args, type=register_type(operand))
        return spelling.format(*args)

    def _small(self, e: ScalarExpr) -> str:
        if isinstance(e, Const):
            return str(int(e.value.real))
        assert isinstance(e, IndexValue)
        return self._index(e.index)


def _inverse(e: ScalarExpr) -> str | None:
    """One over a constant; None where that is no normal float32 number."""
    if isinstance(e, Const) and e.dtype.is_float and 2.0**-126 <= abs(float(e.value.real)) <= 2.0**126:
        return literal(1.0 / float(e.value.real), e.dtype)
    return None


def _is_small(e: ScalarExpr) -> bool:
    """An index, or a number to compare one with, that 32 bits hold."""
    if isinstance(e, Const):
        return e.dtype.is_integer and abs(int(e.value.real)) < 2**31
    return isinstance(e, IndexValue) and e.dtype.is_integer and not needs_int64(e.index)


def bare(text: str) -> str:
    """The text without a pair of brackets around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for end, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth:
            return text[1:-1] if end == len(text) - 1 else text
    return text


def stored(value: str, source: DType, target: DType) -> str:
    """A computed value of ``source`` in the type of memory of ``target``."""
    if is_widened(target):
        inner = bare(value) if source.is_float or is_widened(source) else f"float({bare(value)})"
        return f"{target.name}({inner})"
    if target.name == "bool" and source.name != "bool":
        return f"({value} != {literal(0, source)})"
    return value if register_type(source) == memory_type(target) else f"{memory_type(target)}({bare(value)})"
