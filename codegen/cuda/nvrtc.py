# SPDX-License-Identifier: Apache-2.0
"""NVRTC: CUDA C++ to a cubin in this process. No GPU, no nvcc and no headers of CUDA's are needed.

The library comes with CuPy, with torch's CUDA builds, or as ``pip install nvidia-cuda-nvrtc``.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files as files_of
from pathlib import Path

from fusec.codegen.cuda.header import headers
from fusec.errors import CodegenError, TargetError

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_VERSIONS = ("13", "12")
_FLAGS = ("-default-device", "--ptxas-options=-v", "--diag-suppress=186")  # 186: an unsigned number compared with 0


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture. ``log``: what NVRTC and ptxas said, registers and spills among it."""

    code: bytes
    log: str

    @property
    def registers(self) -> int:
        """Registers a thread, of the kernel that takes most; 0 where the log does not tell."""
        return max(map(int, re.findall(r"Used (\d+) registers", self.log)), default=0)

    @property
    def spills(self) -> int:
        """Bytes a thread that are stored because registers ran out."""
        return sum(map(int, re.findall(r"(\d+) bytes spill stores", self.log)))


def compile_source(text: str, arch: str, name: str = "kernel", shapes: Iterable[int] = ()) -> Cubin:
    """Compiles CUDA C++ whose kernels are ``extern "C"`` for an architecture such as ``sm_80`` or ``sm_90a``.

    The device header is there to be included, with wgmma's instructions for ``shapes`` (numbers of columns).

    CodegenError, with the lines that NVRTC names, where the source does not compile; TargetError where NVRTC is
    missing or too old for the architecture.
    """
    library = load_nvrtc()
    _require(library, arch)
    flags = [f"--gpu-architecture={arch}", "--std=c++17", *_FLAGS]
    program = ctypes.c_void_p()
    files = headers(shapes)
    included = (len(files), _strings(files.values()), _strings(files))
    head = (ctypes.byref(program), text.encode(), f"{name}.cu".encode())
    _check(library, library.nvrtcCreateProgram(*head, *included))
    try:
        status = library.nvrtcCompileProgram(program, len(flags), _strings(flags))
        log = _text(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if status:
            message = f"NVRTC can't compile {name} for {arch}:\n{_with_lines(log, text, name)}"
            raise CodegenError(message, kernel=name)
        return Cubin(_text(library, "CUBIN", program), log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    given = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(given))(*given)


@cache
def load_nvrtc() -> ctypes.CDLL:
    """The library, the newest that is found. TargetError where there is none."""
    for path in _candidates():
        try:
            for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):  # NVRTC opens it by name, without a path
                ctypes.CDLL(str(builtins))
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise TargetError("CUDA C++ needs NVRTC, which is not here: pip install nvidia-cuda-nvrtc")


def has_nvrtc() -> bool:
    """Whether CUDA C++ can be compiled here."""
    try:
        load_nvrtc()
    except TargetError:
        return False
    return True


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the library. TargetError where there is none."""
    library = load_nvrtc()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _candidates() -> Iterator[str]:
    for package in _PACKAGES:
        try:
            found = files_of(package) or ()
        except PackageNotFoundError:
            continue
        for file in found:
            if re.match(r"libnvrtc\.so\.\d+$|nvrtc64_\d+_\d+\.dll$", file.name):
                yield str(Path(str(file.locate())).resolve())
    yield from (f"libnvrtc.so.{version}" for version in _VERSIONS)
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system
    yield from (f"/usr/local/cuda/lib64/libnvrtc.so.{version}" for version in _VERSIONS)


def _require(library: ctypes.CDLL, arch: str) -> None:
    number = int(re.sub(r"\D", "", arch))
    count = ctypes.c_int()
    _check(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check(library, library.nvrtcGetSupportedArchs(known))
    if number not in known:
        major, minor = nvrtc_version()
        least, most = min(known), max(known)
        raise TargetError(f"NVRTC {major}.{minor} compiles for sm_{least} to sm_{most}, not for {arch}; take another")


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        raise CodegenError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")


def _text(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    memory = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, memory))
    return memory.raw


def _with_lines(log: str, text: str, name: str) -> str:
    """The log, and under each error the generated line."""
    lines = text.splitlines()
    told = []
    for line in log.splitlines():
        told.append(line)
        line_number = re.match(rf"{re.escape(name)}\.cu\((\d+)\): (?:catastrophic )?error", line)
        if line_number and 0 < int(line_number[1]) <= len(lines):
            told.append(f"  {int(line_number[1])} | {lines[int(line_number[1]) - 1].strip()}")
    return "\n".join(told)
