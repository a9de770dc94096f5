"""Library calls that write one place of an array as updates, and back where memory is not written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from programs import random_inputs, run

from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.verify import verify
from fusec.passes.indexed_writes import with_writes_at
from fusec.passes.writes import open_writes
from fusec.runtime.library import run_extern

torch = pytest.importorskip("torch")

COPY = '{target="aten.index_copy.default", arguments="($0, 1, $1, $2), {}"}'


def graph(body: str, returns: str = "%u mutates=0") -> Graph:
    text = "graph @g(%x: f32[6, 8, 5], %y: f32[6, 1, 5], %z: f32[1, 5]) {\n%at = reshape(i64(3)) : i64[1]\n"
    made = parse(f"{text}{body}\nreturn {returns}\n}}")
    verify(made)
    return made


def names(made: Graph) -> list[str]:
    return [op.name for op in made.ops]


def call(attributes: ExternAttributes, arrays: Sequence[Any]) -> list[Any]:
    return [r.numpy() for r in run_extern(attributes, [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays])]


def same(one: Graph, other: Graph) -> None:
    verify(other, "writes")
    arrays = random_inputs(one)
    for a, b in zip(interpret(one, arrays, extern=call), interpret(other, arrays, extern=call), strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_of_an_input() -> None:
    made = graph(f"%u = extern(%x, %at, %y) {COPY} : f32[6, 8, 5]")
    placed = with_writes_at(made)
    assert names(placed).count("update") == 1
    assert "extern" not in names(placed)
    assert placed.outputs[0].name == "u"


BOX = """
    %s = slice(%x) {starts=[4, 0, 0], stops=[5, 8, 5], steps=[1, 1, 1]} : f32[1, 8, 5]
    %l = reshape(%s) : f32[8, 5]
    %e = extern(%l, %at, %z) {target="aten.index_copy.default", arguments="($0, 0, $1, $2), {}"} : f32[8, 5]
    %b = reshape(%e) : f32[1, 8, 5]
    %u = update(%x, %b) {starts=[4, 0, 0]} : f32[6, 8, 5]
