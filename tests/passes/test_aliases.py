"""Outputs share memory exactly where the graph says so as it was captured, whatever rewrites find out later."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from programs import random_inputs

from fusec.build import Options, build
from fusec.ir.parse import parse
from fusec.passes.aliases import hold_aliases


def run(body: str, returns: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inputs, and the outputs of the compiled graph."""
    graph = parse(f"graph @g(%x: f32[2, 3], %z: f32[2, 3]) {{\n{body}\nreturn {returns}\n}}")
    inputs = random_inputs(graph)
    return inputs, build(graph, "numpy", Options(cache=False)).executable(*inputs)


JOINED = "%c = concat(%x, %z) {axis=0} : f32[4, 3]\n"
FRESH = [
    (f"{JOINED}%y = slice(%c) {{starts=[0, 0], stops=[2, 3], steps=[1, 1]}} : f32[2, 3]", "%y"),
    (f"{JOINED}%y = slice(%c) {{starts=[3, 0], stops=[4, 3], steps=[1, 1]}} : f32[1, 3]", "%y"),
    (f"{JOINED}%v = slice(%c) {{starts=[0, 0], stops=[2, 3], steps=[1, 1]}} : f32[2, 3]\n"
     "%y = reshape(%v) : f32[3, 2]", "%y"),
    ("%c = concat(%x) {axis=0} : f32[2, 3]\n%y = reshape(%c) : f32[6]", "%y"),
    ("%p = pad(%x, f32(0.0)) {low=[1, 0], high=[0, 0]} : f32[3, 3]\n"
     "%y = slice(%p) {starts=[1, 0], stops=[3, 3], steps=[1, 1]} : f32[2, 3]", "%y"),
    ("%s = select(bool(true), %x, %z) : f32[2, 3]\n%y = permute(%s) {permutation=[1, 0]} : f32[3, 2]",
     "%y strides=[1, 3]"),
    ("%p = pow(%x, f32(1.0)) : f32[2, 3]\n%y = reshape(%p) : f32[6]", "%y"),
    ("%y = copy(%x) : f32[2, 3]", "%y"),
    ("%y = permute(%x) {permutation=[1, 0]} : f32[3, 2]", "%y"),
    ("%y = copy(%x) : f32[2, 3]\n%w = copy(%x) : f32[2, 3]", "%y, %w, %x"),
    ("%a = exp(%x) : f32[2, 3]\n%b = exp(%x) : f32[2, 3]\n%y = reshape(%b) : f32[6]", "%a, %y"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "returns"), FRESH)
def test_what_is_made_anew_shares_no_memory(body: str, returns: str) -> None:
    inputs, outputs = run(body, returns)
    mine = [y for y in outputs if y is not inputs[0]]
    assert not any(np.shares_memory(x, y) for x in inputs for y in mine)
    assert not any(np.shares_memory(a, b) for k, a in enumerate(mine) for b in mine[:k])


SHARED = [
    ("%y = reshape(%x) : f32[6]", "%x, %y"),
    ("%e = exp(%x) : f32[2, 3]\n%y = slice(%e) {starts=[1, 0], stops=[2, 3], steps=[1, 1]} : f32[1, 3]", "%e, %y"),
    ("%e = copy(%x) : f32[2, 3]\n%y = permute(%e) {permutation=[1, 0]} : f32[3, 2]", "%e, %y strides=[1, 3]"),
    ("%e = exp(%x) : f32[2, 3]\n%y = permute(%e) {permutation=[1, 0]} : f32[3, 2]", "%e strides=[1, 2], %y"),
    ("%e = exp(%x) : f32[2, 3]\n%f = exp(%x) : f32[2, 3]\n%y = reshape(%f) : f32[6]", "%f, %y, %e"),
    ("%e = add(%x, %z) : f32[2, 3]\n%y = reshape(%e) : f32[6]", "%e mutates=0, %y"),
    (
        "%a = exp(%x) : f32[2, 3]\n%f = reshape(%a) : f32[6]\n"
        "%e = reshape(%f) : f32[2, 3]\n%y = reshape(%e) : f32[3, 2]",
        "%e mutates=0, %y",
    ),
    ("%y = reshape(%z) : f32[6]\n%e = copy(%z) : f32[2, 3]\n%v = reshape(%e) : f32[3, 2]", "%e mutates=0, %v, %y"),
]


@pytest.mark.parametrize(("body", "returns"), SHARED)
def test_views_of_one_memory_share_it(body: str, returns: str) -> None:
    inputs, outputs = run(body, returns)
    whole, view = outputs[:2]
    assert np.shares_memory(whole, view)
    assert not any(np.shares_memory(whole, other) for other in outputs[2:])
    before = float(view.sum())
    whole += 1
    assert float(view.sum()) == pytest.approx(before + view.size)
    if "mutates" in returns:
        assert whole is inputs[0]
        assert not np.shares_memory(view, inputs[1])


def test_what_a_written_input_held_before_is_kept() -> None:
    text = """graph @g(%x: f32[2, 3]) {
      %e = add(%x, f32(1.0)) : f32[2, 3]
      %y = reshape(%x) : f32[6]
      return %e mutates=0, %y
    }"""
    graph = parse(text)
    (x,) = random_inputs(graph)
    before = x.copy()
    written, old = build(graph, "numpy", Options(cache=False)).executable(x)
    assert written is x
    np.testing.assert_array_equal(x, before + 1)
    np.testing.assert_array_equal(old, before.reshape(6))


def test_a_view_of_an_input_is_another_array_than_the_input() -> None:
    inputs, (same, view) = run("%y = reshape(%x) : f32[2, 3]", "%x, %y")
    assert same is inputs[0]
    assert view is not same
    assert np.shares_memory(view, same)


def test_the_text_says_what_is_shown() -> None:
    text = """
        graph @g(%x: f32[2, 3]) {
          %e = exp(%x) : f32[2, 3]
          %v = reshape(%e) : f32[6]
          %s = neg(%v) : f32[6]
          return %e, %v, %s, %x
        }
    """
    shown = hold_aliases(parse(dedent(text)))
    lines = [line.split("//")[0].strip() for line in str(shown).splitlines()]
    assert "%e_shown = alias(%e) {of=output, index=0} : f32[2, 3]" in lines
    assert "%v_shown = reshape(%e_shown) : f32[6]" in lines
    assert "%x_shown = alias(%x) {of=input, index=0, itself=true} : f32[2, 3]" in lines
    assert parse(str(shown)).outputs[1].name == "v_shown"
