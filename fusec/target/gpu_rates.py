# SPDX-License-Identifier: Apache-2.0
"""How fast a GPU does what kernels are made of: the numbers that every GPU time model counts with.

They are measured (:mod:`fusec.tuning.probe_gpu`), or what GPUs reach of their datasheets' rates.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class GpuRates:
    """Of the whole device, in seconds, bytes a second and operations a second (a multiply-add is two).

    launch: a kernel with nothing to do, alone between two events, its parameters in no cache. follow: what a kernel
    takes at least that follows another in the stream. call, host_launch: of the host, around a call and for each
    launch.
    read: device memory, reading only. copy: bytes read and written of a copy, half of each. l2: what blocks fetch of
    operands that others fetch too.
    tensor: matmuls of 16 bits by the GPU's fastest instructions. warp_tensor: by those of a warp (``mma.sync``), the
    same where there are no faster ones. simt: multiply-adds of f32. special: exponentials and the like.
    measured: on this device.
    """

    launch: float
    follow: float
    call: float
    host_launch: float
    read: float
    copy: float
    l2: float
    tensor: float
    warp_tensor: float
    simt: float
    special: float
    measured: bool = False

    @property
    def issue(self) -> float:
        """Instructions of single lanes a second."""
        return self.simt / 2

    def moved(self, read: float, written: float) -> float:
        """Seconds in which device memory gives and takes so many bytes."""
        both = min(read, written)
        return 2 * both / self.copy + (read - both) / self.read + 2 * (written - both) / self.copy

    def worked(self, instructions: float, specials: float) -> float:
        """Seconds for so many instructions of a lane, and so many of the unit for exponentials besides."""
        return max(instructions / self.issue, specials / self.special)

    def scaled(self, sms: float, clock: float, memory: float) -> GpuRates:
        """Of a GPU with so many times the SMs, the clock and the memory's bandwidth. What power limits (tensor
        cores) does not follow the clock."""
        return replace(
            self,
            read=self.read * memory,
            copy=self.copy * memory,
            l2=self.l2 * memory,
            tensor=self.tensor * sms,
            warp_tensor=self.warp_tensor * sms,
            simt=self.simt * sms * clock,
            special=self.special * sms * clock,
        )

    def to_json(self) -> str:
        """One line for a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> GpuRates:
        """The inverse of :meth:`to_json`. ValueError, KeyError or TypeError for anything else."""
        rates = GpuRates(**json.loads(text))
        if not all(value > 0 for name, value in asdict(rates).items() if name != "measured"):
            raise ValueError("rates that are not positive")
        return rates


LAUNCH, FOLLOW = 4.8e-6, 0.85e-6
"""Seconds on an H200, medians between events with other memory in L2. Eight matmuls of 512×768×3072 in a row took 7.8
µs each, one alone 11.3 (decision 8); a second kernel that is launched early 0.8 to 0.9 µs more (decision 9)."""

CALL, HOST_LAUNCH = 4.2e-6, 2.6e-6
"""Seconds of the host on the machine of an H200: the test that a call is the one compiled for, an allocation, and each
launch (decision 6, ``benchmarks/results/cuda.md``)."""

READ, COPY = 0.945, 0.925
"""What reading (decoding with 2 GB of keys and values) and copying (maps of 2²⁷ elements) reach of an H200's datasheet
with the launch taken off; taken for other GPUs too."""

L2 = 2.67
"""L2's rate in units of the datasheet's rate of device memory, as a fit to 600 matmuls in Triton on an H200 has it
(decision 9)."""

TENSOR = 0.868
"""What Hopper's instructions reach of the datasheet's rate of matmuls inside ``gemm.cuh``'s loop, where the GPU is
limited by power: three matmuls in ``benchmarks/results/gpu.md`` lie within 2 % of the times that follow."""

EIGHT_BITS = 0.97
"""Of twice the rate of 16 bits, what matmuls of 8 reach (decision 44)."""

OTHER_TENSOR = 0.827
"""The same of other GPUs, from large matmuls of other kernels on an H200; nothing else was at hand."""

AMD = 0.89
"""What copying and reading are taken to reach of the datasheet on AMD's GPUs."""

WARP_TENSOR = {90: 0.55, 100: 0.28}
"""What instructions of warps reach of the datasheet's rate where there are faster ones (decision 15)."""

SPECIALS = 16
"""Exponentials, reciprocals and the like that an SM starts in a cycle (CUDA C++ Programming Guide, throughput of
native arithmetic instructions)."""


def usual_rates(
    arch: int | str, sms: int, memory: float, half: float, single: float, clock: float, special: int = SPECIALS
) -> GpuRates:
    """What a GPU reaches, by its datasheet.

    memory: bytes a second. half, single: operations a second of dense matmuls of 16 bits, and of f32. clock: Hz.
    """
    tensor = half * (TENSOR if arch == 90 else OTHER_TENSOR)
    return GpuRates(
        launch=LAUNCH,
        follow=FOLLOW,
        call=CALL,
        host_launch=HOST_LAUNCH,
        read=memory * (AMD if isinstance(arch, str) else READ),
        copy=memory * (AMD if isinstance(arch, str) else COPY),
        l2=memory * L2,
        tensor=tensor,
        warp_tensor=half * WARP_TENSOR[arch] if isinstance(arch, int) and arch in WARP_TENSOR else tensor,
        simt=single,
        special=sms * special * clock,
    )
