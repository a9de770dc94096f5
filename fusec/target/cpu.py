# SPDX-License-Identifier: Apache-2.0
"""Facts about a CPU: what LLVM is told of it, and the rates that a roofline needs."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fusec.errors import TargetError
from fusec.ir.types import DType
from fusec.target.features import features_of
from fusec.target.quota import usable_processors
from fusec.target.tiles import allow_tiles


@dataclass(frozen=True)
class CpuTarget:
    """A CPU to compile for.

    mcpu, attributes: LLVM's name of the processor and feature switches (``-prefer-256-bit``). vector_bits: width of a
    vector register; vector_registers: how many there are. l1, l2, l3: data cache sizes in bytes (L1 and L2 of one core,
    L3 shared). cores: cores that may be used. frequency: sustained clock in Hz. fma_units: vector FMAs a cycle a core.
    bandwidth: main memory, bytes a second, all cores together. matmul_features: instruction sets that multiply
    low-precision types into wide sums, as Linux spells them (``amx_bf16``). triple: LLVM's name of the platform, where
    it is another than x86-64 Linux.
    """

    name: str
    mcpu: str
    attributes: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    frequency: float
    fma_units: int
    bandwidth: float
    matmul_features: tuple[str, ...] = ()
    triple: str = ""

    @property
    def architecture(self) -> str:
        """As ``uname -m`` says it."""
        return self.triple.partition("-")[0] or "x86_64"

    def lanes(self, bits: int) -> int:
        """Lanes of a vector whose elements have this many bits."""
        return max(1, self.vector_bits // bits)

    def peak_flops(self, bits: int = 32, cores: int | None = None) -> float:
        """Floating-point operations a second (a fused multiply-add counts two)."""
        return 2.0 * self.lanes(bits) * self.fma_units * self.frequency * (cores or self.cores)

    def matmul_flops(self, dtype: DType, cores: int | None = None) -> float:
        """Operations a second of a matmul's operands of this type, in the fastest unit that multiplies them."""
        if self.multiplies_in_tiles(dtype):
            return self.tile_flops(dtype.bits) * (cores or self.cores)
        if self.multiplies(dtype):
            return self.peak_flops(dtype.bits, cores)
        return self.peak_flops(max(dtype.bits, 32), cores)

    def tile_flops(self, bits: int) -> float:
        """Operations a second of one core's AMX tiles."""
        return _TILE_FLOPS * (16 / bits) * self.frequency

    def multiplies(self, dtype: DType) -> bool:
        """Whether vector instructions add up products of this low-precision type in a wide one."""
        return _VECTOR_MATMULS.get(dtype.name) in self.matmul_features

    def multiplies_in_tiles(self, dtype: DType) -> bool:
        """Whether AMX tiles do."""
        return _TILE_MATMULS.get(dtype.name) in self.matmul_features

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run code for the target."""
        if self.name == "cpu":
            return True
        if self.architecture != platform.machine():
            return False
        host = host_cpu()
        if not set(self.matmul_features) <= set(host.matmul_features):
            return False
        if self.mcpu in (host.mcpu, "x86-64"):
            return True
        return (self.mcpu == "x86-64-v3" and host.has_fma) or (self.mcpu == "x86-64-v4" and host.has_avx512)

    @property
    def has_fma(self) -> bool:
        """Whether it has fused multiply-add and, on x86, F16C, which came with it."""
        return self.mcpu != "x86-64"

    @property
    def has_avx512(self) -> bool:
        return self.vector_bits == 512

    @property
    def takes_rows_in_stages(self) -> bool:
        """Whether rows that are read again from L2 cost less than waiting for memory."""
        return self.mcpu.startswith("znver")

    @property
    def fetches_to_l2(self) -> bool:
        """Whether rows are better fetched to L2 than to L1, which waits for 16 lines at most, those stored included."""
        return self.mcpu in _INTEL_SERVERS

    @property
    def roots_slowly(self) -> bool:
        """Whether a root of a 512-bit vector takes longer than eight multiplications, during which nothing divides."""
        return self.mcpu in _INTEL_SERVERS


_INTEL_SERVERS = ("skylake-avx512", "icelake-server", "sapphirerapids")
_ZENS = {25: ("znver4", "x86-64-v4", "znver3"), 26: ("znver5", "znver4", "x86-64-v4", "znver3")}
"""LLVM's names of AMD's processors by their family, newest first."""

_KIB, _MIB = 1024, 1024 * 1024

_TILE_FLOPS = 1024
"""Operations a cycle on AMX tiles of bf16: 16×16×32 multiply-adds in 16 cycles (Intel's optimisation manual, 20.2)."""

_VECTOR_MATMULS = {"bf16": "avx512_bf16", "i8": "avx512_vnni"}
_TILE_MATMULS = {"bf16": "amx_bf16", "i8": "amx_int8"}
_VNNI = ("avx512_vnni",)
_BF16 = ("avx512_bf16", "avx512_vnni")
_AMX = ("amx_bf16", "amx_int8", "amx_tile", *_BF16)

_GENERIC_V3 = CpuTarget("cpu:x86-64-v3", "x86-64-v3", (), 256, 16, 32 * _KIB, 512 * _KIB, 16 * _MIB, 4, 3.0e9, 2, 30e9)
_BASELINE = replace(_GENERIC_V3, name="cpu:x86-64", mcpu="x86-64", vector_bits=128, fma_units=1)
_WIDE = ("-prefer-256-bit",)


def _arm(mcpu: str, l2: int, frequency: float) -> CpuTarget:
    """A server's core with NEON, or SVE, of which vectors of 128 bits are used."""
    return CpuTarget(
        f"cpu:{mcpu}", mcpu, (), 128, 32, 64 * _KIB, l2, 32 * _MIB, 4, frequency, 2, 40e9, triple="aarch64-linux-gnu"
    )


NAMED: dict[str, CpuTarget] = {
    "x86-64": _BASELINE,
    "x86-64-v3": _GENERIC_V3,
    "x86-64-v4": CpuTarget(
        "cpu:x86-64-v4", "x86-64-v4", _WIDE, 512, 32, 32 * _KIB, 1 * _MIB, 32 * _MIB, 4, 2.5e9, 2, 40e9
    ),
    "haswell": replace(_GENERIC_V3, name="cpu:haswell", mcpu="haswell", l2=256 * _KIB),
    "znver3": replace(_GENERIC_V3, name="cpu:znver3", mcpu="znver3", l3=32 * _MIB, frequency=3.4e9),
    "znver4": CpuTarget(
        "cpu:znver4", "znver4", _WIDE, 512, 32, 32 * _KIB, 1 * _MIB, 32 * _MIB, 4, 3.6e9, 1, 60e9, _BF16
    ),
    "znver5": CpuTarget(
        "cpu:znver5", "znver5", _WIDE, 512, 32, 48 * _KIB, 1 * _MIB, 32 * _MIB, 4, 4.0e9, 2, 60e9, _BF16
    ),
    "skylake-avx512": CpuTarget(
        "cpu:skylake-avx512", "skylake-avx512", _WIDE, 512, 32, 32 * _KIB, 1 * _MIB, 16 * _MIB, 4, 2.4e9, 2, 40e9
    ),
    "icelake-server": CpuTarget(
        "cpu:icelake-server",
        "icelake-server",
        _WIDE,
        512,
        32,
        48 * _KIB,
        1280 * _KIB,
        24 * _MIB,
        4,
        2.6e9,
        2,
        60e9,
        _VNNI,
    ),
    "sapphirerapids": CpuTarget(
        "cpu:sapphirerapids", "sapphirerapids", _WIDE, 512, 32, 48 * _KIB, 2 * _MIB, 32 * _MIB, 4, 2.8e9, 2, 80e9, _AMX
    ),
    "neoverse-n1": _arm("neoverse-n1", 1 * _MIB, 3.0e9),
    "neoverse-v1": _arm("neoverse-v1", 1 * _MIB, 2.6e9),
}
"""Processors that can be named without being at hand; core counts and clocks are typical of a small machine."""


def cpu_target(name: str = "cpu", cores: int | None = None) -> CpuTarget:
    """The target ``cpu`` (this machine) or ``cpu:NAME``. TargetError for a name that is not known."""
    kind, colon, base = name.partition(":")
    if kind != "cpu":
        raise TargetError(f"no target {name!r}; one is named 'cpu', 'cpu:x86-64-v3', 'cuda', 'cuda:sm_90' and the like")
    if not colon:
        found = host_cpu()
    elif base in NAMED:
        found = NAMED[base]
    else:
        raise TargetError(f"no CPU named {base!r}; known: {', '.join(NAMED)}, or 'cpu' for this machine")
    return found if cores is None else replace(found, cores=cores)


@cache
def host_cpu() -> CpuTarget:
    """This machine, read from /proc and /sys. TargetError where they don't tell."""
    facts = _cpuinfo()
    flags = frozenset(facts.get("flags", "").split())
    if not flags:
        raise TargetError("/proc/cpuinfo does not tell this CPU's features; name one, such as 'cpu:x86-64-v3'")
    mcpu = _llvm_name(facts, flags)
    base = NAMED[mcpu]
    return replace(
        base,
        name="cpu",
        l1=_cache_bytes(1, base.l1),
        l2=_cache_bytes(2, base.l2),
        l3=_cache_bytes(3, base.l3),
        cores=usable_processors(),
        matmul_features=_host_matmul_features(flags) if base.has_avx512 else (),
    )


@cache
def host_model() -> str:
    """What tells this kind of CPU from others: its name, family, model and stepping."""
    facts = _cpuinfo()
    name = facts.get("model name", "unknown CPU")
    return f"{name}, family {facts.get('cpu family')} model {facts.get('model')} stepping {facts.get('stepping')}"


def _host_matmul_features(flags: frozenset[str]) -> tuple[str, ...]:
    """What multiplies low-precision types here; AMX only where Linux lets this process use its registers."""
    tiles = {"amx_tile", "amx_bf16", "amx_int8"} <= flags and allow_tiles()
    return tuple(name for name in _AMX if name in flags and (tiles or not name.startswith("amx")))


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    facts: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError as error:
        raise TargetError(f"can't read the features of this CPU: {error}") from None
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            break
        facts[key.strip()] = value.strip()
    return facts


def _llvm_name(facts: dict[str, str], flags: frozenset[str]) -> str:
    """LLVM's processor name, from vendor and family (AMD, Intel manuals' numbers), of the newest whose instructions are
    all there: a virtual machine may hide some."""
    names: tuple[str, ...] = ()
    if facts.get("vendor_id") == "AuthenticAMD":
        names = _ZENS.get(int(facts.get("cpu family", 0)), ())
    if facts.get("vendor_id") == "GenuineIntel":
        names = tuple(reversed(_INTEL_SERVERS))
    found = (name for name in (*names, "x86-64-v4", "x86-64-v3") if flags.issuperset(features_of(name)))
    return next(found, "x86-64")


def _cache_bytes(level: int, default: int) -> int:
    """Size of a data cache of the first core, from sysfs; the default where it does not say."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            if kind != "Instruction" and int((folder / "level").read_text()) == level:
                text = (folder / "size").read_text().strip()
                return int(text.rstrip("KM")) * {"K": _KIB, "M": _MIB}.get(text[-1], 1)
        except (OSError, ValueError):
            continue
    return default
