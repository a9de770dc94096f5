# SPDX-License-Identifier: Apache-2.0
"""Facts about GPUs: what a kernel may use of them, and their rates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fusec.errors import TargetError
from fusec.target.gpu_rates import SPECIALS, GpuRates, usual_rates

_KIB, _MIB = 1024, 1024**2
Backend = Literal["cuda", "hip"]


@dataclass(frozen=True)
class GpuTarget:
    """A GPU to compile for.

    arch: compute capability times ten (90), or AMD's name (``gfx942``). sms: multiprocessors (AMD's compute units).
    shared_memory: bytes one block may use. l2: bytes. rates: what time models count with. clock: of the SMs, in Hz.
    memory: bytes of device memory; 0 where they vary.
    """

    name: str
    backend: Backend
    arch: int | str
    warp_size: int
    sms: int
    shared_memory: int
    l2: int
    rates: GpuRates
    clock: float = 0.0
    memory: int = 0

    @property
    def bandwidth(self) -> float:
        """Bytes a second that device memory gives."""
        return self.rates.read

    @property
    def half_flops(self) -> float:
        """Operations a second of matmuls of 16 bits."""
        return self.rates.tensor

    @property
    def single_flops(self) -> float:
        """Operations a second of SIMT f32 arithmetic."""
        return self.rates.simt

    @property
    def has_faster_matmuls(self) -> bool:
        """Whether there are instructions for matmuls that are faster than those of a warp."""
        return self.rates.tensor > self.rates.warp_tensor

    @property
    def splits_f32(self) -> bool:
        """Whether Triton's matmuls of f32 are three of TF32, whose operands are cut in two parts of 11 bits each."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 80

    @property
    def block_flops(self) -> float:
        """Operations a second of f32 matmuls within Triton's blocks."""
        return max(self.rates.simt, self.rates.tensor / _SPLIT) if self.splits_f32 else self.rates.simt

    @property
    def has_tma(self) -> bool:
        """TMA: bulk tensor copies through descriptors (Hopper and later)."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 90

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may be launched before the one ahead of it has ended, and wait for it (Hopper and later)."""
        return self.has_tma


_SPLIT = 8.0
"""How many times longer than one of 16 bits takes a matmul whose operands are cut in two: three of half the rate, and
what cuts them. Causal attention on an H100, 64 heads of 2048 and 64: 0.83 ms."""


@dataclass(frozen=True)
class _Datasheet:
    """A GPU by its datasheet. ``words`` are those of the driver's name for it, which others do not have.

    shared: KiB a block may use. l2: MiB. bandwidth: TB/s. half: TFLOP/s of dense bf16 matmuls with f32 sums.
    single: TFLOP/s of f32. clock: GHz, boosted. memory: GiB. special: exponentials a cycle and SM.
    """

    arch: int | str
    words: tuple[str, ...]
    sms: int
    shared: int
    l2: int
    bandwidth: float
    half: float
    single: float
    clock: float
    memory: int
    warp: int = 32
    special: int = SPECIALS

    def target(self, name: str) -> GpuTarget:
        backend: Backend = "cuda" if isinstance(self.arch, int) else "hip"
        return GpuTarget(
            name,
            backend,
            self.arch,
            self.warp,
            self.sms,
            self.shared * _KIB,
            self.l2 * _MIB,
            usual_rates(
                self.arch,
                self.sms,
                self.bandwidth * 1e12,
                self.half * 1e12,
                self.single * 1e12,
                self.clock * 1e9,
                self.special,
            ),
            self.clock * 1e9,
            self.memory * 1024 * _MIB,
        )


DATASHEETS: dict[str, _Datasheet] = {
    "cuda:a100-40gb": _Datasheet(80, ("A100", "40GB"), 108, 163, 40, 1.555, 312, 19.5, 1.41, 40),
    "cuda:a100": _Datasheet(80, ("A100",), 108, 163, 40, 2.039, 312, 19.5, 1.41, 80),
    "cuda:a10": _Datasheet(86, ("A10",), 72, 99, 6, 0.600, 125, 31.2, 1.695, 24),
    "cuda:a40": _Datasheet(86, ("A40",), 84, 99, 6, 0.696, 150, 37.4, 1.74, 48),
    "cuda:a6000": _Datasheet(86, ("RTX A6000",), 84, 99, 6, 0.768, 155, 38.7, 1.80, 48),
    "cuda:rtx3090": _Datasheet(86, ("RTX 3090",), 82, 99, 6, 0.936, 71, 35.6, 1.695, 24),
    "cuda:l4": _Datasheet(89, ("L4",), 58, 99, 48, 0.300, 121, 30.3, 2.04, 24),
    "cuda:l40s": _Datasheet(89, ("L40S",), 142, 99, 96, 0.864, 362, 91.6, 2.52, 48),
    "cuda:rtx4090": _Datasheet(89, ("RTX 4090",), 128, 99, 72, 1.008, 165, 82.6, 2.52, 24),
    "cuda:h100-pcie": _Datasheet(90, ("H100", "PCIe"), 114, 227, 50, 2.0, 756, 51, 1.755, 80),
    "cuda:h100": _Datasheet(90, ("H100",), 132, 227, 50, 3.35, 989, 67, 1.98, 80),
    "cuda:gh200": _Datasheet(90, ("GH200",), 132, 227, 50, 4.0, 989, 67, 1.98, 96),
    "cuda:h200": _Datasheet(90, ("H200",), 132, 227, 50, 4.8, 989, 67, 1.98, 141),
    "cuda:b200": _Datasheet(100, ("B200",), 148, 227, 126, 8.0, 2250, 75, 1.965, 180),
    "hip:mi250x": _Datasheet("gfx90a", ("MI250X",), 110, 64, 8, 1.6, 191, 24, 1.7, 64, 64),
    "hip:mi300x": _Datasheet("gfx942", ("MI300X",), 304, 64, 256, 5.3, 1307, 163, 2.1, 192, 64),
}
"""GPUs that can be named without being at hand; of AMD's the L2 is the last level before memory, and an MI250X is one
of its two dies."""

