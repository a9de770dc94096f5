"""The machine a table was made on: what it is, and the most it can do, measured."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from benchmarks import noise
from benchmarks.native import native, streamed_copy
from fusec.runtime.memory import allocate
from fusec.target.cpu import cpu_target
from fusec.target.rates import Rates

PACKAGES = ("fusec", "apache-tvm", "torch", "numpy", "numexpr", "jax", "jaxlib")
_CHAINS = 20
_MB = 1 << 20


@dataclass(frozen=True)
class Machine:
    """last_cache: bytes of the cache before main memory.

    flops: single-precision operations a second, all threads together. bandwidth: bytes read and written a second.
    units: operations a second of matmuls, by what multiplies (``bf16``, ``i8``: vectors; ``bf16 tiles``: AMX).
    """

    model: str
    family: str
    mcpu: str
    cores: int
    threads: int
    caches: str
    last_cache: int
    memory: str
    date: str
    versions: dict[str, str]
    flops: float
    flops_from: str
    bandwidth: float
    units: dict[str, float] = field(default_factory=dict)

    def limit(self, flops: float, nbytes: float, multiplies: str = "f32") -> float | None:
        """The least seconds that this many operations and bytes take; None where a cache, not memory, is the limit.

        The operations are done by the fastest unit that ``multiplies`` this type.
        """
        fastest = max(self.units.get(multiplies, 0.0), self.units.get(f"{multiplies} tiles", 0.0)) or self.flops
        compute, memory = flops / fastest, nbytes / self.bandwidth
        if compute >= memory:
            return compute or None
        return memory if nbytes > 2 * self.last_cache else None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure_machine(threads: int, wait: float, rates: Rates) -> Machine:
    """Takes about three seconds, or up to ``wait`` more until no other process runs; the best found counts.

    ``rates``: as measured on this machine, which say what its units do.
    """
    target = cpu_target()
    fields = _cpuinfo()
    deadline = time.perf_counter() + wait
    flops, bandwidth, source = 0.0, 0.0, ""
    while True:
        start = noise.now()
        rate, source = _peak_flops(threads, target.vector_bits // 8)
        flops, bandwidth = max(flops, rate), max(bandwidth, _copy_bandwidth(threads))
        if noise.taken_by_others(start, noise.now()) < noise.TOLERATED or time.perf_counter() > deadline:
            break
    return Machine(
        model=fields.get("model name", "unknown"),
        family=f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}",
        mcpu=f"{target.mcpu}, {target.vector_bits}-bit vectors",
        cores=target.cores,
        threads=threads,
        caches=f"L1 {target.l1 >> 10} KB, L2 {target.l2 >> 10} KB a core, L3 {target.l3 >> 20} MB",
        last_cache=target.l3,
        memory=_memory(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions={name: _version(name) for name in PACKAGES},
        flops=flops,
        flops_from=source,
        bandwidth=bandwidth,
        units={name: threads * rate for name, rate in rates.multiply.items() if name != "f32"},
    )


def _cpuinfo() -> dict[str, str]:
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory() -> str:
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    mode = pages.read_text().split("[")[1].split("]")[0] if pages.exists() else "unknown"
    return f"{kilobytes / _MB:.0f} GB, transparent huge pages: {mode}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _in_threads(threads: int, work: Callable[[int], object]) -> float:
    """Seconds until all threads have done their part; the parts release the interpreter."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: None, range(threads)))
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
        return time.perf_counter() - start


def _peak_flops(threads: int, width: int) -> tuple[float, str]:
    """Operations a second of register-only multiply-adds, or of the best matmul where there is no compiler."""
    kernel = _fma_kernel()
    if kernel is not None:
        steps = 2_000_000
        seconds = min(_in_threads(threads, lambda _: kernel(steps, 0.5, 1.0)) for _ in range(24))
        return threads * steps * _CHAINS * (width // 4) * 2 / seconds, "multiply-adds on registers"
    a = torch.randn(2048, 2048)
    best = min(_seconds(lambda: torch.mm(a, a)) for _ in range(10))
    return 2 * 2048**3 / best, "the best matmul, 2048³"


def _fma_kernel() -> Callable[[int, float, float], float] | None:
    library = native("fma.cpp")
    if library is None:
        return None
    function = library.multiply_add
    function.restype = ctypes.c_float
    function.argtypes = (ctypes.c_long, ctypes.c_float, ctypes.c_float)
    result: Callable[[int, float, float], float] = function
    return result


def _copy_bandwidth(threads: int) -> float:
    """Bytes read and written a second, in arrays far larger than the caches, each thread its part: by ``np.copyto``, or
    past the caches where that is faster."""
    source = np.ones(256 * _MB // 4 * threads, np.float32)
    target = allocate(source.nbytes).view(np.float32)
    target.fill(0)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    seconds = min(_in_threads(threads, lambda i: np.copyto(parts[i][1], parts[i][0])) for _ in range(16))
    copy = streamed_copy(target, source, threads)
    if copy is not None:
        seconds = min(seconds, *(_seconds(copy) for _ in range(16)))
    return 2 * source.nbytes / seconds


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
