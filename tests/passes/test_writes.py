"""Boxes of inputs are written where they lie, and nothing reads what was there afterwards."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from programs import check, random_inputs, run

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.verify import verify
from fusec.passes.pipeline import lower
from fusec.passes.writes import late_readers, open_writes
from fusec.runtime.program import Launch


def graph(body: str, returns: str = "%u mutates=0") -> Graph:
    made = parse(f"graph @g(%x: f32[6, 8], %y: f32[2, 8]) {{\n{dedent(body)}\nreturn {returns}\n}}")
    verify(made)
    return made


WRITE = "%u = update(%x, %y) {starts=[3, 0]} : f32[6, 8]"
AT_FIRST = "%u = update(%x, %v) {starts=[3, 0]} : f32[6, 8]"

IN_PLACE = {
    "alone": (WRITE, "%u mutates=0"),
    "read afterwards": (f"{WRITE}\n%s = reduce_sum(%u) {{axes=[1]}} : f32[6]", "%u mutates=0, %s"),
    "in a row": (
        f"{WRITE}\n%c = slice(%y) {{starts=[0, 0], stops=[2, 3], steps=[1, 1]}} : f32[2, 3]\n"
        "%w = update(%u, %c) {starts=[0, 5]} : f32[6, 8]",
        "%w mutates=0",
    ),
    "read before, by what makes it": (
        "%m = reduce_max(%x) {axes=[0]} : f32[8]\n%e = exp(%m) : f32[8]\n%t = dot(%e, %x) {contract=[0]x[1]} : f32[6]\n"
        "%s = reduce_sum(%t) {axes=[0]} : f32[]\n%p = softmax(%y) {axis=1} : f32[2, 8]\n%v = add(%p, %s) : f32[2, 8]\n"
        f"{AT_FIRST}",
        "%u mutates=0",
    ),
}

OPENED = {
    "no input's contents": (WRITE, "%u"),
    "given out twice": (WRITE, "%u mutates=0, %u"),
    "what was there is returned": (WRITE, "%u mutates=0, %x"),
    "what was there is read later": (f"{WRITE}\n%s = exp(%x) : f32[6, 8]", "%u mutates=0, %s"),
    "between two writes": (
        f"{WRITE}\n%s = exp(%u) : f32[6, 8]\n%w = update(%u, %y) {{starts=[0, 0]}} : f32[6, 8]",
        "%w mutates=0, %s",
    ),
}


def updates(made: Graph) -> int:
    return sum(op.name == "update" for op in made.ops)


@pytest.mark.parametrize("name", IN_PLACE)
def test_written_in_place(name: str) -> None:
    made = graph(*IN_PLACE[name])
    assert open_writes(made) is made
    lowered = lower(made, "cpu", check=True)
    assert not late_readers(lowered.graph)
    assert updates(lowered.graph) == updates(made)
    program = lowered.program
    assert program.outputs[0] == program.inputs[0]
    writers = [
        s for s in program.steps if isinstance(s, Launch) and program.slots[s.arguments[-1]].source == program.inputs[0]
    ]
    assert len(writers) == updates(made)
    check(made, slack=4)


@pytest.mark.parametrize("name", OPENED)
def test_opened(name: str) -> None:
    made = graph(*OPENED[name])
    opened = open_writes(made)
    verify(opened, "writes")
    assert updates(opened) == 0
    assert any(op.name == "select" for op in opened.ops)
    arrays = random_inputs(made)
    for one, other in zip(interpret(made, arrays), interpret(opened, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


STENCIL = (
    "%a = slice(%x) {starts=[0, 0], stops=[2, 8], steps=[1, 1]} : f32[2, 8]\n%v = add(%a, %y) : f32[2, 8]\n"
    "%u = update(%x, %v) {starts=[1, 0]} : f32[6, 8]"
)  # fmt: skip


def test_a_kernel_that_reads_what_it_writes_over_is_made_anew() -> None:
    made = graph(STENCIL)
    assert open_writes(made) is made  # the ops are in order: only the kernel would read and write at once
    lowered = lower(made, "cpu", check=True)
    assert updates(lowered.graph) == 0
    assert lowered.program.outputs[0] != lowered.program.inputs[0]
    check(made)


def test_on_a_gpu_all_are_opened() -> None:
    made = graph(WRITE)
    assert updates(open_writes(made, in_place=False)) == 0
    assert updates(lower(made, "cuda:sm_90").graph) == 0


BOXES = [((3, 0), (2, 8)), ((0, 5), (6, 3)), ((5, 7), (1, 1)), ((0, 0), (6, 8)), ((2, 2), (0, 3)), ((1, 1), (4, 6))]


@pytest.mark.parametrize(("starts", "shape"), BOXES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "bool"])
def test_the_opened_form_is_the_same(starts: tuple[int, int], shape: tuple[int, int], dtype: str) -> None:
    text = f"""graph @g(%x: {dtype}[6, 8], %y: {dtype}{list(shape)}) {{
        %u = update(%x, %y) {{starts={list(starts)}}} : {dtype}[6, 8]
        return %u
    }}"""
    made = parse(text)
    arrays = random_inputs(made)
    opened = open_writes(made)
    assert updates(opened) == 0
    np.testing.assert_array_equal(interpret(made, arrays)[0], interpret(opened, arrays)[0])
    np.testing.assert_array_equal(run(made, arrays).outputs[0], interpret(made, arrays)[0])


def test_symbolic_places_opened() -> None:
    text = """graph @g(%x: f32[N, 8], %y: f32[2, 8]) {
        %u = update(%x, %y) {starts=[N - 2, 0]} : f32[N, 8]
        return %u
    }"""
    made = parse(text)
    opened = open_writes(made)
    arrays = [np.arange(40, dtype="f").reshape(5, 8), -np.ones((2, 8), "f")]
    np.testing.assert_array_equal(interpret(made, arrays)[0], interpret(opened, arrays)[0])
