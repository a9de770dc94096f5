"""AMX for tests: the machine's own where it has it, else one emulated in software."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fusec.target import cpu
from fusec.target.cpu import CpuTarget

_SOURCE = Path(__file__).parent / "emulator.c"
_FEATURES = ("amx_bf16", "amx_int8", "amx_tile")


def amx_target() -> CpuTarget:
    """This machine with AMX, whose tile instructions run in software where it has none. Skips where they can't."""
    host = cpu.host_cpu()
    if "amx_bf16" in host.matmul_features:
        return host
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not host.has_avx512:
        pytest.skip("AMX is emulated on x86-64 Linux machines with AVX-512 only")
    _emulate()
    return replace(
        host,
        matmul_features=(*_FEATURES, *host.matmul_features),
        l2=2 * 1024 * 1024,
    )


def executed() -> int:
    """Tile instructions that were emulated so far; 0 where the machine has its own."""
    return 0 if _emulate.cache_info().currsize == 0 else int(_emulate().amx_emulated())


@cache
def _emulate() -> ctypes.CDLL:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to build the AMX emulator with")
    folder = tempfile.mkdtemp(prefix="fusec-amx-")
    library = Path(folder) / "emulator.so"
    subprocess.run(
        [compiler, "-O2", "-mfma", "-shared", "-fPIC", str(_SOURCE), "-o", str(library), "-lm"], check=True, timeout=60
    )
    found = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    found.amx_emulated.restype = ctypes.c_ulong
    if found.amx_emulate() != 0:
        raise OSError("the AMX emulator could not handle SIGILL")
    return found
