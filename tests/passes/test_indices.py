"""Indices out of range raise IndexError; a check is made only where nothing proves them in range."""

from __future__ import annotations

import re

import numpy as np
import pytest
from programs import Array, check, run

from fusec.ir.parse import parse
from fusec.passes.indices import check_indices

GATHER = "%y = gather(%x, {}) {{axis=0}} : f32[3, 4]"


def graph(body: str, index: str = "%w", inputs: str = "%i: i64[3]") -> str:
    return f"graph @g(%x: f32[5, 4], {inputs}) {{\n{body}\n{GATHER.format(index)}\nreturn %y\n}}"


def wrapped(value: str, extent: int, name: str, shape: str = "[3]") -> str:
    """``value + extent where value < 0 else value``, as the frontends write an index that may be negative."""
    return f"""%{name}_below = lt(%{value}, i64(0)) : bool{shape}
        %{name}_moved = add(%{value}, i64({extent})) : i64{shape}
        %{name} = select(%{name}_below, %{name}_moved, %{value}) : i64{shape}"""


def checks(text: str) -> list[str]:
    """What is checked: the value and the bounds."""
    found = []
    for op in check_indices(parse(text)).ops:
        if op.name == "extern":
            bounds = re.search(r"\$0, (-?\d+), (-?\d+)", op.attributes.arguments)  # type: ignore[attr-defined]
            assert bounds is not None
            found.append(f"{op.operands[0].name} in [{bounds[1]}, {bounds[2]}]")
    return found


def indices(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)


def test_an_index_from_outside() -> None:
    text = graph("", "%i")
    assert checks(text) == ["i in [0, 4]"]
    check(text, [TABLE, indices(0, 4, 2)])
    for wrong in (5, -1, 2**40):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for an axis of size 5"):
            run(text, [TABLE, indices(0, wrong, 2)])


def test_an_index_that_may_be_negative() -> None:
    text = graph(wrapped("i", 5, "w"))
    assert checks(text) == ["i in [-5, 4]"]
    check(text, [TABLE, indices(-5, 4, -1)])
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            run(text, [TABLE, indices(0, wrong, 2)])


def test_indices_of_two_axes_joined_are_checked_for_each() -> None:
    text = f"""graph @g(%x: f32[5, 4], %i: i64[3], %j: i64[3]) {{
        {wrapped("i", 5, "a")}
        {wrapped("j", 4, "b")}
        %m = mul(%a, i64(4)) : i64[3]
        %f = add(%m, %b) : i64[3]
        %r = reshape(%x) : f32[20]
        %y = gather(%r, %f) {{axis=0}} : f32[3]
        return %y
    }}"""
    assert checks(text) == ["i in [-5, 4]", "j in [-4, 3]"]
    check(text, [TABLE, indices(0, -5, 4), indices(3, -4, 0)])
    with pytest.raises(IndexError, match="index 4 is out of bounds for an axis of size 4"):
        run(text, [TABLE, indices(0, 0, 0), indices(0, 4, 0)])


