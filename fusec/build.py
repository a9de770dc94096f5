# SPDX-License-Identifier: Apache-2.0
"""From a captured graph to an executable: passes, code generation, and the caches before them."""

from __future__ import annotations

import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from fusec import config, toolchain, tracing
from fusec.checks import check_cache, check_environment, check_target
from fusec.contents import versions, without_locations
from fusec.errors import (
    ArtifactError,
    CaptureError,
    CodegenError,
    FusecError,
    HostArraysError,
    LoweringError,
)
from fusec.frontend.capture import Capture, Library, frozen
from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.ir.print import print_graph
from fusec.location import Location
from fusec.modules import NoKernels, load_module
from fusec.options import PRECISIONS, Precision, check_choice, check_switch
from fusec.retrying import compile_with_others
from fusec.runtime.cache import DiskCache, Entry, content_key, default_cache
from fusec.runtime.executable import Executable, Module
from fusec.runtime.program import Declined, Lowered, Program
from fusec.runtime.serial import program_from_json, program_to_json
from fusec.selectors import gpu_selector, gpu_tuning_selector, machine_of, measured_rates, tuning_selector
from fusec.target.cpu import CpuTarget, cpu_target
from fusec.target.gpu import gpu_target, is_gpu
from fusec.target.rates import Rates, usual_rates
from fusec.tile.kernel import Kernel

if TYPE_CHECKING:
    from fusec.passes.select import Selector
    from fusec.passes.select_gpu import GpuSelector

Tune = Literal[False, "quick", "full"]

log = config.logger("cache")


@dataclass(frozen=True)
class Options:
    """What a compilation depends on besides the graph.

    target: None is where the arguments live. tune: measure the best few schedules of each kernel. cache: look in
    and write to the on-disk cache. precision: of f32 matmuls. usual: extents of named dimensions for which
    schedules are chosen on a GPU, where a program serves more (the largest that it serves, if not given). freeze: keep
    what is packed from PyTorch tensors that are no arguments; nothing tells when a NumPy array changes.
    """

    target: str | None = None
    tune: Tune = False
    cache: bool = True
    precision: Precision = "ieee"
    usual: tuple[tuple[str, int], ...] = ()
    freeze: bool = False


def checked(options: Options) -> Options:
    """The options. OptionError for one that can't be, TargetError for a target that is not known."""
    check_environment()
    check_target(options.target)
    check_choice("tune", options.tune, (False, "quick", "full"))
    check_choice("precision", options.precision, PRECISIONS)
    check_switch("cache", options.cache)
    check_switch("freeze", options.freeze)
    return options


@dataclass(frozen=True, eq=False)
class Built:
    """An executable, and what building it took. ``stopped``: Ctrl-C ended the measuring; the next process goes on."""

    executable: Executable
    from_cache: bool
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False


_NONE: Mapping[str, int] = MappingProxyType({})
_built: weakref.WeakValueDictionary[str, Built] = weakref.WeakValueDictionary()
_locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_table_lock = threading.Lock()


def build(graph: Graph, library: Library, options: Options) -> Built:
    """The executable of a graph: one built before in this process, one from the disk, or a new one.

    Raises what the passes and the backend raise: LoweringError, CodegenError, TargetError.
    """
    check_environment()
    if options.freeze and library == "torch":
        graph = frozen(graph)
    target = options.target or target_of(graph)
    if library == "numpy" and is_gpu(target):
        return _build_for_host(graph, target, options)
    machine = machine_of(target)
    anonymous, locations = without_locations(graph)
    disabled = config.disabled_passes()
    asked = repr(replace(options, target=target, cache=True))
    made_from = {
        "graph": content_key(print_graph(anonymous)),
        "library": library,
        "machine": repr(machine),
        "rates": _spelled(measured_rates(machine)),
        "options": asked,
        "passes left out": ", ".join(sorted(disabled)),
        "GPU language": config.gpu_language(),
        "versions": " ".join(versions()),
    }
    key = content_key(*made_from.values())
    with _table_lock:
        known = _built.get(key)
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = threading.Lock()
    if known is not None and _same_locations(known, locations):
        tracing.instant("built before in this process", "cache", key=key[:12])
        return known
    with lock:
        known = _built.get(key)
        if known is None or not _same_locations(known, locations):
            with tracing.span(f"compile {graph.name}", "compile", target=target, key=key[:12]) as span:
                known = _built[key] = _build(graph, library, target, options, key, locations, made_from)
                span.note(from_cache=known.from_cache)
    return known


def compile_with(options: Options, graph: bool = False) -> Callable[..., Executable]:
    """What compiles captures with these options, for the usual extents that are given besides. ``graph``: kernels are
    replayed as one CUDA graph."""

    def compile(capture: Capture, usual: Mapping[str, int] = _NONE) -> Executable:
        here = replace(options, usual=tuple(sorted(usual.items()))) if usual else options
        return replace(build(capture.graph, capture.library, here).executable, graph=graph)

    return compile


