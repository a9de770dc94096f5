# SPDX-License-Identifier: Apache-2.0
"""Two values of a 16-bit float at once: integers of a few bits become floats by their bits, in a word for both.

A float of 16 bits that is 2^m, m being its bits of mantissa, has the integers below in its low bits: with a field of a
word put there, and 2^m subtracted, it is the number (Kim et al., *Who Says Elephants Can't Run*, 2022). Whatever cuts
the field out of memory (:mod:`bit_fields`), the values are those of the code as written, each rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack, unpack

from fusec.codegen.cuda.bit_fields import BitField, bit_field, range_of, wraps
from fusec.codegen.cuda.numbering import Numbering
from fusec.codegen.cuda.scalars import Scalars, bare
from fusec.codegen.cuda.text import Names
from fusec.ir.types import DType, f32
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

_OPS = {"add": "add_pairs", "sub": "subtract_pairs", "mul": "multiply_pairs"}
_MANTISSA = {"bf16": 7, "f16": 10}


@dataclass(frozen=True)
class Half:
    """What the type of the pairs holds. exact: integers up to this are numbers of it. base: 2^mantissa as bits."""

    dtype: DType

    @property
    def mantissa(self) -> int:
        return _MANTISSA[self.dtype.name]

    @property
    def exact(self) -> int:
        return 1 << (self.mantissa + 1)

    def bits(self, value: float) -> int:
        """Of a number that the type holds."""
        if self.dtype.name == "f16":
            return int(unpack("<H", pack("<e", value))[0])
        bits: int = unpack("<I", pack("<f", value))[0] >> 16
        return bits

    def pair(self, value: float) -> str:
        """A word with a number twice."""
        return f"0x{self.bits(value) * 0x10001:08x}u"


class HalfPairs:
    """Writes pairs. ``words``: the text of a member's words. ``line`` takes a line that must stand before.

    cost: instructions of what was written, about.
    """

    def __init__(
        self,
        dtype: DType,
        words: Callable[[Load], str],
        scalars: Scalars,
        names: Names,
        line: Callable[[str], None],
    ) -> None:
        self.half, self.words, self.scalars, self.names, self.line = Half(dtype), words, scalars, names, line
        self.number = Numbering().number
        self.texts: dict[str, str] = {}
        self.floats: dict[Buffer, str] = {}
        """Values that are halves of a pair."""
        self.cost = 0.0

    def pair(self, a: ScalarExpr, b: ScalarExpr) -> str:
        """The values rounded to the type, ``a`` in the low half."""
        while _rounds(a, self.half.dtype) and _rounds(b, self.half.dtype):
            (a,), (b,) = a.args, b.args  # type: ignore[union-attr]
        found = self._rounded(a, b)
        if found is not None:
            return found
        a, b = self._through_pairs(a, b)
        self.cost += 1 + 3 * _size(a) + 3 * _size(b)
        return self._named(f"{self.half.dtype.name}::pack({self._float(a)}, {self._float(b)})", "packed")

    def _through_pairs(self, a: ScalarExpr, b: ScalarExpr) -> tuple[ScalarExpr, ScalarExpr]:
        """The same with small integers that become floats read from pairs: conversions take longer."""
        if self._same(a, b) or not (isinstance(a, Apply) and isinstance(b, Apply) and a.op == b.op):
            return a, b
        if a.op == "cast" and a.dtype in (self.half.dtype, f32) and a.dtype is b.dtype:
            (x,), (y,) = a.args, b.args
            text = self._integers(x, y) if x.dtype.is_integer and y.dtype.is_integer else None
            if text is not None:
                made = [Buffer(f"{text}_{i}", f32, (1,), (1,), "tile") for i in range(2)]
                for i, buffer in enumerate(made):
                    self.floats[buffer] = f"{self.half.dtype.name}::at({text}, {i})"
                return Load(made[0], (0,)), Load(made[1], (0,))
        pairs = [self._through_pairs(x, y) for x, y in zip(a.args, b.args, strict=True)]
        return Apply(a.op, tuple(x for x, _ in pairs), a.dtype), Apply(b.op, tuple(y for _, y in pairs), b.dtype)

    def _named(self, text: str, name: str, cost: float = 0.0) -> str:
        if text not in self.texts:
            self.texts[text] = self.names.unique(name)
            self.line(f"const u32 {self.texts[text]} = {text};")
            self.cost += cost
        return self.texts[text]

    def _float(self, e: ScalarExpr) -> str:
        text = bare(self.scalars.value(e))
        return text if e.dtype.is_float and e.dtype.bits < 64 else f"float({text})"

    def _same(self, a: ScalarExpr, b: ScalarExpr) -> bool:
        return self.number(a) == self.number(b)

    # Floats

    def _rounded(self, a: ScalarExpr, b: ScalarExpr) -> str | None:
        """Two values rounded once, where pairs' arithmetic does it; None where their parts are more exact."""
        if self._same(a, b) and not isinstance(a, Const):
            return self._both(a)
        match a, b:
            case Apply("select"), Apply("select"):
                return self._either(a, b, self._rounded)
            case Apply(op, (p, q)), Apply(other, (r, s)) if op == other and op in _OPS:
                if a.dtype not in (self.half.dtype, f32):
                    return None
                left = self._held(p, r)
                right = self._held(q, s) if left is not None else None
                if left is None or right is None:
                    return None
                return self._named(f"{_OPS[op]}<{self.half.dtype.name}>({left}, {right})", op, 1)
        return self._held(a, b)

    def _held(self, a: ScalarExpr, b: ScalarExpr) -> str | None:
        """Two values that are numbers of the type as they are, or are computed in it by the code itself."""
        dtype = self.half.dtype
        match a, b:
            case Const(), Const() if a.dtype.is_float and b.dtype.is_float:
                return self._constants(float(a.value.real), float(b.value.real))
            case Load(x, (int(i),)), Load(y, (int(j),)) if x.dtype is dtype and x.space == y.space == "tile":
                return self._both(a) if self._same(a, b) else self._halves(a, i, b, j)
            case Apply("cast", (x,)), Apply("cast", (y,)) if a.dtype in (dtype, f32) and a.dtype is b.dtype:
                if x.dtype.is_integer and y.dtype.is_integer:
                    return self._integers(x, y)
                if a.dtype is dtype and x.dtype.is_float:
                    return self.pair(x, y)
                return self._held(x, y) if x.dtype is dtype and y.dtype is dtype else None
            case Apply("select"), Apply("select"):
                return self._either(a, b, self._held)
            case Apply(op), Apply() if a.dtype is dtype and op in _OPS:
                return self._rounded(a, b)
        return None

    def _either(self, a: Apply, b: Apply, found: Callable[[ScalarExpr, ScalarExpr], str | None]) -> str | None:
        """Under a condition that both values have."""
        if not self._same(a.args[0], b.args[0]):
            return None
        first = found(a.args[1], b.args[1])
        second = found(a.args[2], b.args[2]) if first is not None else None
        if first is None or second is None:
            return None
        return self._named(f"{self.scalars.value(a.args[0])} ? {first} : {second}", "either", 1)

    def _constants(self, a: float, b: float) -> str | None:
        held = [unpack("<e", pack("<e", x))[0] if abs(x) < 65504 else 0.0 for x in (a, b)]
        if self.half.dtype.name == "bf16":
            held = [unpack("<f", pack("<I", self.half.bits(x) << 16))[0] for x in (a, b)]
        if held != [a, b]:
            return None
        return f"0x{self.half.bits(b) << 16 | self.half.bits(a):08x}u"

    def _both(self, e: ScalarExpr) -> str:
        """One value twice."""
        if isinstance(e, Load) and e.dtype is self.half.dtype and e.buffer.space == "tile":
            assert isinstance(e.index[0], int)
            return self._halves(e, e.index[0], e, e.index[0])
        text = self._float(e)
        return self._named(f"{self.half.dtype.name}::pack({text}, {text})", "twice", 2)

    def _halves(self, a: Load, i: int, b: Load, j: int) -> str:
        """Two elements of memory."""
        first, second = self.words(a), self.words(b)
        if first == second and i % 2 == 0 and j == i + 1:
            return f"{first}[{i // 2}]"
        low, high = 0x10 + 0x22 * (i % 2), 0x54 + 0x22 * (j % 2)
        text = f"__byte_perm({first}[{i // 2}], {second}[{j // 2}], 0x{high << 8 | low:04x}u)"
        return self._named(text, "halves", 1)

    # Integers

    def _integers(self, a: ScalarExpr, b: ScalarExpr) -> str | None:
        """Small integers, which the type holds."""
        ranges = range_of(a), range_of(b)
        if any(r is None or r[0] < -self.half.exact or r[1] > self.half.exact for r in ranges):
            return None
        if isinstance(a, Const) and isinstance(b, Const):
            return self._constants(float(a.value.real), float(b.value.real))
        if self._same(a, b):
            return self._both(a)
        (x, more), (y, other) = _affine(a), _affine(b)
        first, second = bit_field(x), bit_field(y)
        if first is not None and second is not None and more == other:
            found = self._fields(first, second, more)
            if found is not None:
                return found
        match a, b:
            case Apply("cast" | "copy", (x,)), Apply("cast" | "copy", (y,)) if _keeps(a) and _keeps(b):
                return self._integers(x, y)
            case Apply("select"), Apply("select"):
                return self._either(a, b, self._integers)
            case Apply(op, (p, q)), Apply(other_op, (r, s)) if op == other_op:
                apart = op in ("bitwise_or", "bitwise_xor") and _apart(p, q) and _apart(r, s)
                if not apart and (op not in _OPS or wraps(a) or wraps(b)):
                    return None
                op = "add" if apart else op
                left = self._integers(p, r)
                right = self._integers(q, s) if left is not None else None
                if left is not None and right is not None:
                    return self._named(f"{_OPS[op]}<{self.half.dtype.name}>({left}, {right})", op, 1)
        return None

    def _fields(self, a: BitField, b: BitField, more: int) -> str | None:
        """The values of two fields of bits, and ``more``."""
        name, bits = self.half.dtype.name, self.half.mantissa
        if (a.width, a.low, a.signed) != (b.width, b.low, b.signed):
            return None
        sign = 1 << (a.top - 1) if a.signed else 0
        subtracted = 2**bits + sign - more
        if a.top <= bits:
            mask = (2**a.width - 1) << a.low
            lanes = self._lanes(a, b, a.low)
            if lanes is None or not 0 <= subtracted <= self.half.exact:
                return None
            flipped = self.half.bits(2.0**bits) ^ sign
            text = f"({lanes} & {self._mask(mask)} ^ 0x{flipped * 0x10001:08x}u)"
            return self._named(f"subtract_pairs<{name}>({text}, {self.half.pair(subtracted)})", "whole", 2)
        if a.top != bits + 1 or a.low:
            return None
        lanes = self._lanes(a, b, 0)
        if lanes is None:
            return None
        # The top bit is that of the exponent: 2^m with it is 2^(m+1).
        base, top = self.half.bits(2.0**bits), 1 << bits
        rest = f"({lanes} & {self._mask(top - 1)} | 0x{base * 0x10001:08x}u)"
        above = f"({lanes} & {self._mask(top)} | 0x{base * 0x10001:08x}u)"
        if a.signed:
            found = self._named(f"subtract_pairs<{name}>({rest}, {above})", "whole", 3)
        else:
            less = self._named(f"subtract_pairs<{name}>({rest}, {self.half.pair(2.0 ** (bits + 1))})", "less", 2)
            found = self._named(f"add_pairs<{name}>({less}, {above})", "whole", 2)
        if more:
            found = self._named(f"add_pairs<{name}>({found}, {self.half.pair(more)})", "moved", 1)
        return found

    def _mask(self, bits: int) -> str:
        return f"both_halves(0x{bits:04x}u)"

    def _lanes(self, a: BitField, b: BitField, to: int) -> str | None:
        """A word with the fields at bit ``to`` of either half, among other bits."""
        first, second = self.words(Load(a.source, (0,))), self.words(Load(b.source, (0,)))
        if first == second and b.at == a.at + 16 and a.at % 32 + a.width <= 16:
            return self._moved(f"{first}[{a.at // 32}]", a.at % 32 - to)
        if a.at % 8 != b.at % 8 or a.at % 8 + a.width > 8:
            return self._placed(f"{first}[{a.at // 32}]", f"{second}[{b.at // 32}]", a, b, to)
        low, high = a.at // 8, b.at // 8
        place = 0 if first == second and low // 4 == high // 4 else 4
        chosen = low % 4 | (high % 4 + place) << 8 | (low % 4) << 4 | (high % 4 + place) << 12
        text = f"__byte_perm({first}[{low // 4}], {second}[{high // 4}], 0x{chosen:04x}u)"
        return self._moved(self._named(text, "bytes", 1), a.at % 8 - to)

    def _placed(self, first: str, second: str, a: BitField, b: BitField, to: int) -> str | None:
        """Two fields of different bits, each moved to its half."""
        if a.at % 32 + a.width > 32 or b.at % 32 + b.width > 32:
            return None
        mask = (2**a.width - 1) << to
        low, high = self._moved(first, a.at % 32 - to), self._moved(second, b.at % 32 - to - 16)
        return self._named(f"{low} & 0x{mask:08x}u | {high} & 0x{mask << 16:08x}u", "placed", 2)

    def _moved(self, word: str, by: int) -> str:
        """The word with its bits so much further down."""
        if by == 0:
            return word
        return self._named(f"{word} >> {by}" if by > 0 else f"{word} << {-by}", "moved", 1)


