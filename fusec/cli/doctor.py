# SPDX-License-Identifier: Apache-2.0
"""What this machine and installation can do."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fusec.checks import check_environment
from fusec.config import VARIABLES, cache_dir
from fusec.errors import FusecError, TargetError
from fusec.packages import installed
from fusec.runtime.isa import why_not
from fusec.runtime.launch import extension
from fusec.target.cpu import NAMED as CPUS
from fusec.target.cpu import cpu_target, host_cpu
from fusec.target.gpu import NAMED as GPUS
from fusec.target.gpu import device_target, gpu_target, has_cuda, is_gpu, require_device
from fusec.toolchain import ONNX, TORCH, TRITON, TVM, Tool, missing
from fusec.tuning.machines import known_gpu_rates, known_rates

Check = Callable[[], str]


def diagnose() -> tuple[str, bool]:
    """Lines of ``ok``, ``--`` (optional and absent) or ``no`` (needed and absent), and whether all needed is there."""
    needed = [("cpu", _cpu), ("apache-tvm", _installed(TVM)), ("environment", _environment)]
    needed += [("a kernel", _kernel), ("cache", _cache)]
    optional = [("torch", _installed(TORCH)), ("linker", _linker), ("triton", _installed(TRITON))]
    optional += [("nvrtc", _nvrtc), ("cupy", _cupy), ("launcher", _launcher), ("onnx", _installed(ONNX))]
    optional += [(f"cuda:{k}", partial(_gpu, k)) for k in range(max(gpu_count(), 1))]
    lines, healthy = [], True
    for checks, absent in ((needed, "no"), (optional, "--")):
        for name, check in checks:
            try:
                lines.append(f"ok  {name:<12} {check()}")
            except (FusecError, OSError, ImportError, PackageNotFoundError) as error:
                lines.append(f"{absent}  {name:<12} {error}")
                healthy = healthy and absent != "no"
    targets = ["", "target             compiles with         runs here", *_targets()]
    return "\n".join([*lines, *_rates(), *targets]) + "\n", healthy


def _rates() -> list[str]:
    """What the cost model counts with, where this machine was measured."""
    try:
        rates = known_rates(host_cpu())
    except TargetError:
        return []
    if rates is None:
        return ["--  rates        not measured, the usual ones of this kind of CPU: fusec doctor --measure"]
    units = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.multiply.items())
    lines = [
        f"ok  rates        measured: {units} GFLOP/s a core, {rates.vector / 1e9:.1f} G vector instructions/s, "
        f"{rates.l2 / 1e9:.0f} GB/s from L2, {rates.region * 1e6:.1f} µs to start threads, "
        f"{rates.call * 1e6:.1f} µs a call"
    ]
    for b in rates.bandwidth:
        threads = "1 thread " if b.threads == 1 else f"{b.threads} threads"
        found = f"read {b.read / 1e9:.0f}, write {b.write / 1e9:.0f}, copy {b.copy / 1e9:.0f} GB/s"
        lines.append(f"                 {threads}, {b.footprint >> 20} MB: {found}")
    return lines


def _targets() -> list[str]:
    """A line for each kind of machine: what can be compiled for it here, and whether that runs here."""
    lines = []
    for name in ("cpu", *(f"cpu:{cpu}" for cpu in CPUS), *_BY_ARCHITECTURE):
        if is_gpu(name):
            languages = ", ".join(_languages(name)) or "nothing"
            runs = _runs(name)
        else:
            languages = "TVM" if _has("apache-tvm") else "nothing"
            runs = why_not(cpu_target(name)).partition(",")[0] or "yes"
        lines.append(f"{name:<18} {languages:<21} {runs}")
    return lines


_BY_ARCHITECTURE = tuple(name for name, target in GPUS.items() if str(target.arch) in name)


def _languages(name: str) -> Iterator[str]:
    if _has("triton"):
        yield "Triton"
    if name.startswith("cuda") and _has_nvrtc():
        yield "CUDA C++"


def _runs(name: str) -> str:
    target = gpu_target(name)
    reasons = []
    for index in range(max(gpu_count(), 1)):
        try:
            require_device(target.backend, target.arch, index)
        except TargetError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        return f"yes, on cuda:{index}"
    return reasons[0]


def _has(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _has_nvrtc() -> bool:
    try:
        _nvrtc()
    except FusecError:
        return False
    return True


def _cpu() -> str:
    cpu = host_cpu()
    return f"{cpu.mcpu}, {cpu.vector_bits}-bit vectors, {cpu.cores} cores, {cpu.peak_flops() / 1e9:.0f} GFLOP/s in f32"


def gpu_count() -> int:
    """GPUs of this process."""
    if not has_cuda():
        return 0
    import torch

    return torch.cuda.device_count()


def _gpu(index: int) -> str:
    import torch

    gpu, name = device_target(index), torch.cuda.get_device_name(index)
    measured = known_gpu_rates(gpu, name)
    rates = measured or gpu.rates
    extension()  # the driver and the launcher of kernels
    facts = (
        name,
        f"sm_{gpu.arch}",
        f"{gpu.sms} SMs at {gpu.clock / 1e9:.2f} GHz",
        f"{gpu.shared_memory / 1024:.0f} KiB shared memory",
        f"{gpu.l2 / 2**20:.0f} MiB L2",
        f"{gpu.memory / 2**30:.0f} GiB at about {rates.read / 1e12:.2f} TB/s",
        f"about {rates.tensor / 1e12:.0f} TFLOP/s in bf16",
        "measured" if measured else "usual rates of this GPU: fusec doctor --measure",
    )
    return ", ".join(facts)


def _installed(tool: Tool) -> Check:
    """Its version. FusecError where it is missing, or of a version that fusec does not take."""

    def check() -> str:
        reason = missing(tool)
        if reason:
            raise FusecError(reason)
        return installed(tool.package)

    return check


def _environment() -> str:
    check_environment()
    names = [name for name in VARIABLES if os.environ.get(name)]
    return ", ".join(f"{name}={os.environ[name]}" for name in names) or "no variable is set"


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


def _nvrtc() -> str:
    from fusec.codegen.cuda.nvrtc import nvrtc_version

    major, minor = nvrtc_version()
    return f"{major}.{minor}: kernels in CUDA C++"


def _cupy() -> str:
    for package in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        if _has(package):
            return f"{package} {version(package)}"
    raise FusecError("not installed: no functions of CuPy, and no NumPy functions on a GPU")


def _launcher() -> str:
    """What starts kernels on a GPU is built on the machine that runs them."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if compiler is None:
        raise FusecError("no C compiler: GPUs run only files that bring a launcher along")
    if not header.is_file():
        raise FusecError(f"no {header}: GPUs run only files that bring a launcher along")
    return f"{compiler}, {header}"


def _linker() -> str:
    found = next((p for name in ("ld", "ld.lld", "gcc", "cc", "clang") if (p := shutil.which(name))), None)
    if found is None:
        raise FusecError("none found: machine code is saved as IR, which needs TVM to load and takes longer")
    return os.fspath(found)
