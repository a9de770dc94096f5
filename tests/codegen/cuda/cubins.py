"""Kernels compiled for cards that are not here, and which of many kernels tell the compiler something new."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sweeps import covering_sets

from fusec.codegen.cuda.build import arch_of, compile_sources, module_source
from fusec.codegen.cuda.nvrtc import Cubin, compile_source
from fusec.codegen.cuda.source import KernelSource, every
from fusec.target.gpu import GpuTarget, gpu_target
from fusec.tile.kernel import Kernel


def cubins(kernel: Kernel, target: str, *, unaligned: bool) -> Mapping[str, Cubin]:
    """The kernel's machine code by name, and with ``unaligned`` that of its form for any address: half of the time."""
    card = gpu_target(target)
    source = module_source([kernel], card)
    if not unaligned:
        source = replace(source, kernels=tuple(replace(k, unaligned=None) for k in source.kernels))
    return compile_sources(source, card).cubins


_SAID = re.compile(r"\b[A-Za-z]\w*(?=<[^;{}()]*>)|\b[a-z]\w*(?=\()|\b(?:float|double|bool|[fbiu]+\d+)\b")


def telling(
    sources: Mapping[str, Iterable[KernelSource]], target: GpuTarget, *, whole: bool
) -> Iterator[tuple[str, Cubin]]:
    """Names and machine code of few kernels that together hold every function called, template and type that any kernel
    of the cases holds; numbers do not count. ``whole``: of each text."""
    texts: dict[str, tuple[str, KernelSource]] = {}
    for case, kernels in sources.items():
        for kernel in every(tuple(kernels)):
            texts.setdefault(kernel.text, (f"{case}: {kernel.name}", kernel))
    found = list(texts.values())
    for n in range(len(found)) if whole else covering_sets([_said(kernel) for _, kernel in found]):
        name, kernel = found[n]
        assert kernel.shared <= target.shared_memory, name
        yield name, compile_source(kernel.text, arch_of(target), kernel.name, kernel.shapes)


def _said(kernel: KernelSource) -> frozenset[str]:
    """But the kernel's own name, which no other has."""
    return frozenset(_SAID.findall(re.sub(r"//.*", "", kernel.text))) - {kernel.name}
