"""What this machine and installation can do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fusec.config import cache_dir
from fusec.errors import FusecError
from fusec.target.cpu import host_cpu

Check = Callable[[], str]


def diagnose() -> tuple[str, bool]:
    """Lines of ``ok``, ``--`` (optional and absent) or ``no`` (needed and absent), and whether all needed is there."""
    needed = [("cpu", _cpu), ("apache-tvm", _installed("apache-tvm")), ("a kernel", _kernel), ("cache", _cache)]
    optional = [("torch", _installed("torch")), ("linker", _linker)]
    lines, healthy = [], True
    for checks, absent in ((needed, "no"), (optional, "--")):
        for name, check in checks:
            try:
                lines.append(f"ok  {name:<12} {check()}")
            except (FusecError, OSError, ImportError, PackageNotFoundError) as error:
                lines.append(f"{absent}  {name:<12} {error}")
                healthy = healthy and absent != "no"
    return "\n".join(lines) + "\n", healthy


def _cpu() -> str:
    cpu = host_cpu()
    return f"{cpu.mcpu}, {cpu.vector_bits}-bit vectors, {cpu.cores} cores, {cpu.peak_flops() / 1e9:.0f} GFLOP/s in f32"


def _installed(package: str) -> Check:
    return lambda: version(package)


def _kernel() -> str:
    import numpy as np

    from fusec.api import jit

    x = np.linspace(0, 1, 1000, dtype=np.float32)
    if not np.allclose(jit(fallback="error", cache=False)(_double)(x), 2 * x):
        raise FusecError("a compiled kernel gave a wrong result")
    return "compiled, run, right"


def _double(x: Any) -> Any:
    return x * 2


def _cache() -> str:
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".writing-"):
        pass
    return f"{folder}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free"


def _linker() -> str:
    found = next((p for name in ("ld", "ld.lld", "gcc", "cc", "clang") if (p := shutil.which(name))), None)
    if found is None:
        raise FusecError("none found: machine code is saved as IR, which needs TVM to load and takes longer")
    return os.fspath(found)
