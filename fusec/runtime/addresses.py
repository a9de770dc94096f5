# SPDX-License-Identifier: Apache-2.0
"""Addresses in generated code."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.types import Dim
from fusec.runtime.code import spell


@dataclass(frozen=True)
class Address:
    """An address in generated code: what the expression ``base`` gives (nothing, where it is empty) and ``offset``
    bytes. ``field``: the address lies in memory, so many bytes after what ``base`` gives."""

    base: str
    offset: int = 0
    field: int = 0

    def __str__(self) -> str:
        if not self.base:
            return str(self.offset)
        sign = "+" if self.offset > 0 else "-"
        return f"{self.base} {sign} {abs(self.offset)}" if self.offset else self.base

    def after(self, nbytes: Dim) -> Address:
        """The address so many bytes on."""
        if isinstance(nbytes, int):
            return Address(self.base, self.offset + nbytes)
        return Address(f"{self} + {spell(nbytes)}")
