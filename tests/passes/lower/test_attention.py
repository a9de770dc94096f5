"""Attention on a CPU whose keys several tasks share, and the kernel that joins what they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from programs import Run, check, random_inputs

from fusec.ir.parse import parse
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.select import Selector, lower_with
from fusec.passes.schedule.attention import AttentionSchedule
from fusec.target.cpu import cpu_target


@dataclass
class Shared(Selector):
    """Has ``split`` tasks share the keys of each attention."""

    split: int = 3

    def lower(self, frame: Frame) -> LoweredGroup:
        schedule = self.candidates(frame)[0]
        assert isinstance(schedule, AttentionSchedule)
        return lower_with(frame, replace(schedule, keys=16, split=self.split))


def attention(change: str = "%z = copy(%s)", inputs: str = "", dtype: str = "f32", queries: int = 5) -> str:
    shape = f"[2, 3, {queries}, 70]"
    lines = "\n".join(line if " : " in line else f"{line} : {dtype}{shape}" for line in change.splitlines())
    return f"""graph @attention(%q: {dtype}[2, 3, {queries}, 16], %k: {dtype}[2, 3, 70, 16],
        %v: {dtype}[2, 3, 70, 9]{inputs}) {{
        %s = dot(%q, %k) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {dtype}{shape}
        {lines}
        %p = softmax(%z) {{axis=3}} : {dtype}{shape}
        %o = dot(%p, %v) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : {dtype}[2, 3, {queries}, 9]
        return %o
    }}"""


SINK = """graph @g(%q: f32[3, 5, 16], %k: f32[3, 70, 16], %v: f32[3, 70, 16], %s: f32[3, 1, 1]) {
  %d = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[3, 5, 70]
  %e = broadcast(%s) : f32[3, 5, 1]
  %c = concat(%d, %e) {axis=2} : f32[3, 5, 71]
  %p = softmax(%c) {axis=2} : f32[3, 5, 71]
  %w = slice(%p) {starts=[0, 0, 0], stops=[3, 5, 70], steps=[1, 1, 1]} : f32[3, 5, 70]
  %o = dot(%w, %v) {contract=[2]x[1], batch=[0]x[0]} : f32[3, 5, 16]
  return %o
}"""


def joined(text: str, inputs: object = None, *, split: int = 3, compiled: bool = True) -> Run:
    selector = Shared(cpu_target(), 2, {}, split)
    run = check(text, inputs, selector=selector, slack=4, compiled=compiled)  # type: ignore[arg-type]
    assert run.kernels == ["attention", "row"]
    return run


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("split", [2, 3, 4, 5])
def test_parts_of_the_keys(compiled, split):
    """With five parts of 16 keys the last has six, with four it has none beyond 64."""
    joined(attention(), split=split, compiled=compiled)


def test_rows_of_which_a_part_has_nothing():
    mask = np.ones((5, 70), np.bool_)
    mask[0], mask[1, :48], mask[2, 30:] = False, False, False
    text = attention("%z = select(%m, %s, f32(-inf))", ", %m: bool[5, 70]")
    (out,) = joined(text, [*random_inputs(parse(text))[:3], mask]).outputs
    assert np.isnan(out[:, :, 0]).all()
    assert np.isfinite(out[:, :, 1:]).all()


def test_biases_and_many_queries():
    joined(attention("%z = add(%s, %b)", ", %b: f32[3, 37, 70]", queries=37))


def test_doubles():
    joined(attention(dtype="f64"))


@pytest.mark.parametrize("size", [-np.inf, -80.0, 0.5, 80.0])
def test_one_part_has_the_sink(size):
    arrays = random_inputs(parse(SINK))
    arrays[3] = np.full((3, 1, 1), size, np.float32)
    joined(SINK, arrays)


def test_few_queries_of_few_heads_are_shared():
    text = attention().replace("70", "2048").replace("[2, 3,", "[1, 1,")
    run = check(text, slack=4, threads=4)
    assert run.kernels == ["attention", "row"]
    assert check(text, slack=4, threads=1).kernels == ["attention"]


def test_lanes_without_queries_hold_zeros():
    """They hold what was in memory before, and subnormal numbers take a hundred times as long on some CPUs."""
    run = check(attention(queries=2), slack=4)
    first, zeros = (line.strip() for line in run.lowered.stages["tile"].splitlines()[2:4])
    assert first.startswith("alloc queries")
    assert zeros.startswith("map queries[depth, qi] = 0.0")


@pytest.mark.parametrize("change", ["%z = copy(%s)", "%z = maximum(%s, f32(-1e30))"])
@pytest.mark.parametrize("step", [0.02, 0.5, 20.0, -20.0])
def test_maxima_that_grow(change, step):
    """From block to block by little, by as much as sums are brought to a new scale for, by a lot; or never again."""
    q, k, v = random_inputs(parse(attention()))
    q[...], k[...] = 0, 0
    q[:, :, ::2, 0], q[:, :, 1::2, 0], k[..., 0] = 1, 0.25, np.arange(70) * step
    joined(attention(change), [q, k, v], split=2)
