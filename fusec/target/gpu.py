"""Facts about GPUs: what a kernel may use of them, and the rates that a roofline needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fusec.errors import TargetError

_KIB, _MIB = 1024, 1024**2
Backend = Literal["cuda", "hip"]


@dataclass(frozen=True)
class GpuTarget:
    """A GPU to compile for.

    arch: compute capability times ten (90), or AMD's name (``gfx942``). units: multiprocessors.
    shared_memory: bytes one block may use. l2: bytes. bandwidth: device memory, bytes a second.
    half_flops, single_flops: peak rates of bf16 matrix products and of plain f32 arithmetic.
    """

    name: str
    backend: Backend
    arch: int | str
    warp_size: int
    units: int
    shared_memory: int
    l2: int
    bandwidth: float
    half_flops: float
    single_flops: float

    @property
    def has_tma(self) -> bool:
        """Bulk tensor copies through descriptors (Hopper and later)."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 90


def _cuda(arch: int, units: int, shared: int, l2: int, bandwidth: float, half: float, single: float) -> GpuTarget:
    return GpuTarget(
        f"cuda:sm_{arch}",
        "cuda",
        arch,
        32,
        units,
        shared * _KIB,
        l2 * _MIB,
        bandwidth * 1e12,
        half * 1e12,
        single * 1e12,
    )


NAMED: dict[str, GpuTarget] = {
    "cuda:sm_80": _cuda(80, 108, 163, 40, 1.9, 312, 19.5),
    "cuda:sm_86": _cuda(86, 84, 99, 6, 0.93, 142, 35),
    "cuda:sm_89": _cuda(89, 128, 99, 72, 1.0, 165, 82),
    "cuda:sm_90": _cuda(90, 132, 227, 50, 4.2, 790, 60),
    "cuda:sm_100": _cuda(100, 148, 227, 126, 7.5, 1800, 75),
    "hip:gfx90a": GpuTarget("hip:gfx90a", "hip", "gfx90a", 64, 104, 64 * _KIB, 8 * _MIB, 1.6e12, 180e12, 24e12),
    "hip:gfx942": GpuTarget("hip:gfx942", "hip", "gfx942", 64, 304, 64 * _KIB, 256 * _MIB, 4.3e12, 650e12, 80e12),
}
"""Cards that can be named without being at hand (A100, A10, L4 and 4090, H100 and H200, B200, MI250, MI300X).
Rates are those that a copy or a large matrix product reaches, where known, else the vendors' datasheets."""


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


def gpu_target(name: str) -> GpuTarget:
    """``cuda`` (this machine's current device), ``cuda:sm_90``, ``hip:gfx942``, ... TargetError for others."""
    if name in NAMED:
        return NAMED[name]
    if name == "cuda" or name.removeprefix("cuda:").isdigit():
        return device_target(int(name.removeprefix("cuda").removeprefix(":") or "0"))
    raise TargetError(f"no GPU target {name!r}; known: {', '.join(NAMED)}, or 'cuda' for a device of this machine")


def device_target(index: int) -> GpuTarget:
    """The CUDA device ``index`` of this process, its sizes read from the device. TargetError without one."""
    import torch  # only a device of this machine needs it

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise TargetError(f"no CUDA device {index} here; name the card to compile for, such as 'cuda:sm_90'")
    p = torch.cuda.get_device_properties(index)
    arch = 10 * p.major + p.minor
    base = NAMED.get(f"cuda:sm_{arch}") or NAMED["cuda:sm_80"]
    scale = p.multi_processor_count / base.units
    return replace(
        base,
        name=f"cuda:sm_{arch}",
        arch=arch,
        units=p.multi_processor_count,
        shared_memory=int(getattr(p, "shared_memory_per_block_optin", base.shared_memory)),
        l2=p.L2_cache_size,
        half_flops=base.half_flops * scale,
        single_flops=base.single_flops * scale,
    )


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
        raise TargetError(f"cuda:{index} is sm_{major}{minor}; the code is for {wanted}; compile for the card")
