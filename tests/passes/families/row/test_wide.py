"""Rows that no block holds: one pass over them where that is enough, and the same results as from whole rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from programs import Run, check

from fusec.passes.families.row.schedule.gpu import GpuRowSchedule, row_candidates
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")
SHORT = GpuRowSchedule(1, 16, Launch(4, 1), whole=False)


@dataclass
class InChunks(GpuSelector):
    """Lowers every row group with one schedule."""

    schedule: GpuRowSchedule = SHORT

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if context.op.attributes.kind == "row":  # type: ignore[attr-defined]
            return lower_with(context, self.schedule)
        return super().lower(context)


def in_chunks(text: str, rows: int = 1, chunk: int = 16, **options: Any) -> Run:
    schedule = GpuRowSchedule(rows, chunk, Launch(4, 1), whole=False)
    return check(text, target=TARGET.name, selector=InChunks(TARGET, schedule=schedule), **{"slack": 4, **options})


def graph(shape: list[int], *lines: str, inputs: str = "", result: str = "%y") -> str:
    body = "\n  ".join(lines).replace("SHAPE", str(shape)).replace("ROWS", str(shape[:-1]))
    return f"graph @g(%x: f32{shape}{inputs}) {{\n  {body}\n  return {result}\n}}"


SOFTMAX = "%y = softmax(%x) {axis=1} : f32SHAPE"
NORM = "%y = layer_norm(%x) {axes=[1], eps=1e-5} : f32SHAPE"


def loops(run: Run) -> int:
    return len(re.findall(r"\bfor c in", run.lowered.stages["tile"]))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("line", [SOFTMAX, NORM, SOFTMAX.replace("softmax", "log_softmax")])
def test_two_reads_are_enough(line: str, length: int) -> None:
    run = in_chunks(graph([3, length], line), atol=1e-6)
    assert run.kernels == ["row"]
    assert loops(run) == (2 if length > 1 else 1)


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_rows_side_by_side(rows: int) -> None:
    text = graph([50, 7], "%y = softmax(%x) {axis=0} : f32SHAPE")
    assert loops(in_chunks(text, rows=rows)) == 2
    assert loops(in_chunks(graph([50, 7], "%y = reduce_sum(%x) {axes=[0]} : f32[7]"), rows=rows)) == 1


REDUCTIONS = ["sum", "prod", "max", "min"]


@pytest.mark.parametrize("kind", ["f32", "i32", "i64", "u8", "f64"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_reduction(name: str, kind: str) -> None:
    line = f"%y = reduce_{name}(%x) {{axes=[0, 2]}} : {kind}[5]"
    run = in_chunks(f"graph @g(%x: {kind}[3, 5, 13]) {{\n  {line}\n  return %y\n}}", rows=2, slack=8)
    assert loops(run) == 1


@pytest.mark.parametrize("name", ["any", "all"])
def test_bools(name: str) -> None:
    line = f"%y = reduce_{name}(%x) {{axes=[1]}} : bool[3]"
    in_chunks(f"graph @g(%x: bool[3, 40]) {{\n  {line}\n  return %y\n}}")


def special(length: int = 40) -> np.ndarray[Any, Any]:
    """Rows with infinities and NaN in the first chunk, in the last, everywhere; and with very large numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, length)).astype(np.float32)
    x[0, 0], x[1, -1], x[2, 3], x[3, -2] = np.inf, np.inf, -np.inf, np.nan
    x[4], x[5], x[6, :20], x[6, 20:] = -np.inf, np.inf, -np.inf, -1000.0
    x[7, :17], x[7, 17:], x[8, :16], x[9] = -np.inf, 1e30, 3e38, -1e38
    x[10, ::2], x[10, 1::2] = np.inf, -np.inf
    return x


SUMEXP = (
    "%m = reduce_max(%x) {axes=[1]} : f32ROWS",
    "%i = isinf(%m) : boolROWS",
    "%b = select(%i, f32(0.0), %m) : f32ROWS",
    "%k = reshape(%b) : f32[12, 1]",
    "%d = sub(%x, %k) : f32SHAPE",
    "%e = exp(%d) : f32SHAPE",
    "%s = reduce_sum(%e) {axes=[1]} : f32ROWS",
    "%l = log(%s) : f32ROWS",
    "%y = add(%l, %b) : f32ROWS",
)


@pytest.mark.parametrize("lines", [(SOFTMAX,), (SOFTMAX.replace("softmax", "log_softmax"),), SUMEXP])
def test_infinities_and_nan(lines: tuple[str, ...]) -> None:
    run = in_chunks(graph([12, 40], *lines), inputs=[special()], atol=1e-5)
    assert loops(run) == (1 if lines is SUMEXP else 2)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    x = (np.random.default_rng(0).standard_normal((3, 4000)) + 1000).astype(np.float32)
    line = "%y = var(%x) {axes=[1], correction=1} : f32ROWS"
    run = in_chunks(graph([3, 4000], line), inputs=[x], chunk=1024, slack=2)
    assert loops(run) == 1


def test_a_mean_that_drifts_costs_no_digits() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4000)).astype(np.float32)
    x[0, 2000:] += 1e5
    x[1, :256], x[1, 256:] = 0, 1e4 + x[1, 256:]
    x[2] += np.linspace(0, 1e3, 4000, dtype=np.float32)
    line = "%y = var(%x) {axes=[1], correction=1} : f32ROWS"
    assert loops(in_chunks(graph([3, 4000], line), inputs=[x], chunk=256, slack=2)) == 1


