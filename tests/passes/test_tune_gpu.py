"""Choosing among alternatives: the fastest right one, remembered; failures are counted out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fusec.errors import TargetError
from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.passes.pipeline import lower
from fusec.passes.tune import Done, Measured, Stopped
from fusec.passes.tune_gpu import GpuTuningSelector
from fusec.report import explain_program
from fusec.runtime.program import Call, Launch
from fusec.runtime.serial import program_from_json, program_to_json
from fusec.target.gpu import gpu_target

PRODUCT = """graph @f(%x: bf16[512, 256]@cuda:0, %w: bf16[128, 256]@cuda:0, %b: bf16[128]@cuda:0) {
  %h = linear(%x, %w, %b) : bf16[512, 128]@cuda:0
  %y = silu(%h) : bf16[512, 128]@cuda:0
  return %y
}"""


def selector(times: dict[str, float | None], **more: object) -> GpuTuningSelector:
    """Measures by the beginning of an alternative's text."""

    def measure(
        context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
    ) -> list[Measured]:
        found = []
        for a in alternatives:
            seconds = next((s for head, s in times.items() if a.text.startswith(head)), 1.0)
            found.append(Measured(seconds, "" if seconds is not None else "it was wrong"))
        return found

    return GpuTuningSelector(gpu_target("cuda:sm_90"), measure=measure, **more)  # type: ignore[arg-type]


def test_the_fastest_is_taken_and_told() -> None:
    chosen = selector({"library matmul with bias": 1e-5, "library matmul": None})
    program = lower(parse(PRODUCT), "cuda:sm_90", selector=chosen).program
    assert [type(step) for step in program.steps] == [Call, Launch]
    (choice,) = program.choices
    assert choice.chosen == "library matmul with bias"
    assert len(choice.measured) == 8
    text = explain_program(program)
    assert "10 µs  library matmul with bias (chosen)" in text
    assert "-  library matmul: it was wrong" in text
    assert "triton block=" in text
    assert program_from_json(program_to_json(program)).choices == program.choices


def test_a_schedule_is_taken() -> None:
    texts: list[str] = []
    best = selector({})
    inner = best.measure
    assert inner is not None

    def third(
        context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
    ) -> list[Measured]:
        texts.extend(a.text for a in alternatives)
        return [Measured(0.5 if k == 5 else 1.0) for k in range(len(alternatives))]

    best.measure = third
    program = lower(parse(PRODUCT), "cuda:sm_90", selector=best).program
    assert len(set(texts)) == len(texts)
    shown = " ".join(("triton", *(f"{k}={v}" for k, v in program.reports[0].schedule)))
    assert shown == texts[5] == program.choices[0].chosen


def test_choices_are_remembered_by_content_and_facts() -> None:
    remembered: dict[str, str] = {}
    lower(parse(PRODUCT), "cuda:sm_90", selector=selector({"library matmul with": 0.1}, remembered=remembered))
    assert len(remembered) == 1
    again = selector({"library": None}, remembered=remembered)
    again.measure = _unmeasured
    assert lower(parse(PRODUCT), "cuda:sm_90", selector=again).program.choices[0].chosen.startswith("library")
    other = selector({"triton": 0.1}, remembered=remembered, facts=("another torch",))
    assert lower(parse(PRODUCT), "cuda:sm_90", selector=other).program.choices[0].chosen.startswith("triton")
    assert len(remembered) == 2


def _unmeasured(
    context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
) -> list[Measured]:
    raise AssertionError("it was measured before")


def test_damaged_memory_is_measured_again() -> None:
    remembered: dict[str, str] = {}
    lower(parse(PRODUCT), "cuda:sm_90", selector=selector({}, remembered=remembered))
    for damage in ("", "{", '{"chosen": "triton of old", "measured": []}', "[1]"):
        remembered = dict.fromkeys(remembered, damage)
        lower(parse(PRODUCT), "cuda:sm_90", selector=selector({"library matmul with": 0.1}, remembered=remembered))
        assert '"library matmul with bias"' in next(iter(remembered.values()))


def test_where_nothing_is_right_or_measured_the_model_decides() -> None:
    usual = lower(parse(PRODUCT), "cuda:sm_90").program
    for results in ({"": None}, None):
        none = selector(results or {})
        if results is None:
            none.measure = lambda context, alternatives, budget, done: []
        program = lower(parse(PRODUCT), "cuda:sm_90", selector=none).program
        assert program.reports[0].schedule == usual.reports[0].schedule
        assert not program.choices
        assert not none.remembered


def test_tuning_for_a_card_that_is_not_here() -> None:
    from fusec.build import Options, run_passes

    with pytest.raises(TargetError, match=r"can't be measured on this machine \(.*\); leave tune= out"):
        run_passes(parse(PRODUCT), "hip:gfx942", Options("hip:gfx942", "quick"))


TWO = PRODUCT.replace("  return %y", "  %z = dot(%y, %w) {contract=[1]x[0]} : bf16[512, 256]@cuda:0\n  return %z")


def test_ctrl_c_keeps_the_best_so_far_and_measures_no_more() -> None:
    asked: list[str] = []
    remembered: dict[str, str] = {}

    def stopped(
        context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
    ) -> list[Measured]:
        asked.append(context.name)
        raise Stopped([Measured(1.0), Measured(0.25), Measured(0.5)])

    chosen = GpuTuningSelector(gpu_target("cuda:sm_90"), measure=stopped, remembered=remembered)
    lowered = lower(parse(TWO), "cuda:sm_90", selector=chosen)
    assert len(asked) == 1
    assert lowered.stopped
    assert not remembered
    (choice,) = lowered.program.choices
    assert choice.chosen == choice.measured[1][0]


def test_ctrl_c_before_anything_is_measured() -> None:
    def interrupted(
        context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
    ) -> list[Measured]:
        raise KeyboardInterrupt

    chosen = GpuTuningSelector(gpu_target("cuda:sm_90"), measure=interrupted)
    lowered = lower(parse(TWO), "cuda:sm_90", selector=chosen)
    assert lowered.stopped
    assert not lowered.program.choices
