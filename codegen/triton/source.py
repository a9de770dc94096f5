# SPDX-License-Identifier: Apache-2.0
"""A module of Triton kernels as one readable source file, and its functions."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fusec import config
from fusec.codegen.triton.describe import Descriptor
from fusec.codegen.triton.emit import LaunchGrid, TritonKernel, emit_kernel
from fusec.codegen.triton.header import HEADER
from fusec.codegen.triton.spelling import BEGIN, EIGHT_BITS, ERF, HELPER_SOURCE, POINTERS, SPLIT, TANH, WIDEN
from fusec.errors import CodegenError
from fusec.ir.index import Symbol
from fusec.ir.indexing import evaluate
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel

CONVERTS_EIGHT_BITS = 89
"""The least compute capability, times ten, with an instruction that rounds to 8 bits."""


@dataclass(frozen=True)
class KernelSource:
    """One kernel: its text, pointer types, blocks on each launch axis, warps a block and stages of its loops.

    ``sizes`` are integers that it takes after the pointers, of 64 bits if ``wide``, else of 32; the grid may depend on
    them. ``registers`` is the most that a thread may have, 0 for any. ``unaligned`` is the same kernel for addresses
    that are no multiples of 16 bytes, where it needs other text.
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    grid: LaunchGrid
    warps: int
    stages: int
    descriptors: tuple[Descriptor, ...] = ()
    unaligned: KernelSource | None = None
    registers: int = 0
    sizes: tuple[Symbol, ...] = ()
    wide: bool = False


@dataclass(frozen=True)
class ModuleSource:
    """The kernels of a module, in order, and what stands before them."""

    kernels: tuple[KernelSource, ...]
    header: str

    @property
    def text(self) -> str:
        """The whole file."""
        parts = [k.text for kernel in self.kernels for k in (kernel, kernel.unaligned) if k is not None]
        return "\n\n\n".join(part.rstrip("\n") for part in (self.header, *parts)) + "\n"

    def __getitem__(self, name: str) -> KernelSource:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise CodegenError(f"the module has no kernel {name!r}")


def module_source(kernels: Sequence[Kernel], target: GpuTarget) -> ModuleSource:
    """Source for kernels, whose names must differ. LoweringError for one that Triton can't say."""
    if len({k.name for k in kernels}) != len(kernels):
        raise CodegenError("two kernels of one module have the same name")
    header = f"{HEADER}\n\n{HELPER_SOURCE}\n\n{TANH[target.backend]}\n\n{WIDEN[target.backend]}\n\n{ERF}"
    header += f"\n\n{SPLIT.format('tf32x3' if target.splits_f32 else 'ieee')}"
    if target.overlaps:
        header += f"\n\n{BEGIN}"
    if target.backend == "cuda" and isinstance(target.arch, int) and target.arch >= CONVERTS_EIGHT_BITS:
        header += f"\n\n{EIGHT_BITS}"
    return ModuleSource(tuple(_kernel_source(k, target) for k in kernels), header)


def _kernel_source(kernel: Kernel, target: GpuTarget) -> KernelSource:
    pointers = tuple(POINTERS[b.dtype.name] for b in kernel.parameters)

    def made(kernel: Kernel, emitted: TritonKernel, unaligned: KernelSource | None) -> KernelSource:
        launch = (kernel.warps or 4, kernel.stages or 1)
        return KernelSource(
            kernel.name,
            emitted.text,
            pointers,
            emitted.grid,
            *launch,
            emitted.descriptors,
            unaligned,
            kernel.registers,
            emitted.sizes,
            emitted.wide,
        )

    emitted = emit_kernel(kernel, descriptors=target.has_tma, overlaps=target.overlaps)
    if not emitted.descriptors:
        return made(kernel, emitted, None)
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return made(kernel, emitted, made(plain, emit_kernel(plain, overlaps=target.overlaps), None))


def signature_of(kernel: KernelSource) -> list[str]:
    """The types of a kernel's parameters as Triton names them."""
    described = [f"tensordesc<{POINTERS[d.dtype].removeprefix('*')}{list(d.block)}>" for d in kernel.descriptors]
    sizes = ["i64" if kernel.wide else "i32"] * len(kernel.sizes)
    return [*kernel.pointers, *sizes, *described]


@dataclass(frozen=True)
class LoadedSource:
    """The functions of a source file, as ``triton.jit`` made them."""

    source: ModuleSource
    functions: Mapping[str, Any]

    def launch(self, name: str, tensors: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        """Runs a kernel through Triton's own launcher, or its interpreter."""
        kernel = self.source[name]
        known = {s.name: n for s, n in zip(kernel.sizes, sizes, strict=True)}
        grid = tuple(evaluate(n, known) for n in kernel.grid)
        if all(grid):
            described = [_descriptor(d, tensors[d.parameter], known) for d in kernel.descriptors]
            options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
            self.functions[name][grid](*tensors, *sizes, *described, **options)


def _descriptor(d: Descriptor, tensor: Any, known: Mapping[str, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape, strides = ([evaluate(n, known) for n in given] for given in (d.shape, d.strides))
    return TensorDescriptor(tensor, shape, strides, list(d.block))


def load_source(source: ModuleSource, interpreted: Any = None) -> LoadedSource:
    """Imports the source from a file, which Triton reads. ``interpreted`` stands in for the device's libraries."""
    path = _write(source.text)
    spec = importlib.util.spec_from_file_location(f"fusec_triton_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if interpreted is not None:
        module.libdevice = interpreted  # type: ignore[attr-defined]
        module._tanh = interpreted.tanh  # type: ignore[attr-defined]
        module._widen = interpreted.widen  # type: ignore[attr-defined]
        module._begin = interpreted.begin  # type: ignore[attr-defined]
        module._to_f8e4m3 = interpreted.to_f8e4m3  # type: ignore[attr-defined]
    every = [k for kernel in source.kernels for k in (kernel, kernel.unaligned) if k is not None]
    functions: dict[str, Callable[..., Any]] = {k.name: getattr(module, k.name) for k in every}
    return LoadedSource(source, functions)


def _write(text: str) -> Path:
    """The file with this text, in the cache folder or, where that can't be written, in a temporary one."""
    name = f"k{sha256(text.encode()).hexdigest()[:24]}.py"
    for folder in (config.cache_dir() / "triton", Path(tempfile.gettempdir()) / f"fusec-triton-{os.getuid()}"):
        path = folder / name
        try:
            if path.is_file() and path.read_text() == text:
                return path
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
                file.write(text)
            os.replace(file.name, path)
            return path
        except OSError:
            continue
    raise CodegenError("no folder for generated source can be written; set FUSEC_CACHE_DIR")
