"""The least time that a kernel can take on a target, and what sets it."""

from __future__ import annotations

from fusec.target.cpu import CpuTarget

LAUNCH_SECONDS = 1e-6


def roofline(flops: int, moved: int, target: CpuTarget, threads: int, bits: int = 32) -> tuple[float, str]:
    """Seconds, and ``compute``, ``memory`` or ``launch``: whichever bounds it.

    flops over the peak rate, bytes over the bandwidth of the level they fit in (L3 is taken as four times main memory).
    """
    compute = flops / target.peak_flops(bits, threads)
    bandwidth = target.bandwidth * (4 if moved < target.l3 // 2 else 1)
    memory = moved / bandwidth
    longest = max(compute, memory)
    if longest < LAUNCH_SECONDS:
        return LAUNCH_SECONDS, "launch"
    return longest, "compute" if compute >= memory else "memory"
