# SPDX-License-Identifier: Apache-2.0
"""A program's kernels for one GPU, each compiled from the language that it was scheduled for."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fusec.codegen.cuda.module import MAGIC as CUDA_MAGIC
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.source import KernelSource, ModuleSource
from fusec.codegen.launches import Launched
from fusec.codegen.triton.module import TritonModule
from fusec.errors import ArtifactError, CodegenError, LoweringError
from fusec.packages import needing_compiler
from fusec.runtime.launch import DeviceKernel
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.templates import HopperGemm

MAGIC = b"fusec-gpu-parts\n"
Part = TritonModule | CudaModule


@dataclass(frozen=True, eq=False)
class GpuModule(Launched):
    """Modules of several languages as one. A kernel of CUDA C++ that needs aligned addresses is in Triton's, too."""

    target: GpuTarget
    parts: tuple[Part, ...]

    @cached_property
    def _owners(self) -> Mapping[str, Part]:
        parts = sorted(self.parts, key=lambda part: isinstance(part, CudaModule))
        return {k.name: part for part in parts for k in part.text.kernels}

    @cached_property
    def _in_triton(self) -> Mapping[str, TritonModule]:
        return {k.name: part for part in self.parts if isinstance(part, TritonModule) for k in part.text.kernels}

    def part(self, name: str) -> Part:
        """The module that has the kernel."""
        if name not in self._owners:
            raise CodegenError(f"the module has no kernel {name!r}")
        return self._owners[name]

    def kernel(self, name: str, aligned: bool) -> DeviceKernel | None:
        """The kernel's code for addresses that are multiples of 16, or for others; None where it has nothing to do."""
        part = self.part(name)
        if not aligned and isinstance(part, CudaModule) and not part.takes_any_address(name):
            return self._in_triton[name].kernel(name, aligned)
        return part.kernel(name, aligned)

    def source(self, name: str) -> str:
        """The kernel in its language."""
        return self.part(name).source(name)

    def texts(self, name: str) -> dict[str, str]:
        """What can be read of one kernel, by the ending of a file's name."""
        return self.part(name).texts(name)

    def assembly(self) -> str:
        """What the compilers said or made."""
        return "\n".join(part.assembly() for part in self.parts)

    def complete(self) -> GpuModule:
        """This module, with all code that it may need compiled."""
        for part in self.parts:
            part.complete()
        return self

    def to_bytes(self) -> bytes:
        """A JSON record of the parts' own bytes."""
        return MAGIC + json.dumps([base64.b64encode(part.to_bytes()).decode() for part in self.parts]).encode()


def compile_kernels(kernels: Sequence[Kernel], target: GpuTarget) -> GpuModule | Part:
    """Compiles kernels, whose names must differ; no GPU is needed.

    Raises LoweringError for a kernel that its language can't say, CodegenError where a compiler fails on one,
    TargetError where a compiler is missing.
    """
    parts: list[Part] = []
    said = _said_in_cuda(kernels, target)
    in_triton = [_for_any_address(k) if k.unaligned else k for k in kernels if k.name not in said]
    aligned: list[Kernel] = []
    if said:
        with needing_compiler("compiling kernels"):
            from fusec.codegen.cuda.build import arch_of, compile_sources

        module = compile_sources(ModuleSource(tuple(said.values()), arch_of(target)), target)
        parts.append(module)
        aligned = [k for k in kernels if k.name in said and not module.takes_any_address(k.name)]
    if in_triton or aligned:
        with needing_compiler("compiling kernels"):
            from fusec.codegen.triton.build import compile_kernels as compile_triton

        plain = [_for_any_address(k) for k in aligned]
        parts.append(compile_triton(in_triton, target, unaligned=plain))
    return parts[0] if len(parts) == 1 else GpuModule(target, tuple(parts))


def _said_in_cuda(kernels: Sequence[Kernel], target: GpuTarget) -> dict[str, KernelSource]:
    """The kernels that are to be written in CUDA C++, by name, without those that Triton says instead."""
    said: dict[str, KernelSource] = {}
    for kernel in kernels:
        if kernel.language == "cuda":
            with needing_compiler("compiling kernels"):
                from fusec.codegen.cuda.emit import emit_kernel

            try:
                said[kernel.name] = emit_kernel(kernel, target)
            except LoweringError:
                if isinstance(kernel.template, HopperGemm):
                    raise
    return said


def _for_any_address(kernel: Kernel) -> Kernel:
    """The kernel for Triton, in its own schedule where it has one."""
    if kernel.unaligned is not None:
        return replace(kernel.unaligned, name=kernel.name)
    return replace(kernel, template=None, language="triton", warps=8, stages=3)


def module_from_bytes(data: bytes) -> GpuModule | Part:
    """The module that ``to_bytes`` wrote. ArtifactError where it can't be read."""
    if data.startswith(MAGIC):
        try:
            texts = json.loads(data[len(MAGIC) :])
            parts = tuple(_part(base64.b64decode(text)) for text in texts)
            return GpuModule(parts[0].target, parts)
        except (ValueError, TypeError, IndexError) as error:
            raise ArtifactError(f"the GPU module is damaged: {error}") from None
    return _part(data)


def _part(data: bytes) -> Part:
    return CudaModule.from_bytes(data) if data.startswith(CUDA_MAGIC) else TritonModule.from_bytes(data)


def kernel_source(kernel: Kernel, target: GpuTarget) -> tuple[str, str]:
    """The ending of a file with the kernel's source in its language, and the source."""
    if kernel.language == "cuda":
        with needing_compiler("a kernel's source"):
            from fusec.codegen.cuda.emit import emit_kernel as emit_cuda

        return "cu", emit_cuda(kernel, target).text
    with needing_compiler("a kernel's source"):
        from fusec.codegen.triton.emit import emit_kernel as emit_triton

    return "triton.py", emit_triton(kernel, descriptors=target.has_tma).text
