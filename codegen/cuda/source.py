# SPDX-License-Identifier: Apache-2.0
"""Generated CUDA C++: one source file a kernel, and what a launch of it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.errors import CodegenError
from fusec.ir.index import Index, Symbol


@dataclass(frozen=True)
class KernelSource:
    """One kernel: a whole translation unit, ``text``, that defines ``extern "C" __global__`` ``name``.

    Its parameters are the kernel's pointers in order, an ``int`` for each of ``sizes``, then one ``const
    __grid_constant__`` tensor map for each of ``tensor_maps``. grid: blocks on each axis. cluster: blocks that work
    together, which the text says, too (``__cluster_dims__``). threads: of one block. shared: bytes of dynamic shared
    memory. dtypes: of the parameters. shapes: columns of the wgmma instructions that it includes. aligned: every
    address must be a multiple of 16 bytes; ``unaligned`` is the same kernel for other addresses. overlaps: as
    :class:`fusec.runtime.launch.DeviceKernel`'s.
    """

    name: str
    text: str
    dtypes: tuple[str, ...]
    grid: tuple[Index, Index, Index]
    threads: int
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMap, ...] = ()
    shapes: tuple[int, ...] = ()
    aligned: bool = False
    unaligned: KernelSource | None = None
    overlaps: bool = False
    sizes: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class ModuleSource:
    """The kernels of a module, in order, for one architecture such as ``sm_90a``."""

    kernels: tuple[KernelSource, ...]
    arch: str

    def __getitem__(self, name: str) -> KernelSource:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise CodegenError(f"the module has no kernel {name!r}")


def every(kernels: Sequence[KernelSource]) -> list[KernelSource]:
    """The kernels, each followed by its form for unaligned addresses."""
    return [k for kernel in kernels for k in (kernel, kernel.unaligned) if k is not None]
