"""A module of Triton kernels as one readable source file, and its functions."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fusec import config
from fusec.codegen.triton.emit import HEADER, emit_kernel
from fusec.codegen.triton.spelling import POINTERS
from fusec.errors import CodegenError
from fusec.target.gpu import GpuTarget
from fusec.tile.nodes import Kernel


@dataclass(frozen=True)
class KernelSource:
    """One kernel: its text, pointer types, blocks on each launch axis, warps a block and stages of its loops."""

    name: str
    text: str
    pointers: tuple[str, ...]
    grid: tuple[int, int, int]
    warps: int
    stages: int


@dataclass(frozen=True)
class ModuleSource:
    """The kernels of a module, in order."""

    kernels: tuple[KernelSource, ...]

    @property
    def text(self) -> str:
        """The whole file."""
        return "\n\n".join([HEADER.rstrip("\n"), *(k.text.rstrip("\n") for k in self.kernels)]) + "\n"

    def __getitem__(self, name: str) -> KernelSource:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise CodegenError(f"the module has no kernel {name!r}")


def module_source(kernels: Sequence[Kernel], target: GpuTarget) -> ModuleSource:
    """Source for kernels, whose names must differ. LoweringError for one that Triton can't say."""
    if len({k.name for k in kernels}) != len(kernels):
        raise CodegenError("two kernels of one module have the same name")
    return ModuleSource(tuple(_kernel_source(k, target) for k in kernels))


def _kernel_source(kernel: Kernel, target: GpuTarget) -> KernelSource:
    emitted = emit_kernel(kernel)
    pointers = tuple(POINTERS[b.dtype.name] for b in kernel.parameters)
    return KernelSource(kernel.name, emitted.text, pointers, emitted.grid, kernel.warps or 4, kernel.stages or 1)


@dataclass(frozen=True)
class LoadedSource:
    """The functions of a source file, as ``triton.jit`` made them."""

    source: ModuleSource
    functions: Mapping[str, Any]

    def launch(self, name: str, tensors: Sequence[Any]) -> None:
        """Runs a kernel through Triton's own launcher, or its interpreter."""
        kernel = self.source[name]
        if all(kernel.grid):
            self.functions[name][kernel.grid](*tensors, num_warps=kernel.warps, num_stages=kernel.stages)


def load_source(source: ModuleSource, interpreted: Any = None) -> LoadedSource:
    """Imports the source from a file, which Triton reads. ``interpreted`` stands in for the device's libraries."""
    path = _write(source.text)
    spec = importlib.util.spec_from_file_location(f"fusec_triton_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if interpreted is not None:
        module.libdevice = interpreted  # type: ignore[attr-defined]
    functions: dict[str, Callable[..., Any]] = {k.name: getattr(module, k.name) for k in source.kernels}
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
