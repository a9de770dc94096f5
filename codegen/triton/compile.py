# SPDX-License-Identifier: Apache-2.0
"""One kernel's Triton source to machine code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusec import tracing
from fusec.codegen.triton.source import KernelSource, LoadedSource, signature_of
from fusec.errors import CodegenError
from fusec.target.gpu import GpuTarget

_RACE, _TRIES = "AST constructor recursion depth mismatch", 16
"""What CPython before 3.13 may raise where two threads parse at a time (github.com/python/cpython/issues/106905)."""


@dataclass(frozen=True, eq=False)
class Binary:
    """One kernel's machine code, what its launcher must know, and its assembly."""

    code: bytes
    metadata: dict[str, Any]
    assembly: str = ""


def compile_one(loaded: LoadedSource, kernel: KernelSource, target: GpuTarget, *, aligned: bool) -> Binary:
    """One kernel's machine code. ``aligned``: every address is a multiple of 16 bytes."""
    from triton.backends.compiler import GPUTarget as TritonTarget
    from triton.compiler import ASTSource

    function = loaded.functions[kernel.name]
    signature = dict(zip(function.arg_names, signature_of(kernel), strict=True))
    attributes: dict[tuple[int], list[list[Any]]] = {}
    if aligned:
        attributes = {(i,): [["tt.divisibility", 16]] for i in range(len(kernel.pointers))}
    text = ASTSource(function, signature, {}, attributes)
    device = TritonTarget(target.backend, target.arch, target.warp_size)
    for stages in range(kernel.stages, 0, -1):
        options = {"num_warps": kernel.warps, "num_stages": stages, "launch_pdl": target.overlaps}
        if kernel.registers and target.backend == "cuda":
            options["maxnreg"] = kernel.registers
        try:
            with tracing.span(f"triton {kernel.name}", "compile", target=target.name, stages=stages, aligned=aligned):
                compiled = _compiled(text, target=device, options=options)
        except Exception as error:
            reason = str(error).strip()[-600:]
            message = f"Triton can't compile {kernel.name} for {target.name}: {reason}\n{kernel.text}"
            raise CodegenError(message, kernel=kernel.name) from error
        if compiled.metadata.shared <= target.shared_memory:
            break  # else fewer loads ahead take less shared memory
    else:
        needed = f"{compiled.metadata.shared} bytes of shared memory, {target.name} has {target.shared_memory}"
        raise CodegenError(f"{kernel.name} needs {needed}", kernel=kernel.name)
    metadata = {**compiled.metadata._asdict(), "target": None}
    form = "cubin" if target.backend == "cuda" else "hsaco"
    assembly = compiled.asm.get("ptx" if target.backend == "cuda" else "amdgcn", "")
    return Binary(bytes(compiled.asm[form]), {k: v for k, v in metadata.items() if _is_plain(v)}, str(assembly))


def _compiled(*source: Any, **options: Any) -> Any:
    """Triton's compiler, which parses its functions; kernels are compiled in threads."""
    import triton

    for _ in range(_TRIES - 1):
        try:
            return triton.compile(*source, **options)
        except Exception as error:
            if _RACE not in str(error):
                raise
    return triton.compile(*source, **options)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