_BY_ARCH = {
    "cuda:sm_80": "cuda:a100",
    "cuda:sm_86": "cuda:a10",
    "cuda:sm_89": "cuda:l40s",
    "cuda:sm_90": "cuda:h200",
    "cuda:sm_100": "cuda:b200",
    "hip:gfx90a": "hip:mi250x",
    "hip:gfx942": "hip:mi300x",
}
"""The GPU that an architecture's name stands for."""

NAMED: dict[str, GpuTarget] = {
    name: DATASHEETS[sheet].target(name) for name, sheet in (_BY_ARCH | {sheet: sheet for sheet in DATASHEETS}).items()
}
"""The targets that can be named, by architecture and by model."""


def target_of_record(record: Mapping[str, Any]) -> GpuTarget:
    """The inverse of ``asdict``, also of records that older versions wrote. KeyError or TypeError for anything else."""
    facts = {f.name: record[f.name] for f in fields(GpuTarget) if f.name != "rates"}
    known = record.get("rates")
    sheet = _most_similar(facts["arch"], facts["name"], facts["sms"])
    return GpuTarget(**facts, rates=GpuRates(**known) if known else sheet.target(facts["name"]).rates)


def has_cuda() -> bool:
    """Whether PyTorch is here and sees a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def is_gpu(target: str) -> bool:
    """Whether a target's name is that of a GPU."""
    return target.partition(":")[0] in ("cuda", "hip")


def is_device(target: str) -> bool:
    """Whether a target's name is that of a GPU of this process, such as ``cuda`` or ``cuda:1``."""
    return target == "cuda" or (target.startswith("cuda:") and target.removeprefix("cuda:").isdecimal())


def gpu_target(name: str) -> GpuTarget:
    """``cuda`` (this machine's first device), ``cuda:1``, ``cuda:sm_90``, ``cuda:h200``, ``hip:gfx942``, ...

    TargetError for others.
    """
    known = NAMED.get(name.lower())
    if known is not None:
        return known
    if is_device(name):
        return device_target(int(name.removeprefix("cuda").removeprefix(":") or "0"))
    raise TargetError(f"no GPU target {name!r}; known: {', '.join(NAMED)}, or 'cuda' for a device of this machine")


def device_target(index: int) -> GpuTarget:
    """The CUDA device ``index`` of this process, its facts read from the device. TargetError without one."""
    if not has_cuda():
        raise TargetError(f"no CUDA device {index} here; name the GPU to compile for, such as 'cuda:sm_90'")
    import torch

    if index >= torch.cuda.device_count():
        raise TargetError(f"no CUDA device {index} here, there are {torch.cuda.device_count()}")
    return target_of_properties(torch.cuda.get_device_properties(index))


def target_of_properties(p: Any) -> GpuTarget:
    """The target that PyTorch's properties of a device describe; what they leave out is the most similar GPU's."""
    arch = 10 * p.major + p.minor
    sheet = _most_similar(arch, p.name, p.multi_processor_count)
    base = sheet.target(f"cuda:sm_{arch}")
    share = p.multi_processor_count / base.sms
    clock = 1e3 * getattr(p, "clock_rate", 0) or base.clock  # PyTorch gives kHz
    pins = getattr(p, "memory_bus_width", 0) / 8 * getattr(p, "memory_clock_rate", 0) * 2e3
    return replace(
        base,
        arch=arch,
        sms=p.multi_processor_count,
        shared_memory=int(getattr(p, "shared_memory_per_block_optin", base.shared_memory)),
        l2=p.L2_cache_size,
        rates=base.rates.scaled(share, clock / base.clock, pins / (sheet.bandwidth * 1e12) or 1.0),
        clock=clock,
        memory=p.total_memory,
    )


def _most_similar(arch: int | str, name: str, sms: int) -> _Datasheet:
    sheets = [sheet for sheet in DATASHEETS.values() if sheet.arch == arch]
    named = [sheet for sheet in sheets if all(re.search(rf"\b{re.escape(w)}", name) for w in sheet.words)]
    numbered = [(sheet.arch, sheet) for sheet in DATASHEETS.values() if isinstance(sheet.arch, int)]
    older = [sheet for number, sheet in numbered if isinstance(arch, int) and number <= arch]
    if named:
        return max(named, key=lambda sheet: len("".join(sheet.words)))
    return min(sheets or older[-1:] or list(DATASHEETS.values())[:1], key=lambda sheet: abs(sheet.sms - sms))


def require_device(backend: str, arch: int | str, index: int) -> None:
    """TargetError where device ``index`` of this process is not there, or can't run code for that architecture."""
    wanted = f"sm_{arch}" if backend == "cuda" else str(arch)
    if backend != "cuda":
        raise TargetError(f"code for {wanted} is compiled here and not run: launching it is not there yet")
    if not has_cuda():
        raise TargetError(f"no GPU here to run code for {wanted}")
    import torch

    if index >= torch.cuda.device_count():
        raise TargetError(f"no device cuda:{index} here, there are {torch.cuda.device_count()}")
    major, minor = torch.cuda.get_device_capability(index)
    if 10 * major + minor != arch:
        raise TargetError(f"cuda:{index} is sm_{major}{minor}; the code is for {wanted}; compile for this GPU")