def test_a_flat_index_of_the_user_s_own_is_checked_whole() -> None:
    text = """graph @g(%x: f32[20], %i: i64[3], %j: i64[3]) {
        %m = mul(%i, i64(4)) : i64[3]
        %f = add(%m, %j) : i64[3]
        %y = gather(%x, %f) {axis=0} : f32[3]
        return %y
    }"""
    assert checks(text) == ["f in [0, 19]"]
    check(text, [TABLE.reshape(20), indices(0, 1, 2), indices(7, 9, 11)])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%w = remainder(%i, i64(5)) : i64[3]", []),
        ("%a = maximum(%i, i64(0)) : i64[3]\n%w = minimum(%a, i64(4)) : i64[3]", []),
        ("%w = minimum(%i, i64(4)) : i64[3]", ["w in [0, 4]"]),
        ("%w = iota() {axis=0} : i64[3]", []),
        ("%o = iota() {axis=0} : i64[3]\n%w = add(%o, i64(2)) : i64[3]", []),
        ("%o = iota() {axis=0} : i64[3]\n%w = add(%o, i64(3)) : i64[3]", ["w in [0, 4]"]),
        ("%p = gt(%i, i64(0)) : bool[3]\n%w = cast(%p) : i64[3]", []),
        ("%n = cast(%i) : i8[3]\n%w = cast(%n) : i64[3]", ["n in [0, 4]"]),
        ("%w = cast(%i) : i32[3]", ["w in [0, 4]"]),
        ("%r = reshape(%i) : i64[3, 1]\n%w = reshape(%r) : i64[3]", ["i in [0, 4]"]),
        ("%w = slice(%i) {starts=[2], stops=[-1], steps=[-1]} : i64[3]", ["w in [0, 4]"]),
        ("%p = gt(%i, i64(0)) : bool[3]\n%w = select(%p, i64(3), i64(1)) : i64[3]", []),
        ("%h = remainder(%i, i64(3)) : i64[3]\n%w = concat(%h) {axis=0} : i64[3]", []),
        ("%h = remainder(%i, i64(3)) : i64[3]\n%d = mul(%h, i64(2)) : i64[3]\n%w = sub(i64(4), %d) : i64[3]", []),
        ("%h = remainder(%i, i64(9)) : i64[3]\n%w = floordiv(%h, i64(2)) : i64[3]", []),
        (
            "%o = iota() {axis=0} : i64[3]\n%f = cast(%o) : f32[3]\n"
            "%m = mul(%f, f32(2.2)) : f32[3]\n%w = cast(%m) : i64[3]",
            [],
        ),
        (
            "%f = iota() {axis=0} : f32[3]\n%m = add(%f, f32(0.5)) : f32[3]\n%b = cast(%m) : bool[3]\n"
            "%n = cast(%b) : i64[3]\n%w = mul(%n, i64(4)) : i64[3]",
            [],
        ),
        (
            "%f = iota() {axis=0} : f32[3]\n%m = add(%f, f32(0.5)) : f32[3]\n%b = cast(%m) : bool[3]\n"
            "%n = cast(%b) : i64[3]\n%w = mul(%n, i64(5)) : i64[3]",
            ["w in [0, 4]"],
        ),
        (
            "%f = iota() {axis=0} : f32[3]\n%m = mul(%f, f32(2.5)) : f32[3]\n%w = cast(%m) : i64[3]",
            ["w in [0, 4]"],
        ),
        ("%f = cast(%i) : f32[3]\n%m = minimum(%f, f32(4.0)) : f32[3]\n%w = cast(%m) : i64[3]", ["w in [0, 4]"]),
        ("%b = bitwise_and(%i, i64(3)) : i64[3]\n%w = copy(%b) : i64[3]", []),
        ("%b = bitwise_and(%i, i64(7)) : i64[3]\n%w = copy(%b) : i64[3]", ["b in [0, 4]"]),
        ("%b = bitwise_and(%i, i64(-4)) : i64[3]\n%w = copy(%b) : i64[3]", ["b in [0, 4]"]),
        ("%n = cast(%i) : u8[3]\n%b = shift_right(%n, u8(6)) : u8[3]\n%w = cast(%b) : i64[3]", []),
        ("%b = shift_right(%i, i64(62)) : i64[3]\n%w = copy(%b) : i64[3]", ["b in [0, 4]"]),
        ("%n = bitwise_and(%i, i64(1)) : i64[3]\n%w = bitwise_or(%n, i64(2)) : i64[3]", []),
        ("%a = argmax(%x) {axis=1} : i64[5]\n%w = slice(%a) {starts=[0], stops=[3], steps=[1]} : i64[3]", []),
    ],
)
def test_what_is_proved_is_not_checked(body: str, expected: list[str]) -> None:
    assert checks(graph(body)) == expected
    reaches_out = "i64(3)) : i64[3]" in body or "f32(2.5)" in body or "i64(5)) : i64[3]" in body
    check(graph(body), [TABLE, indices(1, 0, 2)]) if not reaches_out else None


@pytest.mark.parametrize("scale", [4 / 2, 4.9999990 / 2, 5.0 / 2])
def test_a_float_that_comes_near_an_axis_s_end_is_checked(scale: float) -> None:
    """A kernel may round it to the other side of a whole number."""
    body = f"%f = iota() {{axis=0}} : f32[3]\n%m = mul(%f, f32({scale})) : f32[3]\n%w = cast(%m) : i64[3]"
    assert checks(graph(body)) == ([] if scale == 2.0 else ["w in [0, 4]"])


@pytest.mark.parametrize("number", ["inf", "nan", "1e30"])
def test_floats_without_bounds_are_checked(number: str) -> None:
    body = f"%f = iota() {{axis=0}} : f32[3]\n%m = mul(%f, f32({number})) : f32[3]\n%w = cast(%m) : i64[3]"
    assert checks(graph(body)) == ["w in [0, 4]"]


def test_u8_indices_reach_no_further_than_255() -> None:
    assert checks("graph @g(%x: f32[256], %i: u8[3]) {\n%y = gather(%x, %i) {axis=0} : f32[3]\nreturn %y\n}") == []


def test_an_index_with_two_readers_is_checked_for_both_tables() -> None:
    text = """graph @g(%x: f32[5], %z: f32[3], %i: i64[2]) {
        %a = gather(%x, %i) {axis=0} : f32[2]
        %b = gather(%z, %i) {axis=0} : f32[2]
        %c = gather(%z, %i) {axis=0} : f32[2]
        return %a, %b, %c, %i
    }"""
    assert checks(text) == ["i in [0, 4]", "i_checked in [0, 2]"]
    with pytest.raises(IndexError, match="index 3 is out of bounds for an axis of size 3"):
        run(text, [np.ones(5, np.float32), np.ones(3, np.float32), indices(0, 3)])


def test_the_check_copies_nothing() -> None:
    made = check(graph("", "%i"), [TABLE, indices(0, 4, 2)])
    assert [s.kind for s in made.lowered.program.slots] == ["input", "input", "output"]
    assert made.calls == []


def test_gather_elements() -> None:
    text = """graph @g(%x: f32[5, 4], %i: i64[5, 2]) {
        %y = gather_elements(%x, %i) {axis=1} : f32[5, 2]
        return %y
    }"""
    with pytest.raises(IndexError, match="index 4 is out of bounds for an axis of size 4"):
        run(text, [TABLE, np.full((5, 2), 4)])


def test_torch_tensors_are_checked_too() -> None:
    torch = pytest.importorskip("torch")
    from fusec.runtime.library import run_extern

    (op,) = [o for o in check_indices(parse(graph("", "%i"))).ops if o.name == "extern"]
    index = torch.tensor([0, 4, 2])
    assert run_extern(op.attributes, [index])[0] is index  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="index 5"):
        run_extern(op.attributes, [torch.tensor([0, 5])])  # type: ignore[arg-type]
