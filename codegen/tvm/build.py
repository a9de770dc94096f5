"""PrimFuncs to machine code, and back from saved bytes.

The whole of TVM's part is four steps: bind the target, make the calling convention, lower TVM's own
builtins, run LLVM. The usual simplifying passes stay out: they are wrong for NaN and slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from fusec.codegen.tvm.emit import emit_kernel
from tvm import tirx

from fusec.errors import ArtifactError, CodegenError
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import Kernel

KernelFunction = Callable[..., None]
"""Takes the address of each parameter as an integer, in order; the least overhead that TVM's calls have."""

_SHARED, _BITCODE = b"fusec-so", b"fusec-bc"


def llvm_target(target: CpuTarget) -> Any:
    """TVM's target for a CPU."""
    options: dict[str, object] = {"kind": "llvm", "mcpu": target.mcpu, "num-cores": target.cores}
    if target.attributes:
        options["mattr"] = list(target.attributes)
    return tvm.target.Target(options)


@dataclass(frozen=True, eq=False)
class CompiledModule:
    """Machine code of some kernels.

    ``functions`` holds the TIR of each by name; it is empty for a module that was loaded from bytes.
    """

    module: Any
    functions: dict[str, Any] = field(default_factory=dict)

    def function(self, name: str) -> KernelFunction:
        """The kernel of this name. CodegenError if there is none."""
        found = self.module.get_function(name)
        if found is None:
            raise CodegenError(f"the module has no kernel {name!r}")
        return found  # type: ignore[no-any-return]

    def source(self, name: str) -> str:
        """The kernel as TVMScript text."""
        return str(self.functions[name].script())

    def llvm(self) -> str:
        """LLVM's optimised IR of all kernels."""
        return str(self.module.inspect_source("ll"))

    def assembly(self) -> str:
        return str(self.module.inspect_source("asm"))

    def to_bytes(self) -> bytes:
        """The module for :meth:`from_bytes`: a shared object, or LLVM bitcode where the machine has no linker.

        Bitcode is compiled again (some milliseconds a kernel) when it is loaded.
        """
        with tempfile.TemporaryDirectory() as folder:
            linked = _link(self.module, Path(folder))
            if linked is not None:
                return _SHARED + linked
            path = Path(folder) / "kernels.bc"
            self.module.write_to_file(str(path), "bc")
            return _BITCODE + path.read_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> CompiledModule:
        """What :meth:`to_bytes` made. ArtifactError where it can't be loaded."""
        kind, content = data[:8], data[8:]
        suffix = {_SHARED: ".so", _BITCODE: ".bc"}.get(kind)
        if suffix is None:
            raise ArtifactError("not the bytes of a compiled CPU module")
        handle, path = tempfile.mkstemp(suffix=suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            return CompiledModule(tvm.runtime.load_module(path))
        except Exception as error:
            raise ArtifactError(f"a compiled CPU module can't be loaded: {error}") from error
        finally:
            os.unlink(path)


def compile_kernels(kernels: Sequence[Kernel], target: CpuTarget) -> CompiledModule:
    """Compiles kernels, whose names must differ, in one run of LLVM.

    Raises LoweringError for a kernel that the backend can't express, CodegenError where LLVM fails.
    """
    functions = {kernel.name: emit_kernel(kernel, target) for kernel in kernels}
    if len(functions) != len(kernels):
        raise CodegenError("two kernels of one module have the same name")
    try:
        return CompiledModule(_run_llvm(functions, llvm_target(target)), functions)
    except Exception as error:
        names = ", ".join(functions)
        raise CodegenError(f"compiling {names} for {target.name} failed: {str(error).strip()[-400:]}") from error


def _run_llvm(functions: dict[str, Any], target: Any) -> Any:
    module = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions))
    for lower in (tirx.transform.MakePackedAPI(), tirx.transform.LowerTVMBuiltin()):
        module = lower(module)
    return tvm.get_global_func("target.build.llvm")(module, target)


def _link(module: Any, folder: Path) -> bytes | None:
    """A shared object of the module; None where no linker is installed."""
    linker = next((found for name in ("ld", "ld.lld", "gcc", "cc", "clang") if (found := shutil.which(name))), None)
    if linker is None:
        return None
    source, result = folder / "kernels.o", folder / "kernels.so"
    module.write_to_file(str(source), "o")
    done = subprocess.run(
        [linker, "-shared", "-o", str(result), str(source)], capture_output=True, text=True, check=False
    )
    return result.read_bytes() if done.returncode == 0 else None
