"""Boxes of inputs are written where they lie, and nothing reads what was there afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from programs import check, random_inputs, run

import fusec
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
    "at a place": (
        "%s = reduce_sum(%y) {axes=[1]} : f32[2]\n%n = argmax(%s) {axis=0} : i64[]\n%at = add(%n, i64(4)) : i64[]\n"
        "%c = slice(%y) {starts=[0, 1], stops=[1, 7], steps=[1, 1]} : f32[1, 6]\n"
        "%u = update(%x, %c, %at) {starts=[0, 2], axes=[0]} : f32[6, 8]",
        "%u mutates=0",
    ),
    "at a constant place": (
        "%c = slice(%y) {starts=[0, 1], stops=[2, 2], steps=[1, 1]} : f32[2, 1]\n%e = exp(%c) : f32[2, 1]\n"
        "%u = update(%x, %e, i64(5)) {starts=[1, 0], axes=[1]} : f32[6, 8]",
        "%u mutates=0",
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
    check(made, slack=4, compiled=False)


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


def test_what_is_written_over_what_makes_it_is_made_before() -> None:
    made = graph(STENCIL)
    assert open_writes(made) is made  # the ops are in order: only one kernel would read and write at once
    lowered = lower(made, "cpu", check=True)
    assert updates(lowered.graph) == 1
    assert len(lowered.program.steps) == 2
    assert lowered.program.outputs[0] == lowered.program.inputs[0]
    check(made)


def test_what_is_read_beside_a_box_that_data_place_is_read_before() -> None:
    """Where along an axis is not known, so nothing along it lies beside what is written."""
    made = graph(
        "%n = argmax(%y) {axis=1} : i64[2]\n%s = reduce_max(%n) {axes=[0]} : i64[]\n"
        "%c = slice(%y) {starts=[0, 0], stops=[1, 8], steps=[1, 1]} : f32[1, 8]\n"
        "%u = update(%x, %c, %s) {starts=[0, 0], axes=[0]} : f32[6, 8]\n"
        "%l = slice(%x) {starts=[3, 0], stops=[6, 8], steps=[1, 1]} : f32[3, 8]\n%r = exp(%l) : f32[3, 8]",
        "%u mutates=0, %r",
    )
    assert all(not op.attributes.axes for op in open_writes(made).ops if op.name == "update")  # type: ignore[attr-defined]


BESIDE = STENCIL.replace("starts=[1, 0]", "starts=[2, 0]")


def test_a_write_that_is_not_the_new_contents_is_too_soon() -> None:
    """What copies the result to its place may come after readers, but the write does not."""
    made = graph(f"{WRITE}\n%c = copy(%u) : f32[6, 8]", "%c mutates=0")
    assert late_readers(made) == {"u"}


def test_a_kernel_may_read_beside_what_it_writes() -> None:
    made = graph(BESIDE)
    assert len(lower(made, "cpu", check=True).program.steps) == 1
    check(made)


def test_two_writes_of_one_kernel_are_in_order() -> None:
    """Both values lie at the same points, so that one kernel would make them."""
    body = """
        %a = exp(%y) : f32[2, 8]
        %b = neg(%a) : f32[2, 8]
        %u = update(%x, %a) {starts=[1, 0]} : f32[6, 8]
        %w = update(%u, %b) {starts=[2, 0]} : f32[6, 8]
    """
    check(graph(body, "%w mutates=0"))


MOMENTUM = """graph @step(%p: f32[6, 8], %g: f32[6, 8], %m: f32[6, 8]) {
  %a = mul(%m, f32(0.9)) : f32[6, 8]
  %n = add(%a, %g) : f32[6, 8]
  %b = mul(%n, f32(0.1)) : f32[6, 8]
  %q = sub(%p, %b) : f32[6, 8]
  return %q mutates=0, %n mutates=2
}"""


def test_a_map_writes_all_of_what_it_reads() -> None:
    """The second one reads what the first has written, and no kernel writes both."""
    run = check(MOMENTUM, slack=4)
    program = run.lowered.program
    assert program.outputs == (program.inputs[0], program.inputs[2])
    assert len(program.steps) == 2


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("%u = mul(%x, f32(2.0)) : f32[6, 8]", 1),
        ("%r = slice(%x) {starts=[5, 0], stops=[-1, 8], steps=[-1, 1]} : f32[6, 8]\n%u = neg(%r) : f32[6, 8]", 2),
        ("%s = reduce_sum(%x) {axes=[1]} : f32[6]\n%k = reshape(%s) : f32[6, 1]\n%u = sub(%x, %k) : f32[6, 8]", 2),
        ("%r = slice(%x) {starts=[2, 0], stops=[3, 8], steps=[1, 1]} : f32[1, 8]\n%u = sub(%x, %r) : f32[6, 8]", 2),
    ],
    ids=["in step", "reversed", "sums", "a row from all"],
)
def test_what_is_read_out_of_step_is_made_before(body: str, steps: int) -> None:
    run = check(graph(body), slack=4)
    program = run.lowered.program
    assert program.outputs[0] == program.inputs[0]
    assert len(program.steps) == steps


def test_a_result_that_is_returned_as_well_is_memory_of_its_own() -> None:
    made = graph("%v = mul(%x, f32(2.0)) : f32[6, 8]\n%u = copy(%v) : f32[6, 8]", "%u mutates=0, %v")
    program = check(made).lowered.program
    assert program.outputs[0] == program.inputs[0]
    assert program.slots[program.outputs[1]].kind == "output"


def random_writer(seed: int) -> Callable[[Any, Any], Any]:
    """A function that reads and writes boxes of its first argument, and returns something of what it saw."""

    def function(x: Any, y: Any) -> Any:
        rng = random.Random(seed)

        def box() -> tuple[slice, slice]:
            rows, columns = rng.randint(1, 3), rng.randint(1, 4)
            top, left = rng.randint(0, 6 - rows), rng.randint(0, 8 - columns)
            return slice(top, top + rows), slice(left, left + columns)

        seen = []
        for _ in range(rng.randint(1, 4)):
            at = box()
            rows, columns = (part.stop - part.start for part in at)
            source = rng.choice((x, y))
            value = source[:rows, :columns] * 2 if rng.random() < 0.5 else source[-rows:, -columns:] + x[at]
            if rng.random() < 0.3:
                value = value + x.max(axis=0)[:columns]
            if rng.random() < 0.4:
                seen.append(x[box()].sum())
            x[at] = value
        return sum(seen) + y.sum() if rng.random() < 0.7 else x.T.sum(axis=0)

    return function


@pytest.mark.parametrize("seed", range(60))
def test_any_writes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal((6, 8)).astype(np.float32) for _ in range(2)]
    function = random_writer(seed)
    made = fusec.trace(function, *arrays)
    expected = [a.astype(np.float64) for a in arrays]
    function(*expected)
    result = check(made, arrays, slack=4, atol=1e-5, compiled=False)
    changed = next(k for k, port in enumerate(made.output_ports) if port.mutates == 0)
    np.testing.assert_allclose(result.outputs[changed], expected[0], rtol=1e-4, atol=1e-4)


def test_none_in_place_where_there_is_no_place() -> None:
    made = graph(WRITE)
    assert updates(open_writes(made, in_place=False)) == 0


@pytest.mark.parametrize("name", IN_PLACE)
def test_written_in_place_on_a_gpu(name: str) -> None:
    made = graph(*IN_PLACE[name])
    program = check(made, target="cuda:sm_90", slack=4).lowered.program
    assert program.outputs[0] == program.inputs[0]
    assert all(isinstance(s, Launch) or not s.results for s in program.steps)  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(20))
def test_any_writes_on_a_gpu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal((6, 8)).astype(np.float32) for _ in range(2)]
    made = fusec.trace(random_writer(seed), *arrays)
    check(made, arrays, slack=4, atol=1e-5, target="cuda:sm_90")


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
