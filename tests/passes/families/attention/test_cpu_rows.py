"""Attention that also gives each row's maximum and sum of exponentials, as a backward needs them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from programs import Run, build, check, check_built, random_inputs, reasons

from fusec.errors import LoweringError
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.attention.elements import attention_parts
from fusec.passes.families.attention.gpu import attention_nest
from fusec.passes.families.attention.schedule.cpu import AttentionSchedule
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select import Selector, lower_with
from fusec.passes.select_gpu import GpuSelector
from fusec.passes.select_gpu import lower_with as lower_on_gpu
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target

GPU = "cuda:sm_90"
RESULTS = ("%o, %max, %sum", "%o, %max_kept, %sum_kept", "%o, %sum", "%o, %max")


def attention(
    change: str = "%z = mul(%x, f32(0.5)) : f32[2, 3, 37, 70]",
    returns: str = RESULTS[0],
    *,
    inputs: str = "",
    dtype: str = "f32",
    more: str = "",
) -> str:
    """A softmax written out. ``change`` leads from %x, the products in f32, to %z."""
    rows, score = "f32[2, 3, 37]", "f32[2, 3, 37, 70]"
    return f"""graph @g(%q: {dtype}[2, 3, 37, 16], %k: {dtype}[2, 3, 70, 16], %v: {dtype}[2, 3, 70, 8]{inputs}) {{
        %s = dot(%q, %k) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {dtype}[2, 3, 37, 70]
        %x = cast(%s) : {score}
        {change}
        %max = reduce_max(%z) {{axes=[3]}} : {rows}
        %max_kept = reshape(%max) : f32[2, 3, 37, 1]
        %less = sub(%z, %max_kept) : {score}
        %e = exp(%less) : {score}
        %sum = reduce_sum(%e) {{axes=[3]}} : {rows}
        %sum_kept = reshape(%sum) : f32[2, 3, 37, 1]
        %p = div(%e, %sum_kept) : {score}
        %w = cast(%p) : {dtype}[2, 3, 37, 70]
        {more}
        %o = dot(%w, %v) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : {dtype}[2, 3, 37, 8]
        return {returns}
    }}"""


CAUSAL = """%i = iota() {axis=0} : i64[37, 1]
%j = iota() {axis=1} : i64[1, 70]
%m = le(%j, %i) : bool[37, 70]
%z = select(%m, %x, f32(-inf)) : f32[2, 3, 37, 70]"""
CAPPED = """%t = tanh(%x) : f32[2, 3, 37, 70]
%c = mul(%t, f32(3.0)) : f32[2, 3, 37, 70]
%z = add(%c, %b) : f32[2, 3, 37, 70]"""
HIDDEN = "%z = select(%m, %x, f32(-inf)) : f32[2, 3, 37, 70]"


@dataclass
class Shared(Selector):
    """Has three tasks share the keys of each attention."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        schedule = self.candidates(context)[0]
        assert isinstance(schedule, AttentionSchedule)
        return lower_with(context, replace(schedule, keys=16, split=3))


