# SPDX-License-Identifier: Apache-2.0
"""What has to be right whatever a function does: environment variables, options, the target and the tools for it."""

from __future__ import annotations

import os
from collections.abc import Collection

from fusec import config, toolchain, tracing
from fusec.errors import CacheError, OptionError, TargetError
from fusec.frontend.capture import Library
from fusec.ir.attributes import ExternAttributes
from fusec.ir.chosen_calls import is_for_cpus
from fusec.ir.graph import Graph
from fusec.notices import SettingWarning
from fusec.runtime.cache import PRIVATE, DiskCache
from fusec.runtime.isa import why_not
from fusec.runtime.launch import extension
from fusec.runtime.staging import load_cupy
from fusec.runtime.telling import warn_user
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_device, is_gpu, require_device

_told: set[str] = set()
"""What was warned about in this process."""


def check_environment() -> None:
    """OptionError for an environment variable whose value can't be; warns once of names that are none of fusec's."""
    config.check_values()
    disabled = config.disabled_passes()
    if disabled:
        check_passes(disabled)
    trace = config.trace_file()
    if trace is not None:
        tracing.check_file(trace)
    for name, meant in config.unknown_variables().items():
        hint = f"did you mean {meant}?" if meant else f"fusec reads {', '.join(config.VARIABLES)}"
        _tell_once(f"fusec has no environment variable {name}; {hint}")


def check_passes(names: Collection[str]) -> None:
    """OptionError for names in FUSEC_DISABLE_PASS that can't be left out."""
    from fusec.passes.pipeline import OPTIONAL, PASS_NAMES  # with the compiler, which a cached program does without

    wrong = sorted(set(names) - set(OPTIONAL))
    if wrong:
        needed = sorted(set(wrong) & set(PASS_NAMES))
        why = f"{', '.join(needed)} can't be left out" if needed else f"there is no pass {', '.join(wrong)}"
        raise OptionError(f"FUSEC_DISABLE_PASS: {why}; it takes {', '.join(OPTIONAL)}")


def check_cache(disk: DiskCache) -> bool:
    """Whether programs can be kept in a cache. CacheError for the folder that FUSEC_CACHE_DIR names; where it is the
    default one, a warning once."""
    reason = config.why_not_writable(disk.folder, PRIVATE)
    if not reason:
        return True
    if os.environ.get("FUSEC_CACHE_DIR"):
        raise CacheError(
            f"FUSEC_CACHE_DIR={disk.folder}: {reason}; set it to a folder that can be written, or give cache=False"
        )
    _tell_once(
        f"programs can't be kept in {disk.folder}: {reason}; set FUSEC_CACHE_DIR to a folder that can be written"
    )
    return False


def _tell_once(text: str) -> None:
    if text not in _told:
        warn_user(text, SettingWarning)
        _told.add(text)


def check_target(target: object) -> None:
    """OptionError or TargetError for what names no target. Whether it is in this machine is not asked."""
    if target is None:
        return
    if not isinstance(target, str):
        raise OptionError(f"target={target!r:.100}; it is a name, such as 'cpu', 'cpu:x86-64-v3' or 'cuda:sm_90'")
    if not is_gpu(target):
        cpu_target(target)
    elif not is_device(target):
        gpu_target(target)


def check_captured_for(graph: Graph, target: str | None) -> None:
    """OptionError for a GPU's target and a graph with a library call that a capture for GPUs would not have."""
    if target is None or not is_gpu(target):
        return
    for op in graph.ops:
        if is_for_cpus(op):
            call = op.expect(ExternAttributes).target
            raise OptionError(
                f"{call} is the library's where a function is captured for a CPU, as this graph was; "
                f"capture it with fusec.trace(..., target={target!r})",
                op.location,
            )


def require_target(target: str | None, library: Library, devices: Collection[str]) -> None:
    """TargetError or OptionError where no program for arrays on these devices can be compiled and run here.

    ``target`` is what the user asked for; None is where the arrays live. OptionError for the environment, too.
    """
    check_environment()
    gpus = sorted(device for device in devices if is_gpu(device))
    name = target or (gpus[0] if gpus else "cpu")
    if library == "torch":
        toolchain.require(toolchain.TORCH)
    if not is_gpu(name):
        if gpus:
            raise OptionError(
                f"target={target!r} and an argument on {gpus[0]}; move it to the CPU, or leave target= out"
            )
        _require_cpu(name)
        return
    _require_device(name, gpus[0] if gpus else "")
    if library == "torch" and not gpus and "cpu" in devices:
        raise OptionError(f"target={target!r}, and the arguments are on the CPU; move them, or leave target= out")
    toolchain.require_gpu_compiler(name, config.gpu_language())
    if library == "numpy":
        load_cupy()
    extension()


def _require_device(name: str, device: str) -> None:
    """TargetError where the GPU that a program is for is not in this machine."""
    try:
        gpu = gpu_target(name)
        own = name if is_device(name) else device
        require_device(gpu.backend, gpu.arch, int(own.partition(":")[2] or "0"))
    except TargetError as error:
        reason = str(error).partition(";")[0]
        raise TargetError(
            f"target={name!r} can't run here: {reason}; leave target= out, or compile for another machine with "
            "fusec.compile(..., target='cuda:sm_90')"
        ) from None


def _require_cpu(name: str) -> None:
    toolchain.require(toolchain.TVM)
    reason = why_not(cpu_target(name))
    if reason:
        raise TargetError(f"target={name!r} can't run here: {reason}")
