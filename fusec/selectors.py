# SPDX-License-Identifier: Apache-2.0
"""What chooses the schedules of a compilation: by predictions for a machine, or by measuring there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fusec import config
from fusec.contents import versions
from fusec.errors import TargetError
from fusec.runtime.cache import TuningStore
from fusec.runtime.executable import Module
from fusec.runtime.program import Program
from fusec.target.cpu import CpuTarget, cpu_target
from fusec.target.gpu import GpuTarget, gpu_target, is_device, is_gpu, require_device
from fusec.target.rates import Rates
from fusec.tuning.machines import known_gpu_rates, known_rates, machine_facts

if TYPE_CHECKING:
    from fusec.passes.select import Selector
    from fusec.passes.select_gpu import GpuSelector

Effort = Literal["quick", "full"]


def machine_of(target: str) -> CpuTarget | GpuTarget:
    """The description of a target. TargetError for one that is not known, or not here where it must be."""
    return gpu_machine(target) if is_gpu(target) else cpu_target(target)


def gpu_machine(name: str) -> GpuTarget:
    """A GPU, with the rates that were measured where it is one of this process."""
    found = gpu_target(name)
    if not is_device(name):
        return found
    import torch

    rates = known_gpu_rates(found, torch.cuda.get_device_name(int(name.partition(":")[2] or "0")))
    return found if rates is None else replace(found, rates=rates)


def measured_rates(machine: CpuTarget | GpuTarget) -> Rates | None:
    """What was measured of this machine, where it is the target."""
    return known_rates(machine) if isinstance(machine, CpuTarget) else None


def gpu_selector(target: str, usual: Mapping[str, int] | None = None) -> GpuSelector:
    """A selector that has kernels written in CUDA C++ where they can be compiled; ``usual``: extents of named
    dimensions for which schedules are chosen, where a program serves more."""
    from fusec.passes.select_gpu import GpuSelector

    cuda, triton = _languages(target)
    return GpuSelector(gpu_machine(target), cuda, triton, usual or {})


def _languages(target: str) -> tuple[bool, bool]:
    """Whether kernels may be written in CUDA C++, and in Triton."""
    from fusec.codegen.cuda.nvrtc import has_nvrtc

    language = config.gpu_language()
    cuda = language == "cuda" or (language == "both" and has_nvrtc())
    return cuda and not target.startswith("hip"), language != "cuda"


def gpu_tuning_selector(
    name: str, device: str, compile_module: Callable[[Program], Module], effort: Effort
) -> GpuSelector:
    """A selector that measures on a device. TargetError where it can't run code for the target."""
    from fusec.passes.tune_gpu import GpuTuningSelector
    from fusec.progress import tuning_bar
    from fusec.tuning.measure_gpu import GpuMeasure

    target = gpu_target(name)
    try:
        require_device(target.backend, target.arch, int(device.partition(":")[2] or "0"))
    except (TargetError, ValueError) as error:
        raise TargetError(
            f"schedules for {name} can't be measured on this machine ({error}); leave tune= out"
        ) from None
    import torch

    facts = (repr(target), torch.cuda.get_device_name(device), torch.__version__, *versions())
    return GpuTuningSelector(
        gpu_machine(name),
        *_languages(name),
        measure=GpuMeasure(target, device, compile_module, name),
        effort=effort,
        facts=facts,
        remembered=TuningStore(config.cache_dir()),
        progress=tuning_bar,
    )


def tuning_selector(name: str, effort: Effort) -> Selector:
    """A selector that measures. TargetError where the target is not this machine."""
    from fusec.passes.tune import TuningSelector  # with the compiler, which a cached program does without
    from fusec.progress import tuning_bar
    from fusec.tuning.measure import CpuMeasure

    target = cpu_target(name)
    if not target.runs_here:
        raise TargetError(f"schedules for {target.name} can't be measured on this machine; leave tune= out")
    store = TuningStore(config.cache_dir())
    return TuningSelector(
        target,
        target.cores,
        rates=measured_rates(target),
        measure=CpuMeasure(target),
        effort=effort,
        facts=(*machine_facts(target), *versions()),
        remembered=store,
        progress=tuning_bar,
    )
