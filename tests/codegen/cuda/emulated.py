"""Kernels of ``skinny_gemm.cuh`` and ``windows.cuh`` on a CPU, thread by thread: what they compute is seen without a
GPU."""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fusec.codegen.cuda.header import headers
from fusec.codegen.cuda.source import KernelSource

COMPILER = shutil.which("g++")
OPTIONS = ("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC")
_SHARED = "extern __shared__ __align__(128) char memory[];"
_ALIGNMENT = 64


def run(source: KernelSource, arrays: Sequence[np.ndarray[Any, Any]], folder: Path) -> None:
    """Calls the kernel with arrays, the outputs last, all at addresses as a GPU has them."""
    assert COMPILER is not None
    (folder / "kernel.cc").write_text(_program(source))
    library = folder / "kernel.so"
    command = [COMPILER, *OPTIONS, "-shared", "-I", compiled_header(), "-o", library, folder / "kernel.cc"]
    subprocess.run(command, check=True)
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    ctypes.CDLL(str(library)).go(pointers)


@cache
def compiled_header() -> Path:
    """A folder with ``emulated.hh`` and what the compiler has made of it, which takes half of each kernel's time."""
    folder = Path(tempfile.mkdtemp(prefix="fusec-emulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = Path(shutil.copy(Path(__file__).with_name("emulated.hh"), folder))
    subprocess.run([str(COMPILER), *OPTIONS, "-x", "c++-header", "-o", f"{header}.gch", header], check=True)
    return folder


def placed(array: np.ndarray[Any, Any], shift: int = 0) -> np.ndarray[Any, Any]:
    """A copy that lies ``shift`` elements behind a multiple of 16 bytes."""
    memory = np.zeros(array.nbytes + 2 * _ALIGNMENT + shift * array.itemsize, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT + shift * array.itemsize
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def _program(source: KernelSource) -> str:
    """The kernel's source with what it includes, and a function ``go`` that launches it."""
    files = headers()
    (header,) = re.findall(r'#include "(skinny_gemm.cuh|windows.cuh)"', source.text)
    pieces = [
        '#include "emulated.hh"',
        _between(files["scalar.cuh"], "// Integers wrap around", "// Where every result is a half type"),
        _between(files["halves.cuh"], "/// A word with a number", "/// kWords neighbouring words"),
        _between(files["halves.cuh"], "/// Numbers of a small array", "}  // namespace fusec"),
        _between(files["mma.cuh"], "/// Where a unit of a row lies", "/// Which rows are read"),
        re.sub(r"#(include|pragma).*", "", files[header]),
        re.sub(r"#include.*", "", source.text),
    ]
    text = "\n".join(pieces).replace(_SHARED, "char* memory = memories[rank_here()];")
    head = re.compile(r'extern "C" __global__[^\n]*\n')
    text = head.sub("static void ", text)
    plan = source.text[source.text.index("struct Plan") :]
    members = re.findall(r"\* __restrict__ (\w+);", plan)
    given = ", ".join(f"(decltype(Plan::{name}))pointers[{i}]" for i, name in enumerate(members))
    sizes = f"{source.grid[0]}, {source.threads}, {source.cluster[0]}, {source.shared}"
    return f"""{text}
static void** pointers;
static void body() {{ {source.name}({given}); }}
extern "C" void go(void** given) {{
    pointers = given;
    launch({sizes}, body);
}}
"""


def _between(text: str, first: str, last: str) -> str:
    return "namespace fusec {\n" + text[text.index(first) : text.index(last)] + "}\n"
