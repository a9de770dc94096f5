"""Kernels compiled for cards that are not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusec.codegen.cuda.build import compile_sources, module_source
from fusec.codegen.cuda.nvrtc import Cubin
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel


def cubins(kernel: Kernel, target: str, *, unaligned: bool) -> Mapping[str, Cubin]:
    """The kernel's machine code by name, and with ``unaligned`` that of its form for any address: half of the time."""
    card = gpu_target(target)
    source = module_source([kernel], card)
    if not unaligned:
        source = replace(source, kernels=tuple(replace(k, unaligned=None) for k in source.kernels))
    return compile_sources(source, card).cubins
