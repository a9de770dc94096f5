"""What this machine and installation can do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fusec.config import cache_dir
from fusec.errors import FusecError
from fusec.runtime.launch import extension
from fusec.target.cpu import host_cpu
from fusec.target.gpu import device_target, has_cuda

Check = Callable[[], str]


def diagnose() -> tuple[str, bool]:
    """Lines of ``ok``, ``--`` (optional and absent) or ``no`` (needed and absent), and whether all needed is there."""
    needed = [("cpu", _cpu), ("apache-tvm", _installed("apache-tvm")), ("a kernel", _kernel), ("cache", _cache)]
    optional = [("torch", _installed("torch")), ("linker", _linker), ("triton", _installed("triton"))]
    optional += [(f"cuda:{k}", partial(_gpu, k)) for k in range(max(_gpu_count(), 1))]
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


def _gpu_count() -> int:
    if not has_cuda():
        return 0
    import torch

    return torch.cuda.device_count()


def _gpu(index: int) -> str:
    import torch

    gpu = device_target(index)
    extension()  # the driver and the launcher of kernels
    facts = (
        torch.cuda.get_device_name(index),
        f"sm_{gpu.arch}",
        f"{gpu.units} units at {gpu.clock / 1e9:.2f} GHz",
        f"{gpu.shared_memory / 1024:.0f} KiB shared memory",
        f"{gpu.l2 / 2**20:.0f} MiB L2",
        f"{gpu.memory / 2**30:.0f} GiB at about {gpu.bandwidth / 1e12:.2f} TB/s",
        f"about {gpu.half_flops / 1e12:.0f} TFLOP/s in bf16",
    )
    return ", ".join(facts)


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
