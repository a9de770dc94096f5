# SPDX-License-Identifier: Apache-2.0
"""The order of the passes. What each promises the next stands beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fusec import tracing
from fusec.errors import FusecError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op
from fusec.ir.types import DTYPES
from fusec.ir.verify import verify
from fusec.options import Precision
from fusec.passes.aliases import hold_aliases
from fusec.passes.block_scales import scaled_apart
from fusec.passes.block_sums import sum_blocks
from fusec.passes.canonicalize import canonicalize
from fusec.passes.cost.gpu_program import predict_gpu
from fusec.passes.cost.program import predict
from fusec.passes.cse import cse
from fusec.passes.dce import dce
from fusec.passes.eight_bit_attention import attend_in_8_bits
from fusec.passes.eight_bits import multiply_in_8_bits
from fusec.passes.empty import drop_empty
from fusec.passes.expert_rows import group_by_expert
from fusec.passes.fold import fold
from fusec.passes.fuse import fuse
from fusec.passes.group_rows import group_rows
from fusec.passes.groups.fused import one_by_one
from fusec.passes.indices import check_indices, note_indices
from fusec.passes.loops.roll import roll_loops
from fusec.passes.lower.alike import Alike
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.lower.program import LowerGroup, assemble
from fusec.passes.lower_argreduce import lower_argreduce
from fusec.passes.masks import masks_apart
from fusec.passes.moments import moments_of_parts
from fusec.passes.outer_slices import with_outer_slices
from fusec.passes.outputs import own_outputs
from fusec.passes.precision import precision as set_precision
from fusec.passes.product_columns import split_columns
from fusec.passes.products import lower_products
from fusec.passes.reduced_axes import FEWEST_FOR_BLOCKS, reduce_in_memory_order
from fusec.passes.regions import join_regions
from fusec.passes.row_picks import pick_in_rows
from fusec.passes.select import Selector
from fusec.passes.select_gpu import GpuSelector
from fusec.passes.share_rows import share_rows
from fusec.passes.sink_gathers import sink_gathers
from fusec.passes.sorted_numbers import open_sorts
from fusec.passes.spaces import spaces_apart
from fusec.passes.split import split_for_blocks, split_reductions
from fusec.passes.vectors import open_vectors
from fusec.passes.windows import open_windows
from fusec.passes.writes import late_readers, open_writes, written_before_errors
from fusec.runtime.program import Declined, KernelReport, Lowered, Program, Stages
from fusec.target.cpu import cpu_target
from fusec.target.gpu import GpuTarget, gpu_target, is_gpu
from fusec.target.rates import Rates
from fusec.tile.print import print_kernel

T = TypeVar("T")

PASS_NAMES = (
    *(
        "lookups",
        "aliases",
        "writes",
        "regions",
        "loops",
        "canonicalize",
        "fold",
        "products",
        "cse",
        "dce",
        "experts",
        "groups",
        "lower_argreduce",
        "precision",
        "vectors",
    ),
    *("empty", "split", "indices", "spaces", "outputs", "fuse"),
)
"""The graph passes in order. ``disable`` takes :data:`OPTIONAL` of them."""

_NEEDED = frozenset({"aliases", "lookups", "writes", "experts", "empty", "indices", "outputs"})

OPTIONAL = tuple(name for name in PASS_NAMES if name not in _NEEDED)
"""The passes that ``disable`` takes."""


def lower(
    graph: Graph,
    target: str = "cpu",
    *,
    threads: int | None = None,
    disable: frozenset[str] = frozenset(),
    check: bool = False,
    precision: Precision = "ieee",
    selector: Selector | GpuSelector | None = None,
    rates: Rates | None = None,
) -> Lowered:
    """Runs all passes and returns the program with the IR text after each.

    ``threads`` is how many cores the kernels may use (default: the target's). ``disable`` leaves passes out; without
    ``fuse`` every op is a kernel of its own.
    ``check`` verifies the IR after every pass and raises VerifyError naming the pass. ``precision``: how matmuls of f32
    are computed. ``rates``: what this CPU was measured to do, for the cost model.
    """
    unknown = disable - set(PASS_NAMES)
    if unknown or disable & _NEEDED:
        raise FusecError(f"can't disable {sorted(unknown or disable & _NEEDED)}; passes: {', '.join(PASS_NAMES)}")
    run = _Runner(disable, check)
    run.record("capture", graph)
    graph, declined = _grouped(graph, run, target, threads=threads, precision=precision)
    chooser = selector or default_selector(target, threads, rates)
    lower_group: LowerGroup = chooser.lower
    if not chooser.by_name:
        lower_group = Alike(chooser.lower)

    def choose(context: LoweringContext) -> LoweredGroup | Pieces:
        with tracing.span(f"schedule {context.name}", "compile"):
            return lower_group(context)

    program = run.timed("lower", lambda: assemble(graph, target, choose, chooser.report, declined))
    program = replace(program, choices=tuple(getattr(chooser, "measured", ())), precision=precision)
    if isinstance(chooser, Selector):
        program = run.timed("predict", lambda: predict(program, chooser.target, chooser.known, chooser.threads))
    else:
        program = predict_gpu(program, chooser.target)
    run.stages.note("schedule", lambda: schedule_text(graph, program))
    run.stages.note("tile", lambda: "\n".join(print_kernel(k) for k in program.kernels))
    return Lowered(run.stages, graph, program, run.seconds, bool(getattr(chooser, "stopped", False)))


def _grouped(
    captured: Graph, run: _Runner, target: str, *, threads: int | None, precision: Precision
) -> tuple[Graph, list[Declined]]:
    """The graph of kernels, and what was declined.

    Where kernels read what they or others have written over, it is made anew: what is written is computed by a kernel
    before, and where that is not enough the array is.
    """
    apart, late = frozenset[str](), frozenset[str]()
    while True:
        declined: list[Declined] = []
        passes = graph_passes(target, threads=threads, precision=precision, log=declined.append, apart=apart, late=late)
        graph = captured
        for name in PASS_NAMES[:-1]:
            graph = run(name, passes[name], graph)
        if "fuse" in run.disable:
            graph = one_by_one(graph)
        graph = run("fuse", passes["fuse"], graph)
        found, early = late_readers(graph, blocked=is_gpu(target)), written_before_errors(graph)
        if not found and not early:
            return graph, declined
        late |= early | (found & apart)
        apart |= found


def graph_passes(
    target: str = "cpu",
    *,
    threads: int | None = None,
    precision: Precision = "ieee",
    log: Callable[[Declined], None] = lambda declined: None,
    apart: frozenset[str] = frozenset(),
    late: frozenset[str] = frozenset(),
) -> dict[str, Callable[[Graph], Graph]]:
    """The graph passes by name, in order. ``log`` hears of what was not rewritten or fused, and why.

    ``apart``: the names of updates whose values are in memory before they are written; ``late``: of those that can't be
    made in place.
    """
    gpu = is_gpu(target)
    return {
        # An index that may be out of range is checked though what it finds be dropped; no pass drops a library call.
        "lookups": lambda g: g if gpu else note_indices(g),
        # Outputs that show an input's, or another output's, memory say so: no rewrite changes it.
        "aliases": hold_aliases,
        # What is left of updates is written in an input's memory, by a kernel.
        "writes": lambda g: open_writes(g, several=gpu, but=late),
        # What code filled region by region is a join, and what reads a region reads what was written there.
        "regions": join_regions,
        # Steps of a recurrence are one op: no pass behind this one takes longer for a longer loop.
        "loops": roll_loops,
        # One spelling for each idea: composites opened, views composed, contractions as `dot`.
        "canonicalize": lambda g: canonicalize(g, log=log),
        # Scalars known now are constants; comparisons of indices that are decided are gone.
        "fold": fold,
        # Matmuls of f32 have operands of the half type that was asked for.
        "products": lambda g: lower_products(g, DTYPES[precision]) if precision in ("bf16", "f16") else g,
        # Equal work is done once.
        "cse": cse,
        # Nothing is left that no output needs.
        "dce": dce,
        # Rows that data chose for an expert are sorted by expert, and added up by one op; on a GPU no call sorts them.
        "experts": lambda g: group_by_expert(open_sorts(g) if gpu else g, gpu=gpu),
        # On a GPU a loop over groups of rows is one product, or two where parts of its columns meet again.
        "groups": lambda g: split_columns(group_rows(g)) if gpu else g,
        # A search is a reduction of positions; on a GPU few elements are picked before all of them are computed, or
        # where a row is read anyway.
        "lower_argreduce": lambda g: (
            lower_argreduce(sink_gathers(pick_in_rows(g)), sms=gpu_target(target).sms)
            if gpu
            else lower_argreduce(g, symbolic=True)
        ),
        # Reductions of half types accumulate in f32, on a CPU means of f32 in f64; no op relies on rounding between
        # half-precision steps.
        # Matmuls of what was 8 bits wide are, on a GPU, matmuls of 8 bits, or of f16.
        "precision": lambda g: set_precision(
            _in_8_bits(g, gpu_target(target), precision, log) if gpu else g,
            tf32=precision == "tf32" and gpu,
            doubles=not gpu,
        ),
        # A window of few elements is reduced by a map; on a CPU a matmul of one row a batch is a sum like any other.
        "vectors": lambda g: open_windows(g if gpu else open_vectors(g), blocked=gpu),
        # What has no elements is computed by nothing; a dimension of 0 is only in views and copies.
        "empty": drop_empty,
        # A reduction goes along memory, and has rows for all cores (or blocks), or is small.
        "split": lambda g: _split(g, target, threads),
        # No kernel reads out of bounds: indices that nothing proves in range are checked by a call.
        "indices": check_indices,
        # Values of a score space that a kernel can hold are consumed along one axis of it, and no two share a mask that
        # is made of small values.
        # On a GPU scaled operands of 8 bits are made for each matmul that can have them in its kernel.
        "spaces": lambda g: masks_apart(spaces_apart(scaled_apart(g) if gpu else g, blocked=gpu), blocked=gpu),
        # Every output is memory of its own or a plain view; every operand of a library call is in memory.
        "outputs": lambda g: dce(own_outputs(g, apart)),
        # Every compute op is in exactly one `fused` op that one kernel family can lower.
        # Layers of one array are views of it, so that their kernels are one.
        "fuse": lambda g: with_outer_slices(fuse(g, log, blocked=gpu), blocked=gpu),
    }


def default_selector(target: str, threads: int | None = None, rates: Rates | None = None) -> Selector | GpuSelector:
    """Chooses each kernel's schedule by the cost model. TargetError for a target that is not known."""
    if is_gpu(target):
        return GpuSelector(gpu_target(target))
    machine = cpu_target(target)
    return Selector(machine, threads or machine.cores, rates=rates)


def _in_8_bits(graph: Graph, target: GpuTarget, precision: Precision, log: Callable[[Declined], None]) -> Graph:
    attended = attend_in_8_bits(sum_blocks(graph, target), target)
    return multiply_in_8_bits(attended, target, rounds=precision != "ieee", log=log)


def _split(graph: Graph, target: str, threads: int | None) -> Graph:
    if is_gpu(target):
        sms = gpu_target(target).sms
        ordered = reduce_in_memory_order(moments_of_parts(graph, sms), FEWEST_FOR_BLOCKS)
        return split_for_blocks(share_rows(ordered, sms), sms)
    return split_reductions(reduce_in_memory_order(graph), threads or cpu_target(target).cores)


class _Runner:
    def __init__(self, disable: frozenset[str], check: bool) -> None:
        self.disable = disable
        self.check = check
        self.stages = Stages()
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, step: Callable[[Graph], Graph], graph: Graph) -> Graph:
        if name in self.disable:
            return graph
        result = self.timed(name, lambda: step(graph))
        if self.check:
            verify(result, name)
        self.record(name, result)
        return result

    def timed(self, name: str, step: Callable[[], T]) -> T:
        start = time.perf_counter()
        with tracing.span(f"pass {name}", "compile"):
            result = step()
        self.seconds[name] = time.perf_counter() - start
        return result

    def record(self, name: str, graph: Graph) -> None:
        self.stages.note(name, graph.__str__)


def schedule_text(graph: Graph, program: Program) -> str:
    """The graph of kernels, each with its tiles and its predicted time."""
    lines = [f"schedule @{graph.name} target={program.target}"]
    for op in graph.ops:
        if isinstance(op.attributes, FusedAttributes):
            lines.append(f"  {_head(op)}  {_tiles(program.report_of(op))}")
    return "\n".join(lines) + "\n"


def _head(op: Op) -> str:
    return f"{', '.join(map(str, op.results))} = {op.expect(FusedAttributes).kind}({', '.join(map(str, op.operands))})"


def _tiles(report: KernelReport | None) -> str:
    if report is None:
        return "library"
    sizes = " ".join(f"{name}={size}" for name, size in report.schedule)
    return f"{{{sizes}}} predicted={report.predicted * 1e6:.1f}us limit={report.limit * 1e6:.1f}us ({report.bound})"
