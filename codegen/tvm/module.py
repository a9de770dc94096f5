# SPDX-License-Identifier: Apache-2.0
"""A module of machine code: its functions as Python callables, its text, its bytes.

Loading one needs no part of TVM. Its small function-call library (tvm_ffi) is used where it is installed: calls are
a little faster then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.chain import CHAIN, Launches, through_tvm, write_table
from fusec.codegen.tvm.native import NativeFunction, SharedObject
from fusec.errors import ArtifactError, CodegenError
from fusec.packages import is_there

KernelFunction = Callable[..., None]
"""Takes the address of each parameter as an integer, in order; the least overhead that TVM's calls have."""

SHARED, UNLINKED = b"fusec-so", b"fusec-ll"
"""How a module's bytes begin: a shared object, or LLVM IR."""


@dataclass(frozen=True, eq=False)
class CompiledModule:
    """Machine code of some kernels.

    ``functions`` holds the TIR of each by name, ``unlinked`` what LLVM made of them; both are missing from a module
    that an earlier process compiled. ``loaded_from``: the bytes of one that was loaded, which can't be written again.
    """

    module: Any
    functions: Mapping[str, Any] = field(default_factory=dict)
    loaded_from: bytes | None = field(default=None, repr=False)
    unlinked: Any = None

    def function(self, name: str, device: int | None = None) -> KernelFunction:
        """The kernel of this name; there is one CPU, whatever ``device``. CodegenError if there is no such kernel."""
        try:
            return self.module.get_function(name)  # type: ignore[no-any-return]
        except AttributeError:
            raise CodegenError(f"the module has no kernel {name!r}") from None

    def chain(self, launches: Launches) -> tuple[KernelFunction, int, object]:
        """A function that runs kernels one after another, its first argument, and what must be kept meanwhile.

        The call's further arguments are addresses, sizes, and where addresses are read from (see Launches).
        """
        kernels: dict[str, Any] = {name: self.function(name) for name, _ in launches}
        table = write_table(launches, {name: _entry_of(kernel) for name, kernel in kernels.items()})
        return self.function(CHAIN), int(table.ctypes.data), (table, kernels)

    def source(self, name: str) -> str:
        """The kernel as TVMScript, its one-vector variables shown as plain assignments to be read more easily."""
        return _readable(script(self.functions[name]))

    def texts(self, name: str) -> dict[str, str]:
        """What can be read of one kernel, by the ending of a file's name."""
        return {"tvm.py": self.source(name)} if name in self.functions else {}

    def llvm(self) -> str:
        """LLVM's optimised IR of all kernels."""
        return str((self.unlinked or self.module).inspect_source("ll"))

    def assembly(self) -> str:
        return str((self.unlinked or self.module).inspect_source("asm"))

    def to_bytes(self) -> bytes:
        """The module for :meth:`from_bytes`: a shared object, or LLVM IR where the machine has no linker.

        IR is compiled again (some milliseconds a kernel) when it is loaded, and loading it needs TVM.
        """
        if self.loaded_from is not None:
            return self.loaded_from
        return linked([object_of(self.module)]) or _sealed(UNLINKED, _written(self.module, "ll"))

    @staticmethod
    def from_bytes(data: bytes, functions: Mapping[str, Any] | None = None, unlinked: Any = None) -> CompiledModule:
        """What :meth:`to_bytes` made, with what is known of its source. ArtifactError where it can't be loaded."""
        kind, digest, content = data[:8], data[8:40], data[40:]
        suffix = {SHARED: ".so", UNLINKED: ".ll"}.get(kind)
        if suffix is None:
            raise ArtifactError("not the bytes of a compiled CPU module")
        if sha256(content).digest() != digest:
            raise ArtifactError("the bytes of a compiled CPU module are damaged: their checksum is wrong")
        handle, path = tempfile.mkstemp(suffix=suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            module = _load(path)
            parallel.attach(module)
            return CompiledModule(module, functions or {}, data, unlinked)
        except Exception as error:
            raise ArtifactError(f"a compiled CPU module can't be loaded: {error}") from error
        finally:
            os.unlink(path)


def _entry_of(kernel: Any) -> tuple[int, int]:
    """The address of the C function that runs a kernel, and that function's first argument."""
    return (kernel.address, 0) if isinstance(kernel, NativeFunction) else through_tvm(kernel)


_VARIABLE = re.compile(
    r"^( *)(\w+) = T\.alloc_local\(\(1,\), (\"\w+\", )?layout=None, annotations=\{[^}]*\}\)\n\1\2\[0\] = ", re.MULTILINE
)
_ALLOCATION = re.compile(r", annotations=\{\"disable_lower_builtin\": T\.bool\(True\)\}")


def script(function: Any) -> str:
    """A function as TVMScript. TVM's printer folds what it prints, and has no text for a number divided by zero."""
    try:
        return str(function.script())
    except RuntimeError as error:  # what tvm.error.InternalError is
        return f"# TVM can't print this kernel: {str(error).strip().splitlines()[-1]}\n"


def _readable(script: str) -> str:
    names = [match.group(2) for match in _VARIABLE.finditer(script)]
    script = _ALLOCATION.sub("", _VARIABLE.sub(r"\1\2 = ", script))
    once = re.compile(rf"\b({'|'.join(names)})\[0\]") if names else None
    return once.sub(r"\1", script) if once else script


def _sealed(kind: bytes, content: bytes) -> bytes:
    """With a checksum: the system's loader crashes on a truncated shared object."""
    return kind + sha256(content).digest() + content


def object_of(module: Any) -> bytes:
    """Machine code of TVM's module, for :func:`linked`."""
    return _written(module, "o")


def linked(objects: Sequence[bytes]) -> bytes | None:
    """A shared object, for :meth:`CompiledModule.from_bytes`; None where no linker for it is installed."""
    linker = next((found for name in ("ld", "ld.lld", "gcc", "cc", "clang") if (found := shutil.which(name))), None)
    if linker is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "kernels.so"
        sources = [Path(folder) / f"{n}.o" for n in range(len(objects))]
        for source, content in zip(sources, objects, strict=True):
            source.write_bytes(content)
        command = [linker, "-shared", "-o", str(result), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return _sealed(SHARED, result.read_bytes()) if done.returncode == 0 else None


def _written(module: Any, kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kernels.{kind}"
        module.write_to_file(str(path), kind)
        return path.read_bytes()


def _load(path: str) -> Any:
    parallel.prepare()
    if path.endswith(".ll"):
        import tvm  # noqa: F401  (registers the loader of LLVM IR)
    if not is_there("tvm_ffi"):
        return SharedObject(path)
    import tvm_ffi

    return tvm_ffi.load_module(path, keep_module_alive=False)  # its functions keep it as long as there are any
