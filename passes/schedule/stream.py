# SPDX-License-Identifier: Apache-2.0
"""How long kernels of elementwise code and reductions take on a GPU, by their bytes and their instructions."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from fusec.target.gpu import GpuTarget

START = 0.3e-6
"""Seconds until a block's first loads have arrived, and after its last stores, that an empty kernel does not have."""

IN_CUDA = 1.2
"""How many times Triton's instructions kernels in CUDA C++ take. On an H200 layer norm with gelu 3.76 TB/s, in Triton
3.93; where memory bounds, both are within 0.2 %."""

_FILLED = 3.0
"""Of the SMs, one in so many keeps memory busy."""


@dataclass(frozen=True)
class Stream:
    """read, written: bytes, once. instructions, specials: of lanes, and of the unit for exponentials."""

    read: float
    written: float
    instructions: float
    specials: float

    def seconds(
        self, blocks: int, target: GpuTarget, *, again: float = 0.0, rate: float = 1.0, chunks: bool = False, cuda: bool
    ) -> float:
        """In so many blocks. ``again``: bytes that are read a second time. ``rate``: the part of memory's that the way
        of reading reaches. ``chunks``: a block waits for each chunk of its row before it computes.

        Blocks of one SM hide most of each other's instructions: rows of 2²⁷ elements with 0.5 to 0.75 of the
        instructions that fit the time of a copy take 1 to 4 % longer than the copy (decision 11).
        """
        filled = min(1.0, max(blocks, 1) / target.sms)
        memory = target.rates.moved(self.read + again, self.written) / (rate * min(1.0, _FILLED * filled))
        work = target.rates.worked(self.instructions, self.specials) / filled * (IN_CUDA if cuda else 1.0)
        both = hypot(memory, work) if chunks else (memory**4 + work**4) ** 0.25
        return target.rates.launch + START + both
