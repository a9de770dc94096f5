"""Every output is memory of its own or a plain view of some, with the strides that the code as written gives it."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from programs import check, execute, random_inputs

from fusec.ir.parse import parse
from fusec.passes.aliases import hold_aliases
from fusec.passes.outputs import input_strides, own_outputs
from fusec.passes.pipeline import lower
from fusec.tile.views import strided_view

FLAT = "%p = permute(%x) {permutation=[1, 0]} : f32[6, 4]\n%r = reshape(%p) : f32[24]"


def copies(text: str) -> list[str]:
    """The values that the pass copies."""
    before = hold_aliases(parse(dedent(text)))
    after = own_outputs(before)
    return [op.operands[0].name for op in after.ops if op not in before.ops and op.name == "copy"]


@pytest.mark.parametrize(
    ("body", "returns", "copied"),
    [
        ("%y = exp(%x) : f32[4, 6]", "%y", []),
        ("%y = exp(%x) : f32[4, 6]", "%y strides=[1, 4]", []),
        ("%y = exp(%x) : f32[4, 6]", "%x, %y, %y", []),
        ("%y = reshape(%x) : f32[2, 12]", "%y", []),
        ("%y = permute(%x) {permutation=[1, 0]} : f32[6, 4]", "%y strides=[1, 6]", []),
        ("%y = permute(%x) {permutation=[1, 0]} : f32[6, 4]", "%y", ["y"]),
        ("%e = exp(%x) : f32[4, 6]\n%y = permute(%e) {permutation=[1, 0]} : f32[6, 4]", "%y strides=[1, 6]", []),
        ("%e = exp(%x) : f32[4, 6]\n%y = permute(%e) {permutation=[1, 0]} : f32[6, 4]", "%y", ["y"]),
        ("%y = slice(%x) {starts=[3, 0], stops=[-1, 6], steps=[-2, 3]} : f32[2, 2]", "%y strides=[-12, 3]", []),
        ("%r = reshape(%x) : f32[4, 1, 6]\n%y = broadcast(%r) : f32[4, 5, 6]", "%y strides=[6, 0, 1]", []),
        ("%r = reshape(%x) : f32[4, 1, 6]\n%y = broadcast(%r) : f32[4, 5, 6]", "%y", ["y"]),
        ("%p = permute(%x) {permutation=[1, 0]} : f32[6, 4]\n%y = reshape(%p) : f32[24]", "%y", ["y"]),
        ("%y = iota() {axis=1} : f32[4, 6]", "%y", ["y"]),
        ("%y = broadcast(f32(2.0)) : f32[4, 6]", "%y", ["y"]),
        ("%i = iota() {axis=1} : i64[1, 6]\n%y = concat(%i, %i) {axis=0} : i64[2, 6]", "%y", ["y"]),
        ("%e = exp(%x) : f32[4, 6]\n%y = reshape(%e) : f32[24]", "%y, %e strides=[1, 4]", ["y"]),
        ("%e = exp(%x) : f32[4, 6]", "%e strides=[1, 4], %e", ["e"]),
        ("%y = argmax(%x) {axis=1} : i64[4]", "%y strides=[2]", ["y"]),
        (f"{FLAT}\n%y = argmax(%r) {{axis=0}} : i64[]", "%y", ["r"]),
        ('%y = extern(%x) {target="numpy.sort", arguments="(($0,), {})"} : f32[4, 6]', "%y", []),
        ('%y = extern(%x) {target="numpy.sort", arguments="(($0,), {})"} : f32[4, 6]', "%y strides=[1, 4]", ["y"]),
    ],
)  # fmt: skip
def test_copies_are_made_where_no_view_will_do(body: str, returns: str, copied: list[str]) -> None:
    text = f"graph @g(%x: f32[4, 6]) {{\n{body}\nreturn {returns}\n}}"
    assert copies(text) == copied
    check(text)


def test_a_library_call_is_given_nothing_that_runs_backwards() -> None:
    text = """
        graph @f(%x: f32[4, 6]) {
          %v = slice(%x) {starts=[3, 0], stops=[-1, 6], steps=[-1, 1]} : f32[4, 6]
          %w = slice(%x) {starts=[0, 0], stops=[4, 6], steps=[2, 1]} : f32[2, 6]
          %y = extern(%v, %w) {target="aten.max.other", arguments="($0, $1), {}"} : f32[4, 6]
          return %y
        }
    """
    assert copies(text) == ["v"]


def test_views_of_inputs_with_strides() -> None:
    text = """graph @g(%x: f32[4, 6] strides=[1, 4]) {
        %y = permute(%x) {permutation=[1, 0]} : f32[6, 4]
        %z = reshape(%x) : f32[24]
        return %y, %z, %x strides=[1, 4]
    }"""
    assert copies(text) == ["z"]
    check(text)


def test_an_output_that_is_a_view_of_an_input_shares_its_memory() -> None:
    graph = parse("""graph @g(%x: f32[4, 6]) {
        %y = slice(%x) {starts=[1, 0], stops=[4, 6], steps=[2, 1]} : f32[2, 6]
        return %y strides=[12, 1], %x
    }""")
    program = lower(graph, "cpu").program
    assert not program.kernels
    slots = [program.slots[k] for k in program.outputs]
    assert [s.kind for s in slots] == ["view", "input"]
    assert (slots[0].source, slots[0].offset, slots[0].strides) == (program.inputs[0], 6, (12, 1))


def test_outputs_that_are_views_of_one_another_share_memory() -> None:
    graph = parse("""graph @g(%x: f32[4, 6]) {
        %e = exp(%x) : f32[4, 6]
        %r = reshape(%e) : f32[24]
        %t = permute(%e) {permutation=[1, 0]} : f32[6, 4]
        return %r, %e, %t strides=[1, 6], %e
    }""")
    inputs = random_inputs(graph)
    flat, whole, transposed, again = execute(lower(graph, "cpu").program, inputs)
    assert flat.__array_interface__["data"][0] == whole.__array_interface__["data"][0]
    assert again is whole
    whole[1, 2] = 7
    assert flat[8] == transposed[2, 1] == 7
    check(graph, inputs)


def test_equal_results_are_separate_memory() -> None:
    graph = parse("""graph @g(%x: f32[4]) {
        %a = exp(%x) : f32[4]
        %b = exp(%x) : f32[4]
        return %a, %b
    }""")
    a, b = execute(lower(graph, "cpu").program, random_inputs(graph))
    assert not np.shares_memory(a, b)


@pytest.mark.parametrize(
    ("view", "strides", "offset"),
    [
        ("%y = permute(%x) {permutation=[1, 0]} : f32[6, 4]", (1, 6), 0),
        ("%y = slice(%x) {starts=[2, 5], stops=[4, -1], steps=[1, -2]} : f32[2, 3]", (6, -2), 17),
        ("%y = windows(%x) {axis=1, size=3, step=2} : f32[4, 2, 3]", (6, 2, 1), 0),
        ("%y = strided(%x) {strides=[7, 0], offset=2} : f32[3, 5]", (7, 0), 2),
        ("%y = reshape(%x) : f32[2, 1, 12]", (12, 0, 1), 0),
        ("%y = slice(%x) {starts=[4, 0], stops=[4, 6], steps=[1, 1]} : f32[0, 6]", (6, 1), 0),
    ],
)
def test_strides_of_views(view: str, strides: tuple[int, ...], offset: int) -> None:
    graph = parse(f"graph @g(%x: f32[4, 6]) {{\n{view}\nreturn %y\n}}")
    found = strided_view(graph.outputs[0], graph.producers(), input_strides(graph))
    assert found is not None
    assert found.base is graph.inputs[0]
    assert found.offset == offset
    shape = graph.outputs[0].type.static_shape
    assert all(a == b for a, b, n in zip(found.strides, strides, shape, strict=True) if n > 1)


def test_what_no_strides_say() -> None:
    graph = parse("""graph @g(%x: f32[4, 6]) {
        %p = permute(%x) {permutation=[1, 0]} : f32[6, 4]
        %y = reshape(%p) : f32[24]
        return %y
    }""")
    assert strided_view(graph.outputs[0], graph.producers(), {}) is None


def test_constants_iota_and_inputs_as_outputs() -> None:
    check("""graph @g(%x: f32[4, 6], %s: i32[]) {
        %i = iota() {axis=1} : i64[4, 6]
        %c = broadcast(f32(2.5)) : f32[3]
        return %i, %c, f64(-inf), bool(true), %s, %x
    }""")


def test_a_view_of_what_is_made_of_indices_shows_the_copy() -> None:
    """Kernels compute such a value wherever they read it; in memory is its copy alone."""
    text = """graph @f(%x: f32[6]) {
  %i = iota() {axis=0} : i64[6]
  %c = cast(%i) : f32[6]
  %s = add(%c, f32(1.0)) : f32[6]
  %v = slice(%s) {starts=[1], stops=[4], steps=[1]} : f32[3]
  %y = add(%x, %s) : f32[6]
  return %y, %s, %v
}"""
    assert copies(text) == ["s"]
    check(text)
