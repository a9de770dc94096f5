# SPDX-License-Identifier: Apache-2.0
"""Triton source to machine code, for the GPU at hand or for another, and back from saved bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fusec.codegen.triton.compile import Binary, compile_one
from fusec.codegen.triton.module import TritonModule
from fusec.codegen.triton.source import load_source, module_source
from fusec.progress import bar
from fusec.target.gpu import GpuTarget
from fusec.target.quota import usable_processors
from fusec.tile.kernel import Kernel

__all__ = ["compile_kernels", "load_source", "module_source"]


def compile_kernels(kernels: Sequence[Kernel], target: GpuTarget, *, unaligned: Sequence[Kernel] = ()) -> TritonModule:
    """Compiles kernels, whose names must differ; no GPU is needed.

    Every kernel is compiled for 16-byte aligned addresses; the code for others is made when they first come. Those of
    ``unaligned`` are wanted for such others only. As many are compiled at a time as there are processors: most of the
    work is LLVM's and the assembler's, without Python's lock.
    Raises LoweringError for a kernel that Triton can't say, CodegenError where it fails to compile one.
    """
    source = module_source([*kernels, *unaligned], target)
    loaded = load_source(source)
    names = {k.name for k in kernels}
    wanted = [kernel for kernel in source.kernels if kernel.name in names]
    binaries = {}
    with bar("compiling kernels", len(wanted)) as done, ThreadPoolExecutor(usable_processors()) as pool:
        made = pool.map(lambda kernel: compile_one(loaded, kernel, target, aligned=True), wanted)
        for kernel, binary in zip(wanted, made, strict=True):
            binaries[kernel.name] = binary
            done()

    def compile_unaligned(name: str) -> Binary:
        return compile_one(loaded, source[name].unaligned or source[name], target, aligned=False)

    return TritonModule(target, source, binaries, compile_unaligned)
