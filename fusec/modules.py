# SPDX-License-Identifier: Apache-2.0
"""Modules of machine code from their bytes: the backend of each is imported when it is needed."""

from __future__ import annotations

from typing import Any

from fusec import toolchain
from fusec.errors import FusecError
from fusec.runtime.executable import Module

GPU_MAGIC = b"fusec-gpu"
"""How the bytes of a module for a GPU begin."""


def is_unlinked(data: bytes) -> bool:
    """Whether a module's bytes are LLVM IR, which TVM compiles when it is loaded."""
    from fusec.codegen.tvm.module import UNLINKED

    return data.startswith(UNLINKED)


def load_module(data: bytes) -> Module:
    """The module that ``to_bytes`` wrote. ArtifactError where it can't be loaded."""
    if not data:
        return NoKernels()
    if data.startswith(GPU_MAGIC):
        from fusec.codegen.gpu import module_from_bytes

        on_gpu: Module = module_from_bytes(data)
        return on_gpu
    with toolchain.importing(toolchain.TVM_RUNTIME):
        from fusec.codegen.tvm.module import CompiledModule

    module: Module = CompiledModule.from_bytes(data)
    return module


class NoKernels:
    """The module of a program that launches nothing."""

    def function(self, name: str, device: int | None = None) -> Any:
        raise FusecError(f"the module has no kernel {name!r}")

    def to_bytes(self) -> bytes:
        return b""
