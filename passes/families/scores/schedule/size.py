# SPDX-License-Identifier: Apache-2.0
"""What a score space on a GPU has to do, and how long that takes.

A point takes the tensor cores two operations for each element of the products' and the results' rows, and the rest of
an SM the maps between, and a rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusec.ir.indexing import pow2
from fusec.target.gpu import GpuTarget

ROUNDING = 0.5
"""Instructions of a lane for a value that a result's product takes: two are rounded at a time."""


@dataclass(frozen=True)
class ScoresSize:
    """``heads`` independent spaces (all outer axes) of ``rows`` by ``columns`` points.

    depths, values: elements of the rows of each product's operands, and of each result. reads: of all that is read of a
    column. bits: of an element. hidden: the share of the points whose blocks a mask of indices empties.
    instructions, specials: of a lane, for a point. point_bytes: read, or stored, of each point.
    """

    heads: int
    rows: int
    columns: int
    depths: tuple[int, ...]
    values: tuple[int, ...]
    reads: int
    bits: int
    hidden: float = 0.0
    instructions: float = 0.0
    specials: float = 0.0
    point_bytes: int = 0

    @property
    def points(self) -> float:
        """Points that are computed."""
        return (1 - self.hidden) * self.heads * self.rows * self.columns

    @property
    def widths(self) -> int:
        """Elements that a point's products and results multiply, as blocks hold them."""
        return sum(padded(n) for n in (*self.depths, *self.values))

    def products(self, rate: float) -> float:
        """Seconds of a point's multiplications at a rate of 16 bits."""
        return 2.0 * self.widths * max(self.bits // 16, 1) / rate

    def maps(self, target: GpuTarget) -> float:
        """Seconds of what is computed between them."""
        rates = target.rates
        return (self.instructions + ROUNDING * len(self.values)) / rates.issue + self.specials / rates.special

    def traffic(self, target: GpuTarget) -> float:
        """Seconds in which memory gives what is read and takes what is written once."""
        item = self.bits // 8
        read = item * self.heads * (self.rows * sum(self.depths) + self.columns * self.reads)
        read += int(self.point_bytes * self.points)
        return target.rates.moved(read, item * self.heads * self.rows * sum(self.values))

    def fetched(self, rows: int, target: GpuTarget) -> float:
        """Seconds in which L2 gives each block of so many rows its columns."""
        return self.bits // 8 * self.points * self.reads / rows / target.rates.l2


def padded(n: int) -> int:
    """Elements of a row in a block."""
    return max(16, pow2(n))


def busiest(size: ScoresSize, rows: int, columns: int, extra: float, target: GpuTarget) -> float:
    """Points of the SM that has most to do, in whole blocks; a block of rows takes as long as ``extra`` blocks of
    columns more."""
    blocks = size.heads * ceil(size.rows / rows)
    each = rows * columns * ((1 - size.hidden) * ceil(size.columns / columns) + extra)
    share = blocks / target.sms
    return each * (ceil(share) if share <= 1 or not size.hidden else max(share, 1.0))
