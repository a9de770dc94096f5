# SPDX-License-Identifier: Apache-2.0
"""Integers that are a few neighbouring bits of a word of memory, however the code cuts them out, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.ir.interval import bits, closed
from fusec.ir.types import DType
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

_SMALL = 16
"""Bits of an integer type whose range is worth following."""


@dataclass(frozen=True)
class BitField:
    """``width`` bits from bit ``at`` of a member's words on, shifted left by ``low``; their top bit is a sign where
    they are ``signed``."""

    source: Buffer
    at: int
    width: int
    low: int
    signed: bool

    @property
    def top(self) -> int:
        """Bits of the value."""
        return self.low + self.width


def range_of(e: ScalarExpr) -> tuple[int, int] | None:
    """The least and the largest value of an integer; None where they are not known to be small."""
    dtype = e.dtype
    if not dtype.is_integer:
        return None
    whole = _of_type(dtype)
    found = _range(e)
    if found is None:
        return whole if dtype.bits <= _SMALL else None
    limits = whole if dtype.bits < 64 else (-(2**62), 2**62)
    return found if limits[0] <= found[0] and found[1] <= limits[1] else whole if dtype.bits <= _SMALL else None


def _range(e: ScalarExpr) -> tuple[int, int] | None:
    match e:
        case Const():
            value = int(e.value.real)
            return value, value
        case Apply("cast" | "copy", (inner,)) if inner.dtype.is_integer:
            return range_of(inner)
        case Apply("bitwise_and" | "remainder", (inner, Const() as mask)):
            most = int(mask.value.real) - (e.op == "remainder")
            given = range_of(inner)
            most = most if given is None or given[0] < 0 else min(most, given[1])
            return (0, most) if most >= 0 else None
        case Apply("shift_right" | "floordiv", (inner, Const() as by)):
            shift = _power(by) if e.op == "floordiv" else int(by.value.real)
            given = range_of(inner)
            return None if given is None or shift is None or shift < 0 else (given[0] >> shift, given[1] >> shift)
        case Apply("shift_left", (inner, Const() as by)):
            given = range_of(inner)
            shift = int(by.value.real)
            return None if given is None or not 0 <= shift < e.dtype.bits else (given[0] << shift, given[1] << shift)
        case Apply("bitwise_or" | "bitwise_xor" | "bitwise_and", (a, b)):
            pair = range_of(a), range_of(b)
            return bits(e.op, pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None
        case Apply("select", (_, a, b)):
            both = range_of(a), range_of(b)
            return (min(x[0] for x in both if x), max(x[1] for x in both if x)) if all(both) else None
        case Apply():
            of = [range_of(a) for a in e.args]
            return closed(e.op, [x for x in of if x is not None]) if None not in of else None
    return None


def wraps(e: Apply) -> bool:
    """Whether arithmetic of integers may leave what their type holds."""
    of = [range_of(a) for a in e.args]
    found = closed(e.op, [x for x in of if x is not None]) if None not in of else None
    low, high = _of_type(e.dtype)
    return found is None or found[0] < low or found[1] > high


def _of_type(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def _power(e: Const) -> int | None:
    """The exponent of a power of two."""
    value = int(e.value.real)
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


def bit_field(e: ScalarExpr) -> BitField | None:
    """The bits that an integer is; None where it is more than bits of one element."""
    if not e.dtype.is_integer:
        return None
    match e:
        case Load(buffer, (int(i),)) if buffer.space == "tile":
            return BitField(buffer, i * buffer.dtype.bits, buffer.dtype.bits, 0, buffer.dtype.kind == "int")
        case Apply("copy", (inner,)):
            return bit_field(inner)
        case Apply("cast", (inner,)):
            return _cast(inner, e.dtype)
        case Apply("bitwise_and", (inner, Const() as mask)) | Apply("bitwise_and", (Const() as mask, inner)):
            return _masked(bit_field(inner), int(mask.value.real) % 2**e.dtype.bits, e.dtype)
        case Apply("remainder", (inner, Const() as by)) if _power(by) is not None:
            return _masked(bit_field(inner), int(by.value.real) - 1, e.dtype)
        case Apply("shift_right", (inner, Const() as by)):
            return _shifted(bit_field(inner), int(by.value.real))
        case Apply("floordiv", (inner, Const() as by)):
            exponent = _power(by)
            return None if exponent is None else _shifted(bit_field(inner), exponent)
        case Apply("shift_left", (inner, Const() as by)):
            return _raised(bit_field(inner), int(by.value.real), e.dtype)
    return None


def _cast(inner: ScalarExpr, dtype: DType) -> BitField | None:
    found, given = bit_field(inner), range_of(inner)
    if found is None:
        return None
    low, high = _of_type(dtype)
    if given is not None and low <= given[0] and given[1] <= high:
        return found
    width = dtype.bits - found.low
    if width <= 0 or width > found.width or (found.signed and width < found.width and dtype.kind == "uint"):
        return None
    return replace(found, width=width, signed=dtype.kind == "int")


def _masked(found: BitField | None, mask: int, dtype: DType) -> BitField | None:
    """Under a mask whose ones are neighbours."""
    if found is None or mask <= 0:
        return None
    first = (mask & -mask).bit_length() - 1
    count = (mask >> first).bit_length()
    if mask >> first != 2**count - 1:
        return None
    last = first + count
    if found.signed and last > found.top:
        return found if last == dtype.bits and first <= found.low else None
    low, top = max(first, found.low), min(last, found.top)
    if top <= low:
        return None
    signed = found.signed and top == found.top and top == dtype.bits
    return BitField(found.source, found.at + low - found.low, top - low, low, signed)


def _shifted(found: BitField | None, by: int) -> BitField | None:
    if found is None or by < 0:
        return None
    if by <= found.low:
        return replace(found, low=found.low - by)
    cut = by - found.low
    if cut >= found.width:
        return None
    return BitField(found.source, found.at + cut, found.width - cut, 0, found.signed)


def _raised(found: BitField | None, by: int, dtype: DType) -> BitField | None:
    if found is None or by < 0:
        return None
    low = found.low + by
    width = min(found.width, dtype.bits - low)
    if width <= 0:
        return None
    cut = width < found.width or low + width == dtype.bits
    signed = dtype.kind == "int" if cut and low + width == dtype.bits else found.signed
    return BitField(found.source, found.at, width, low, signed)
