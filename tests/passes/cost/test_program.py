"""Where a kernel's operands are: the bytes that pass between two uses of the same memory, scratch being shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusec.ir.parse import parse
from fusec.passes.cost.program import launches, predict, seconds_after
from fusec.passes.pipeline import lower
from fusec.target.cpu import cpu_target
from fusec.target.rates import usual_rates

MB = 1 << 20


def products(count: int) -> str:
    """A chain of products of one size: all but the last result are scratch."""
    lines = [f"graph @g(%h0: f32[512, 512], {', '.join(f'%w{i}: f32[512, 512]' for i in range(count))}) {{"]
    lines += [f"%h{i + 1} = linear(%h{i}, %w{i}) : f32[512, 512]" for i in range(count)]
    return "\n".join([*lines, f"return %h{count}", "}"])


def test_scratch_is_near_and_inputs_are_far() -> None:
    """Results that live for a step or two share their memory, so what has passed since it was used is little."""
    program = lower(parse(products(12)), "cpu:znver5", threads=2).program
    near, far = [], []
    for step, distances, _ in launches(program):
        for slot, distance in zip(step.arguments, distances, strict=True):
            kind = program.slots[slot].kind
            near += [distance] if kind == "workspace" else []
            far += [distance] if kind == "input" else []
    assert min(near) == 3 * MB  # what a kernel itself touches: three matrices
    assert max(near) <= 8 * MB
    assert min(far) >= 14 * MB  # thirteen inputs and the result, once a call


def test_each_input_takes_its_part_of_a_call() -> None:
    target = cpu_target("cpu:znver5")
    rates = usual_rates(target, 2)
    program = lower(parse(products(4)), "cpu:znver5", threads=2).program
    quick, slow = (predict(program, target, replace(rates, argument=s), 2).overhead for s in (0.0, 1e-3))
    assert slow - quick == pytest.approx(4e-3)


def test_after_other_code_what_a_call_reads_is_farther() -> None:
    target = cpu_target("cpu:znver5")
    rates = usual_rates(target, 2)
    program = lower(parse(products(4)), "cpu:znver5", threads=2).program
    inputs = 5 * MB
    later = [seconds_after(program, target, rates, 2, between) for between in (0.0, 8.0 * MB, 1024.0 * MB)]
    assert later[0] <= later[1] < later[2]
    far, near = rates.beyond_l2(2**30, 2).read, rates.beyond_l2(inputs, 2).read
    assert later[2] == pytest.approx(inputs / far - inputs / near, rel=0.3)


def overhead(width: int, inputs: int = 1) -> float:
    """Of a call with two results of so many rows."""
    shape, rates = f"f32[{width}, 512]", usual_rates(cpu_target("cpu:znver5"), 2)
    given = [f"%x{i}" for i in range(inputs)]
    sums = [f"%s{i} = add(%{'s' if i > 1 else 'x'}{i - 1}, %x{i}) : {shape}" for i in range(1, inputs)]
    last = f"%s{inputs - 1}" if inputs > 1 else "%x0"
    text = [f"graph @g({', '.join(f'{x}: {shape}' for x in given)}) {{", *sums]
    text += [f"%y = exp({last}) : {shape}", f"%z = neg({last}) : {shape}", "return %y, %z", "}"]
    return lower(parse("\n".join(text)), "cpu:znver5", threads=2, rates=rates).program.overhead


def test_results_take_time_where_kernels_leave_nothing_in_the_caches() -> None:
    rates = usual_rates(cpu_target("cpu:znver5"), 2)
    assert overhead(1024) - overhead(8) == pytest.approx(2 * rates.library)


def test_a_call_that_finds_nothing_in_the_caches_takes_longer_for_itself_and_for_each_input() -> None:
    rates = usual_rates(cpu_target("cpu:znver5"), 2)
    near, far = overhead(1024), overhead(16384)
    assert far - near == pytest.approx(rates.library)
    assert overhead(16384, 3) - far == pytest.approx(2 * rates.far_argument)
    assert overhead(1024, 3) - near == pytest.approx(2 * rates.argument)


def test_a_roofline_is_no_limit_for_what_the_caches_still_hold() -> None:
    """Rates that make main memory slow: the second product finds the first one's result in L2."""
    target = cpu_target("cpu:znver5")
    rates = usual_rates(target, 2)
    program = lower(parse(products(2)), "cpu:znver5", threads=2, rates=rates).program
    program = replace(program, reports=tuple(replace(r, limit=1.0) for r in program.reports))
    assert all(r.limit == r.predicted < 1e-2 for r in predict(program, target, rates, 2).reports)


def test_kernels_whose_code_the_caches_no_longer_hold_start_later() -> None:
    """A kernel of a call that reads 64 MB besides, and the same where it reads 0.25 MB."""
    target = cpu_target("cpu:znver5")
    rates = usual_rates(target, 2)

    def later(width: int) -> list[float]:
        row = f"f32[1, {width}]"
        text = [f"graph @g(%x: {row}, %w: f32[{width}, {width}]) {{", f"%s = softmax(%x) {{axis = 1}} : {row}"]
        text += [f"%y = linear(%s, %w) : {row}", "return %y", "}"]
        program = lower(parse("\n".join(text)), "cpu:znver5", threads=2).program
        quick, slow = (predict(program, target, replace(rates, far_start=s), 2).reports for s in (0.0, 1e-3))
        return [b.predicted - a.predicted for a, b in zip(quick, slow, strict=True)]

    assert later(256) == pytest.approx([0.0, 0.0])
    assert later(4096) == pytest.approx([1e-3, 1e-3])