def _rounds(e: ScalarExpr, dtype: DType) -> bool:
    """Whether all that is done is to round a float to the type."""
    return isinstance(e, Apply) and e.op == "cast" and e.dtype is dtype and e.args[0].dtype in (dtype, f32)


def _size(e: ScalarExpr) -> int:
    """Operations of an expression."""
    return 1 + sum(map(_size, e.args)) if isinstance(e, Apply) else 1


def _affine(e: ScalarExpr) -> tuple[ScalarExpr, int]:
    """An integer as another one and a number that is added; nothing of it wraps around."""
    match e:
        case Apply("cast" | "copy", (inner,)) if _keeps(e):
            found, more = _affine(inner)
            return (found, more) if more else (e, 0)
        case Apply("add" | "sub", (inner, Const() as number)) if not wraps(e):
            found, more = _affine(inner)
            value = int(number.value.real)
            return found, more + (value if e.op == "add" else -value)
    return e, 0


def _keeps(e: Apply) -> bool:
    """Whether a cast of an integer keeps its value."""
    (inner,) = e.args
    found = range_of(inner)
    return found is not None and found == range_of(e)


def _apart(a: ScalarExpr, b: ScalarExpr) -> bool:
    """Whether two integers have no bit in common."""
    x, y = bit_field(a), bit_field(b)
    if x is None or y is None or x.signed or y.signed:
        return False
    return x.top <= y.low or y.top <= x.low
