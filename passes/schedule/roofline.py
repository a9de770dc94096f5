# SPDX-License-Identifier: Apache-2.0
"""The least time that a kernel can take on a target, and what sets it."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.types import DType, f32
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates

LAUNCH_SECONDS = 1e-7
"""A call of a kernel with nothing to do."""


def roofline(
    matmuls: Mapping[DType, int], others: int, moved: int, target: CpuTarget, rates: Rates, threads: int
) -> tuple[float, str]:
    """Seconds, and ``compute``, ``memory`` or ``launch``: whichever bounds it.

    ``matmuls``: operations that multiply operands of a type, at the rate of the fastest unit for it; the ``others``
    are done at that of f32 multiply-adds. ``moved`` bytes pass at the bandwidth of the level that they fit.
    """
    compute = others / rates.matmul(f32, tiles=False)
    compute += sum(n / rates.matmul(d, tiles=target.multiplies_in_tiles(d)) for d, n in matmuls.items())
    compute /= threads
    level = rates.beyond_l2(moved, threads)
    near = moved <= threads * target.l2
    memory = moved / (threads * rates.l2 if near else max(level.read, level.copy))
    longest = max(compute, memory)
    if longest < LAUNCH_SECONDS:
        return LAUNCH_SECONDS, "launch"
    return longest, "compute" if compute >= memory else "memory"