@dataclass
class SharedByBlocks(GpuSelector):
    """Has three blocks share the keys of each attention."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        return lower_on_gpu(context, GpuAttentionSchedule(16, 16, Launch(4, 2), 3))


def fused(text: str, **options: object) -> Run:
    run = check(text, slack=4, **options)  # type: ignore[arg-type]
    assert run.kernels == ["attention"], reasons(run.lowered)
    return run


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["cpu", GPU])
@pytest.mark.parametrize("returns", RESULTS)
def test_rows(returns: str, target: str) -> None:
    stage = fused(attention(returns=returns), target=target).lowered.stages["fuse"]
    again = parse(stage)
    assert str(again) == stage
    (op,) = (op for op in again.ops if op.name == "fused")
    parts = attention_parts(op)
    assert (parts.row_max is not None, parts.row_sum is not None) == ("%max" in returns, "%sum" in returns)


@pytest.mark.parametrize("target", ["cpu", GPU])
def test_changed_scores(target: str) -> None:
    fused(attention(CAUSAL), target=target)
    fused(attention(CAPPED, inputs=", %b: f32[3, 1, 70]"), target=target)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("target", ["cpu", GPU])
def test_half_types(dtype: str, target: str) -> None:
    run = check(attention(dtype=dtype), target=target, atol=4e-3)
    assert run.kernels == ["attention"], reasons(run.lowered)


@pytest.mark.parametrize("selector", [Shared(cpu_target(), 2, {}), SharedByBlocks(gpu_target(GPU))], ids=["cpu", "gpu"])
@pytest.mark.parametrize("change", [None, CAUSAL], ids=["plain", "causal"])
def test_keys_that_are_shared_out(change: str | None, selector: Selector | GpuSelector) -> None:
    text = attention() if change is None else attention(change)
    gpu = isinstance(selector, GpuSelector)
    built = build(text, selector=selector, compiled=not gpu, target=GPU if gpu else "cpu")
    assert check_built(built, None, slack=4).kernels == ["attention", "row"]


@pytest.mark.parametrize("target", ["cpu", GPU])
def test_rows_that_are_hidden(target: str) -> None:
    """Their maximum is -inf, and their sum what it is in eager: not 0."""
    text = attention(HIDDEN, inputs=", %m: bool[37, 70]")
    arrays = random_inputs(parse(text))
    arrays[3][...] = True
    arrays[3][4], arrays[3][5, :50] = False, False
    _, row_max, row_sum = fused(text, inputs=arrays, target=target).outputs
    assert (row_max[..., 4] == -np.inf).all()
    assert np.isnan(row_sum[..., 4]).all()
    assert np.isfinite(row_sum[..., 5]).all()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["cpu", GPU])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(number: float, target: str) -> None:
    text = attention()
    arrays = random_inputs(parse(text))
    arrays[0][1, 2, 7, 3] = number
    arrays[1][0, 1, 66] = number
    fused(text, inputs=arrays, target=target)


def test_sums_belong_to_the_maximum_itself() -> None:
    """However little it grows from block to block."""
    text = attention()
    arrays = random_inputs(parse(text))
    arrays[0][...] = 1
    arrays[1][...] = np.linspace(0, 1, 70)[:, None]
    fused(text, inputs=arrays)


def test_beside_a_sink() -> None:
    text = attention(returns="%o, %larger, %whole").replace(
        "%max_kept = reshape(%max) : f32[2, 3, 37, 1]",
        "%own = reshape(%max) : f32[2, 3, 37, 1]\n%larger = maximum(%own, %sink) : f32[2, 3, 37, 1]",
    )
    text = text.replace("%max_kept", "%larger").replace(
        "%sum_kept = reshape(%sum) : f32[2, 3, 37, 1]",
        """%some = reshape(%sum) : f32[2, 3, 37, 1]
        %beside = sub(%sink, %larger) : f32[2, 3, 37, 1]
        %of_sink = exp(%beside) : f32[2, 3, 37, 1]
        %whole = add(%some, %of_sink) : f32[2, 3, 37, 1]""",
    )
    text = text.replace("%sum_kept", "%whole").replace("8]) {", "8], %sink: f32[2, 3, 37, 1]) {")
    for target in ("cpu", GPU):
        fused(text, target=target)


def test_what_is_computed_of_rows_is_another_kernel() -> None:
    more = "%log = log(%sum) : f32[2, 3, 37]\n%both = add(%log, %max) : f32[2, 3, 37]"
    run = check(attention(returns="%o, %both", more=more), slack=4)
    assert run.kernels == ["attention", "map"], reasons(run.lowered)


def test_values_that_are_made_of_a_row_s_sum_are_declined() -> None:
    text = attention(
        returns="%o", more="%n = slice(%sum) {starts=[0, 0, 0], stops=[2, 3, 1], steps=[1, 1, 1]} : f32[2, 3, 1]"
    )
    text = text.replace(
        "%o = dot(%w, %v)",
        "%n4 = reshape(%n) : f32[2, 3, 1, 1]\n%v2 = mul(%v, %n4) : f32[2, 3, 70, 8]\n%o = dot(%w, %v2)",
    )
    run = check(text, slack=4)
    assert "attention" not in run.kernels
    assert any("a row's maximum or sum is read by the attention" in r for r in reasons(run.lowered))


def test_tensor_cores_of_cuda_leave_them_to_triton() -> None:
    (op,) = (op for op in lower(parse(attention(dtype="bf16")), GPU).graph.ops if op.name == "fused")
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    with pytest.raises(LoweringError, match="a row's maximum and sum as results"):
        attention_nest(LoweringContext(op, strides, "k"), GpuAttentionSchedule(64, 64, Launch(4, 2)))
