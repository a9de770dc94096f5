# SPDX-License-Identifier: Apache-2.0
"""Kernels to cubins, for the GPU at hand or for another."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fusec import tracing
from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.nvrtc import Cubin, compile_source
from fusec.codegen.cuda.source import KernelSource, ModuleSource, every
from fusec.errors import CodegenError, TargetError
from fusec.progress import bar
from fusec.target.gpu import GpuTarget
from fusec.target.quota import usable_processors
from fusec.tile.kernel import Kernel


def compile_kernels(kernels: Sequence[Kernel], target: GpuTarget) -> CudaModule:
    """Compiles kernels, whose names must differ; no GPU is needed.

    Raises LoweringError for a kernel that this generator can't say, CodegenError where NVRTC fails on one, TargetError
    where NVRTC is missing or does not know the target.
    """
    return compile_sources(module_source(kernels, target), target)


def compile_sources(source: ModuleSource, target: GpuTarget) -> CudaModule:
    """Compiles kernels that have been written; errors as :func:`compile_kernels`."""
    units = every(source.kernels)
    owners = {unit.name: kernel.name for kernel in source.kernels for unit in every([kernel])}
    cubins = []
    with bar("compiling kernels", len(units)) as done, ThreadPoolExecutor(usable_processors()) as pool:
        for cubin in pool.map(lambda k: _compile(k, source.arch, owners[k.name]), units):
            cubins.append(cubin)
            done()
    for unit, cubin in zip(units, cubins, strict=True):
        if unit.shared > target.shared_memory:
            needed = f"{unit.shared} bytes of shared memory, {target.name} has {target.shared_memory}"
            raise CodegenError(f"{unit.name} needs {needed}: {cubin.log}", kernel=owners[unit.name])
    return CudaModule(target, source, {u.name: c for u, c in zip(units, cubins, strict=True)})


def _compile(kernel: KernelSource, arch: str, owner: str) -> Cubin:
    with tracing.span(f"nvrtc {kernel.name}", "compile", target=arch) as span:
        try:
            cubin = compile_source(kernel.text, arch, kernel.name, kernel.shapes)
        except CodegenError as error:
            error.kernel = owner
            raise
        span.note(registers=cubin.registers, spills=cubin.spills)
        return cubin


def module_source(kernels: Sequence[Kernel], target: GpuTarget) -> ModuleSource:
    """Source for kernels, whose names must differ. LoweringError for one that can't be said."""
    if len({k.name for k in kernels}) != len(kernels):
        raise CodegenError("two kernels of one module have the same name")
    return ModuleSource(tuple(emit_kernel(k, target) for k in kernels), arch_of(target))


def arch_of(target: GpuTarget) -> str:
    """What NVRTC calls the target. Hopper's and later GPUs' own instructions (``a``) are used. TargetError for AMD."""
    if target.backend != "cuda" or not isinstance(target.arch, int):
        raise TargetError(f"CUDA C++ runs on NVIDIA's GPUs, not on {target.name}")
    return f"sm_{target.arch}a" if target.arch >= 90 else f"sm_{target.arch}"
