# SPDX-License-Identifier: Apache-2.0
"""Lines of generated source, and names that do not meet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_KEYWORDS = """alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default
delete do double else enum explicit export extern false float for friend goto if inline int long mutable namespace new
noexcept not nullptr operator or private protected public register return short signed sizeof static struct switch
template this throw true try typedef typeid typename union unsigned using virtual void volatile while xor"""
_HEADERS = """f16 bf16 i8 i16 i64 u8 u16 u32 u64 threadIdx blockIdx blockDim gridDim warpSize main nan infinity load
store maximum minimum sign magnitude clamped abs fabs fmod exp exp2 log log2 sqrt rsqrt sin cos tan tanh erf erfc pow
floor ceil rint trunc min max hypot copysign signbit y0 y1 yn j0 j1 jn norm div expm1 log10 log1p sinh cosh asin acos
atan asinh acosh atanh atan2 Vec Sum Product Maximum Minimum Any All"""


class Names:
    """Identifiers, each given once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_KEYWORDS.split(), *_HEADERS.split(), *taken}

    def unique(self, wanted: str) -> str:
        """``wanted`` as an identifier of C++, with a number where it is taken."""
        base = re.sub(r"\W", "_", wanted)
        base = re.sub(r"__+", "_", base if base[:1].isalpha() else f"v{base}")
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names given inside may be given again after."""
        outer = set(self._taken)
        yield
        self._taken = outer


class Writer:
    """Lines, each indented by the blocks around it."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """``head {`` ... ``tail``."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