def test_norms_of_infinities_and_nan() -> None:
    lines = ("%s = reduce_sum(%x) {axes=[1]} : f32ROWS", NORM)
    in_chunks(graph([12, 40], *lines, result="%y, %s"), inputs=[special()], atol=1e-5)


def test_weighted_exponentials_share_the_pass() -> None:
    lines = (
        "%m = reduce_max(%x) {axes=[1]} : f32ROWS",
        "%k = reshape(%m) : f32[5, 1]",
        "%d = sub(%x, %k) : f32SHAPE",
        "%e = exp(%d) : f32SHAPE",
        "%s = reduce_sum(%e) {axes=[1]} : f32ROWS",
        "%w = mul(%v, %e) : f32SHAPE",
        "%t = reduce_sum(%w) {axes=[1]} : f32ROWS",
        "%y = div(%t, %s) : f32ROWS",
    )
    assert loops(in_chunks(graph([5, 70], *lines, inputs=", %v: f32[5, 70]"))) == 1


def test_a_base_of_another_reduction_takes_its_own_pass() -> None:
    """The spread about the maximum, not the mean; and exponentials less a sum."""
    for first, last in (("max", "%z = mul(%d, %d) : f32SHAPE"), ("sum", "%z = exp(%d) : f32SHAPE")):
        lines = (
            f"%m = reduce_{first}(%x) {{axes=[1]}} : f32ROWS",
            "%k = reshape(%m) : f32[5, 1]",
            "%d = sub(%x, %k) : f32SHAPE",
            last,
            "%y = reduce_sum(%z) {axes=[1]} : f32ROWS",
        )
        assert loops(in_chunks(graph([5, 70], *lines), atol=1e-3)) == 2


def test_what_is_ready_is_stored_on_the_way() -> None:
    lines = ("%h = mul(%x, f32(3.0)) : f32SHAPE", SOFTMAX.replace("%x", "%h"))
    run = in_chunks(graph([5, 70], *lines, result="%y, %h"))
    first, second = run.lowered.stages["tile"].split("for c in")[1:]
    assert "store h" in first
    assert "store h" not in second


@pytest.mark.parametrize("factors", ["mul(%e, %w)", "div(%e, %w)", "mul(%w, %e)"])
def test_exponentials_with_a_factor_are_added_up_in_the_pass_of_their_maximum(factors: str) -> None:
    lines = (
        "%m = reduce_max(%x) {axes=[1]} : f32ROWS",
        "%k = reshape(%m) : f32[3, 1]",
        "%s = sub(%x, %k) : f32SHAPE",
        "%e = exp(%s) : f32SHAPE",
        f"%p = {factors} : f32SHAPE",
        "%y = reduce_sum(%p) {axes=[1]} : f32ROWS",
    )
    run = in_chunks(graph([3, 100], *lines, inputs=", %w: f32[3, 100]"), slack=8)
    assert run.kernels == ["row"]
    assert loops(run) == 1


SCALED = (
    'graph @g(%x: f32[3, LENGTH, 20], %m: f32[20] argument "m", %w: bf16[20] argument "w") {\n'
    "  %c = sub(%x, %m) : f32[3, LENGTH, 20]\n"
    "  %f = cast(%w) : f32[20]\n"
    "  %e = mul(%f, f32(2.0)) : f32[20]\n"
    "  %y = mul(%c, %e) : f32[3, LENGTH, 20]\n"
    "  %s = reduce_sum(%y) {axes=[1]} : f32[3, 20]\n"
    "  %t = reduce_max(%c) {axes=[1]} : f32[3, 20]\n"
    "  return %y, %s, %t\n}"
)


@pytest.mark.parametrize("length", [5, 64, 96, 100, 129])
def test_several_chunks_at_a_time(length: int) -> None:
    """Also where they leave a rest. What all places of a row read is read before the loop."""
    schedule = GpuRowSchedule(8, 16, Launch(4, 1), whole=False, unroll=4)
    run = check(
        SCALED.replace("LENGTH", str(length)), target=TARGET.name, selector=InChunks(TARGET, schedule=schedule), slack=4
    )
    assert run.kernels == ["row"]
    tile = run.lowered.stages["tile"]
    chunks = min(4, -(-length // 16))
    assert f"for c in 0..{length}, step {16 * chunks}" in tile
    before, loop = tile.split("for c in")
    assert set(re.findall(r"\b[mw](?=\[)", before)) == {"m", "w"}
    assert not re.findall(r"\b[mw]\[", loop.split("alloc")[0])
    assert loop.count("store y") == chunks


def test_running_totals_go_chunk_by_chunk() -> None:
    schedule = GpuRowSchedule(1, 16, Launch(4, 1), whole=False, unroll=4)
    selector = InChunks(TARGET, schedule=schedule)
    run = check(graph([3, 100], SOFTMAX), target=TARGET.name, selector=selector, slack=4, atol=1e-6)
    assert "for c in 0..100, step 16" in run.lowered.stages["tile"]


def test_columns_of_16_bits_are_summed_in_chunks_where_a_block_could_hold_them() -> None:
    """Not where the rows are read again when a sum is made, nor short ones."""

    def chunked(length: int, **options: Any) -> bool:
        (found,) = row_candidates(50176, length, TARGET, bits=16, across=True, **options)
        return not found.whole

    assert chunked(256)
    assert chunked(4096)
    assert not chunked(256, again=True)
    assert not chunked(64)