"""


def test_a_box_of_an_input_and_what_is_seen_of_it_after() -> None:
    made = graph(f"{BOX}\n%r = exp(%e) : f32[8, 5]", "%u mutates=0, %r")
    placed = with_writes_at(made)
    assert "extern" not in names(placed)
    (update,) = (op for op in placed.ops if op.name == "update")
    assert str(update.attributes.starts) == "(4, 0, 0)"  # type: ignore[attr-defined]
    assert update.attributes.axes == (1,)  # type: ignore[attr-defined]
    same(made, placed)


@pytest.mark.parametrize(
    "change",
    [
        ("starts=[4, 0, 0]} : f32[6", "starts=[3, 0, 0]} : f32[6"),  # written back elsewhere
        ("extern(%l", "extern(%m"),
        ("$0, 0, $1", "$0, -2, $1"),  # the same axis
        ("%at, %z)", "%two, %zz)"),
    ],
    ids=["elsewhere", "of something else", "negative axis", "two places"],
)
def test_other_calls_stay(change: tuple[str, str]) -> None:
    more = "%m = exp(%l) : f32[8, 5]\n%two = iota() {axis=0} : i64[2]\n"
    more += "%zz = broadcast(%z) : f32[2, 5]\n" if "%zz" in change[1] else ""
    head, mark, rest = BOX.partition("    %e")
    made = graph((head + more + mark + rest).replace(*change))
    placed = with_writes_at(made)
    assert ("extern" in names(placed)) == ("-2" not in change[1])
    same(made, placed)


MANY = {
    "copied": ("[%i], [6, 3, 5]", "index_copy", "($0, 1, $1, $2)"),
    "one axis": ("[%i], [6, 3, 5]", "index_put", "($0, [None, $1], $2)"),
    "one axis, a number": ("[%i], [1]", "index_put", "($0, [None, None, $1], $2)"),
    "neighbours": ("[%i, %j], [6, 3]", "index_put", "($0, [None, $1, $2], $3)"),
    "neighbours in front": ("[%i, %j], [3, 5]", "index_put", "($0, [$1, $2], $3)"),
    "apart": ("[%i, %j], [3, 8]", "index_put", "($0, [$1, None, $2], $3)"),
    "three": ("[%i, %j, %i], [3]", "index_put", "($0, [$1, $2, $3], $4)"),
    "apart, in the middle": ("[%i, %j], [3, 2, 3]", "index_put", "($0, [None, $1, None, $2], $3)"),
    "one of one, one of three": ("[%o, %j], [3, 1]", "index_put", "($0, [$1, None, $2], $3)"),
}


def many(name: str) -> Graph:
    operands, target, arguments = MANY[name]
    x = "f32[2, 8, 3, 5]" if name.startswith("apart, in the middle") else "f32[6, 8, 5]"
    indices, _, shape = operands[1:].partition("], ")
    text = f"""graph @g(%x: {x}, %y: f32{shape}, %z: i64[3]) {{
        %i = iota() {{axis=0}} : i64[3]
        %two = mul(%i, i64(2)) : i64[3]
        %j = sub(%two, i64(4)) : i64[3]
        %o = slice(%i) {{starts=[1], stops=[2], steps=[1]}} : i64[1]
        %u = extern(%x, {indices}, %y) {{target="aten.{target}.default", arguments="{arguments}, {{}}"}} : {x}
        return %u mutates=0
    }}"""
    made = parse(text)
    verify(made)
    return made


@pytest.mark.parametrize("name", MANY)
def test_several_positions(name: str) -> None:
    made = many(name)
    assert with_writes_at(made) is made
    placed = with_writes_at(made, several=True)
    assert names(placed).count("update") == 1
    assert "extern" not in names(placed)
    same(made, placed)


@pytest.mark.parametrize("name", MANY)
def test_several_positions_by_a_kernel(name: str) -> None:
    """Which has its memory between guards, and writes what the call writes."""
    made = many(name)
    found = run(made, target="cuda:sm_90")
    assert not found.calls
    arrays = random_inputs(made)
    np.testing.assert_array_equal(found.outputs[0], interpret(made, arrays, extern=call)[0])


@pytest.mark.parametrize("name", MANY)
def test_several_positions_by_the_library_where_not_in_place(name: str) -> None:
    made = many(name)
    made = made.with_ops(made.ops, [*made.outputs])
    opened = open_writes(with_writes_at(made, several=True), but={"u"})
    assert names(opened).count("extern") == 1
    same(made, opened)


def test_a_box_of_a_view_with_fewer_axes_stays() -> None:
    """The call is on a part of one row, whose axes are not the array's."""
    made = graph("""
        %s = slice(%x) {starts=[4, 0, 0], stops=[5, 8, 5], steps=[1, 1, 1]} : f32[1, 8, 5]
        %l = reshape(%s) : f32[8, 5]
        %p = slice(%l) {starts=[2, 0], stops=[6, 5], steps=[1, 1]} : f32[4, 5]
        %e = extern(%p, %at, %z) {target="aten.index_copy.default", arguments="($0, 0, $1, $2), {}"} : f32[4, 5]
        %b = reshape(%e) : f32[1, 4, 5]
        %u = update(%x, %b) {starts=[4, 2, 0]} : f32[6, 8, 5]
    """)
    assert with_writes_at(made) is made
    same(made, open_writes(made))


def test_what_is_added_is_not_written() -> None:
    for added in ("True), {}", "), {'accumulate': True}"):
        text = f'target="aten.index_put.default", arguments="($0, [None, $1], $2{", " * added.startswith("T")}{added}"'
        made = graph(f"%u = extern(%x, %at, %y) {{{text}}} : f32[6, 8, 5]")
        assert with_writes_at(made) is made


@pytest.mark.parametrize("body", [f"%u = extern(%x, %at, %y) {COPY} : f32[6, 8, 5]", BOX], ids=["all", "box"])
def test_a_library_call_again_where_the_array_is_not_written_in_place(body: str) -> None:
    made = graph(f"{body}\n%r = exp(%x) : f32[6, 8, 5]", "%u mutates=0, %r")  # reads what was there
    opened = open_writes(made)
    assert names(opened).count("extern") == 1
    assert all(not op.attributes.axes for op in opened.ops if op.name == "update")  # type: ignore[attr-defined]
    same(made, opened)