def _build_for_host(graph: Graph, target: str, options: Options) -> Built:
    """A program on a GPU for arrays in host memory: chunk by chunk where the graph treats a batch's elements alike."""
    from fusec.ir.place import place
    from fusec.passes.batch import batch_axes, with_batch
    from fusec.passes.writes import open_writes
    from fusec.runtime.host import HostExecutable, chunk_of

    if any(not isinstance(n, int) for v in graph.inputs for n in v.type.shape):
        raise HostArraysError("arrays in host memory go to a GPU with fixed extents only")
    graph = open_writes(graph, in_place=False)
    device = target if target.removeprefix("cuda:").isdigit() else "cuda:0"
    reason, batch, axes = "", 0, dict[Value, int]()
    try:
        axes = batch_axes(graph)
        batch = int(graph.outputs[0].type.static_shape[0])
    except LoweringError as error:
        reason = str(error)
    read = [v for v in (*graph.inputs, *graph.outputs) if v in axes]
    chunk = chunk_of(batch, sum(v.type.nbytes for v in read) // max(batch, 1)) if batch > 1 else 0

    producers = graph.producers()
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        while (op := producers.get(value)) is not None and op.definition.kind == "view":
            value = op.operands[0]
        if op is None and port.mutates is None:
            raise HostArraysError("a result is a view of an argument in host memory; return a copy of it")

    def built(count: int) -> Built:
        on_device = place(with_batch(graph, axes if count else {}, count), device)
        return build(on_device, "cupy", replace(options, target=None if target in ("cuda", device) else target))

    found = built(chunk)
    rest = built(batch % chunk).executable if chunk and batch % chunk else None
    inner = found.executable
    said = reason or f"{batch} elements of a batch, {chunk} at a time"
    program = replace(
        inner.program,
        output_ports=graph.output_ports,
        declined=(*inner.program.declined, Declined("arrays in host memory", said)),
    )
    sliced = tuple(v in axes for v in graph.inputs)
    whole = batch if chunk else 0
    executable = HostExecutable(
        program, inner.module, "numpy", inner.digests, inner=inner, rest=rest, batch=whole, chunk=chunk, sliced=sliced
    )
    return Built(executable, found.from_cache, found.seconds)


def _same_locations(built: Built, locations: list[Location]) -> bool:
    """Whether an executable names these lines of the user's source; another function may have the same graph."""
    fused = (op.location for report in built.executable.program.reports for op in report.fused)
    return {location for location in fused if location is not None} <= set(locations)


def _build(
    graph: Graph,
    library: Library,
    target: str,
    options: Options,
    key: str,
    locations: list[Location],
    made_from: Mapping[str, str],
) -> Built:
    disk = default_cache() if options.cache and config.dump_dir() is None else None
    if disk is None:
        return _compile(graph, library, target, options)
    found = _from_disk(disk, key, library, locations)
    if found is not None:
        return found
    if not check_cache(disk):
        return _compile(graph, library, target, options)
    with disk.lock(key):
        found = _from_disk(disk, key, library, locations)
        if found is not None:
            return found
        made = _compile(graph, library, target, options)
        if not made.stopped:
            with tracing.span("cache store", "cache", key=key[:12]):
                _to_disk(disk, key, made, locations, made_from)
    return made


def _compile(graph: Graph, library: Library, target: str, options: Options) -> Built:
    start = time.perf_counter()
    lowered, module = compile_with_others(partial(run_passes, graph, target, options, library), compile_module)
    machine = machine_of(target)
    if library == "torch" and isinstance(machine, CpuTarget):
        program = lowered.program
        more = (measured_rates(machine) or usual_rates(machine, 1)).tensors
        lowered = replace(lowered, program=replace(program, overhead=program.overhead + more))
    passes = sum(lowered.seconds.values())
    seconds = {**lowered.seconds, "codegen": time.perf_counter() - start - passes}
    digests = kernel_digests(lowered.program)
    executable = Executable(lowered.program, module, library, digests, compile_here=_compile_here)
    _log_fusion(lowered.program)
    folder = config.dump_dir()
    if folder is not None:
        from fusec.dump import dump

        dump(folder, lowered, module, executable)
    return Built(executable, False, seconds, lowered.stopped)


def _compile_here(kernels: Sequence[Kernel]) -> Module:
    from fusec.codegen.tvm.build import compile_kernels

    compiled: Module = compile_kernels(kernels, cpu_target())
    return compiled


def run_passes(
    graph: Graph,
    target: str,
    options: Options,
    library: Library = "torch",
    refused: Mapping[str, int] = MappingProxyType({}),
) -> Lowered:
    """The graph through all passes. library: whose arrays it is called with. refused: of a GPU's kernels, how many
    schedules of each, the best predicted first, are not to be chosen."""
    from fusec.passes.pipeline import lower

    selector: Selector | GpuSelector | None = None
    if options.tune:
        if is_gpu(target):
            selector = gpu_tuning_selector(target, target_of(graph), compile_module, options.tune)
        else:
            selector = tuning_selector(target, options.tune)
    elif is_gpu(target):
        made = gpu_selector(target, dict(options.usual))
        selector = replace(made, calls=library == "torch", refused=refused)
    lowered: Lowered = lower(
        graph,
        target,
        disable=config.disabled_passes(),
        check=config.verifies(),
        precision=options.precision,
        selector=selector,
        rates=measured_rates(machine_of(target)),
    )
    return lowered


def _spelled(rates: Rates | None) -> str:
    return "usual" if rates is None else f"measured {content_key(rates.to_json())[:12]}"


def compile_module(program: Program) -> Module:
    """Machine code of a program's kernels."""
    if not program.kernels:
        return NoKernels()
    if is_gpu(program.target):
        toolchain.require_gpu_compiler(program.target, config.gpu_language())
        with tracing.span("import compilers", "compile"):
            from fusec.codegen.gpu import compile_kernels as compile_for_gpu

        try:
            on_gpu: Module = compile_for_gpu(program.kernels, gpu_target(program.target))
        except CodegenError as error:
            raise CodegenError(str(error), _line_of(program, str(error)), error.kernel) from error
        return on_gpu
    toolchain.require(toolchain.TVM)
    with tracing.span("import TVM", "compile"), toolchain.importing(toolchain.TVM):
        from fusec.codegen.tvm.build import compile_kernels

    module: Module = compile_kernels(program.kernels, cpu_target(program.target))
    return module


def _line_of(program: Program, message: str) -> Location | None:
    """The user's line of the kernel that a message names."""
    named = [r for r in program.reports if re.search(rf"\b{re.escape(r.kernel)}\b", message)]
    return next((op.location for report in named for op in report.fused if op.location is not None), None)


def kernel_source(kernel: Kernel, target: str) -> tuple[str, str]:
    """The ending of a file with the kernel's source in the backend's language, and the source."""
    if is_gpu(target):
        from fusec.codegen.gpu import kernel_source as source_for_gpu

        ending, text = source_for_gpu(kernel, gpu_target(target))
        return str(ending), str(text)
    toolchain.require(toolchain.TVM)
    with toolchain.importing(toolchain.TVM):
        from fusec.codegen.tvm.emit import emit_kernel
        from fusec.codegen.tvm.module import script

    return "tvm.py", str(script(emit_kernel(kernel, cpu_target(target))))


def kernel_digests(program: Program) -> dict[str, str]:
    """A hash of each kernel's contents, whatever its name."""
    from fusec.tile.print import print_kernel

    return {k.name: content_key(program.target, print_kernel(replace(k, name="kernel"))) for k in program.kernels}


def target_of(graph: Graph) -> str:
    """The target of the device that a graph's values are on."""
    devices = {value.type.device for op in graph.ops for value in op.results} | {v.type.device for v in graph.inputs}
    if devices <= {"cpu"}:
        return "cpu"
    if len(devices - {"cpu"}) > 1 or "cpu" in {v.type.device for v in graph.inputs if v.type.shape}:
        raise CaptureError(f"arrays on {', '.join(sorted(devices))} in one function; move them to one device")
    (device,) = devices - {"cpu"}
    if not is_gpu(device):
        raise CaptureError(f"arrays on {device} can't be compiled for; move them to a CPU or a CUDA device")
    return device


# The disk


def _from_disk(disk: DiskCache, key: str, library: Library, locations: list[Location]) -> Built | None:
    with tracing.span("cache lookup", "cache", key=key[:12]) as span:
        found = _loaded(disk, key, library, locations)
        span.note(found=found is not None)
        return found


def _loaded(disk: DiskCache, key: str, library: Library, locations: list[Location]) -> Built | None:
    start = time.perf_counter()
    entry = disk.load(key)
    if entry is None:
        log.info("%s: not in the cache", key[:12])
        return None
    try:
        record = json.loads(entry.record)
        program = program_from_json(record["program"], locations)
        module, digests = load_module(entry.module), dict(record["digests"])
        executable = Executable(program, module, library, digests, compile_here=_compile_here)
    except (ArtifactError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: does not load (%s), built again", key[:12], error)
        disk.discard(key)
        return None
    log.info("%s: loaded", key[:12])
    return Built(executable, True, {"load": time.perf_counter() - start})


def _to_disk(disk: DiskCache, key: str, built: Built, locations: list[Location], made_from: Mapping[str, str]) -> None:
    executable = built.executable
    program = program_to_json(executable.program, locations)
    if len(program["locations"]) > len(locations):
        log.info("%s: not kept, a kernel names a line that is not in the graph", key[:12])
        return
    try:
        module = executable.module.to_bytes()
    except (OSError, FusecError) as error:
        log.warning("%s: the machine code can't be saved: %s", key[:12], error)
        return
    record = json.dumps({"program": program, "digests": dict(executable.digests), "made_from": dict(made_from)})
    disk.store(key, Entry(record, module))
    log.info("%s: stored", key[:12])


# Telling


def _log_fusion(program: Program) -> None:
    fuse = config.logger("fuse")
    for declined in program.declined:
        where = f" at {declined.location}" if declined.location else ""
        fuse.info("not fused: %s%s: %s", declined.rule, where, declined.reason)
    for report in program.reports:
        fuse.info("%s: %s kernel of %d ops", report.kernel, report.kind, len(report.fused))
