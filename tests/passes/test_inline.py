"""Views become index maps: the element at any index is the one that the reference reads there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fusec.errors import LoweringError
from fusec.ir.graph import Graph
from fusec.ir.index import Expr, symbol
from fusec.ir.interpret import interpret
from fusec.ir.nodes import Value
from fusec.ir.parse import parse
from fusec.passes.inline import Inliner, index_only
from fusec.tile.print import print_scalar
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr
from fusec.tile.views import Subscripts, pure, reshape_index, view_index


def graph_of(body: str, inputs: str = "%x: f32[4, 6]") -> Graph:
    return parse(f"graph @g({inputs}) {{\n{body}\nreturn %y\n}}")


def buffers(graph: Graph) -> dict[Value, Buffer]:
    made = {}
    for value in graph.inputs:
        shape = value.type.static_shape
        strides = tuple(int(np.prod(shape[a + 1 :])) for a in range(len(shape)))
        made[value] = Buffer(value.name, value.type.dtype, shape, strides)
    return made


def inliner(graph: Graph) -> Inliner:
    memory = buffers(graph)
    return Inliner(graph.producers(), {v: lambda index, b=b: Load(b, index) for v, b in memory.items()})  # type: ignore[misc]


def number(e: ScalarExpr, arrays: dict[str, np.ndarray]) -> float:
    """The value of an expression whose index symbols are gone."""
    match e:
        case Const(value, _):
            return float(value.real)
        case IndexValue(index, _):
            assert isinstance(index, int)
            return index
        case Load(buffer, index):
            place = tuple(int(i) if isinstance(i, int) else int(number(i, arrays)) for i in index)  # type: ignore[arg-type]
            assert all(0 <= i < n for i, n in zip(place, buffer.shape, strict=True)), (place, buffer)
            return float(arrays[buffer.name][place])
        case Apply("select", (c, a, b), _):
            condition, left, right = (number(n, arrays) for n in (c, a, b))
            return left if condition else right
        case Apply(op, args, _):
            a, *rest = (number(n, arrays) for n in args)
            b = rest[0] if rest else 0.0
            table = {"add": a + b, "mul": a * b, "sub": a - b, "neg": -a, "lt": a < b, "ge": a >= b, "cast": a}
            table |= {"minimum": min(a, b), "maximum": max(a, b), "logical_and": bool(a) and bool(b)}
            if op in ("floordiv", "remainder"):
                return float(a // b if op == "floordiv" else a % b)
            return float(table[op])


CASES = {
    "permute": "%y = permute(%x) {permutation=[1, 0]} : f32[6, 4]",
    "reshape": "%y = reshape(%x) : f32[3, 8]",
    "reshape with ones": "%y = reshape(%x) : f32[1, 4, 1, 6, 1]",
    "reshape in runs": "%y = reshape(%x) : f32[2, 2, 3, 2]",
    "broadcast": "%r = reshape(%x) : f32[4, 1, 6]\n%y = broadcast(%r) : f32[2, 4, 3, 6]",
    "slice": "%y = slice(%x) {starts=[3, 1], stops=[-1, 6], steps=[-2, 2]} : f32[2, 3]",
    "strided": "%y = strided(%x) {strides=[5, 0, 2], offset=3} : f32[3, 2, 4]",
    "windows": "%y = windows(%x) {axis=1, size=3, step=2} : f32[4, 2, 3]",
    "windows of outer axis": "%y = windows(%x) {axis=0, size=2} : f32[3, 6, 2]",
    "concat": "%n = neg(%x) : f32[4, 6]\n%y = concat(%x, %n, %x) {axis=1} : f32[4, 18]",
    "pad": "%y = pad(%x, f32(-1.0)) {low=[1, 0], high=[0, 2]} : f32[5, 8]",
    "pad nothing": "%y = pad(%x, f32(-1.0)) {low=[0, 0], high=[0, 0]} : f32[4, 6]",
    "chain": """%p = permute(%x) {permutation=[1, 0]} : f32[6, 4]
        %r = reshape(%p) : f32[3, 8]
        %s = slice(%r) {starts=[0, 7], stops=[3, -1], steps=[2, -1]} : f32[2, 8]
        %w = windows(%s) {axis=1, size=4} : f32[2, 5, 4]
        %y = pad(%w, f32(9.0)) {low=[0, 1, 0], high=[1, 0, 0]} : f32[3, 6, 4]""",
    "broadcast operands": """%r = slice(%x) {starts=[2, 0], stops=[3, 6], steps=[1, 1]} : f32[1, 6]
        %y = add(%x, %r) : f32[4, 6]""",
    "iota": "%i = iota() {axis=1} : f32[4, 6]\n%y = add(%x, %i) : f32[4, 6]",
}


@pytest.mark.parametrize("name", CASES)
def test_every_element(name: str) -> None:
    graph = graph_of(CASES[name])
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    (wanted,) = interpret(graph, [data])
    made = inliner(graph)
    for index in product(*(range(n) for n in wanted.shape)):
        assert number(made.at(graph.outputs[0], index), {"x": data}) == wanted[index], index


GATHERS = {
    "rows": "%y = gather(%x, %i) {axis=0} : f32[2, 3, 6]",
    "columns": "%y = gather(%x, %i) {axis=1} : f32[4, 2, 3]",
    "of a reshape": "%r = reshape(%x) : f32[8, 3]\n%y = gather(%r, %i) {axis=0} : f32[2, 3, 3]",
    "of a flip": """%r = slice(%x) {starts=[3, 0], stops=[-1, 6], steps=[-1, 1]} : f32[4, 6]
        %y = gather(%r, %i) {axis=0} : f32[2, 3, 6]""",
    "of a concat": "%r = concat(%x, %x) {axis=0} : f32[8, 6]\n%y = gather(%r, %i) {axis=0} : f32[2, 3, 6]",
    "of a pad": """%r = pad(%x, f32(5.0)) {low=[2, 1], high=[0, 0]} : f32[6, 7]
        %y = gather(%r, %i) {axis=0} : f32[2, 3, 7]""",
    "of windows": "%r = windows(%x) {axis=1, size=3} : f32[4, 4, 3]\n%y = gather(%r, %i) {axis=1} : f32[4, 2, 3, 3]",
    "of a gather": """%r = gather(%x, %i) {axis=1} : f32[4, 2, 3]
        %s = reshape(%r) : f32[8, 3]
        %y = gather(%s, %i) {axis=0} : f32[2, 3, 3]""",
    "of a permute": """%p = permute(%x) {permutation=[1, 0]} : f32[6, 4]
        %r = reshape(%p) : f32[24]
        %y = gather(%r, %i) {axis=0} : f32[2, 3]""",
}


@pytest.mark.parametrize("name", GATHERS)
def test_loaded_subscripts_go_through_views(name: str) -> None:
    graph = graph_of(GATHERS[name], "%x: f32[4, 6], %i: i64[2, 3]")
    rng = np.random.default_rng(0)
    data, index = rng.standard_normal((4, 6)).astype(np.float32), rng.integers(0, 4, (2, 3))
    (wanted,) = interpret(graph, [data, index])
    made = inliner(graph)
    for at in product(*(range(n) for n in wanted.shape)):
        assert number(made.at(graph.outputs[0], at), {"x": data, "i": index}) == wanted[at], at


def test_views_leave_no_arithmetic_where_none_is_needed() -> None:
    graph = graph_of(
        """%r = reshape(%x) : f32[2, 2, 6]
        %p = permute(%r) {permutation=[1, 0, 2]} : f32[2, 2, 6]
        %q = permute(%p) {permutation=[1, 0, 2]} : f32[2, 2, 6]
        %y = reshape(%q) : f32[4, 6]"""
    )
    i, j = symbol("i", 0, 3), symbol("j", 0, 5)
    assert print_scalar(inliner(graph).at(graph.outputs[0], (i, j))) == "x[i, j]"


def test_a_shared_value_is_expanded_once() -> None:
    body = "\n".join(f"%x{k + 1} = mul(%x{k}, %x{k}) : f32[4]" for k in range(60))
    graph = parse(f"graph @g(%x0: f32[4]) {{\n{body}\nreturn %x60\n}}")
    element = inliner(graph).at(graph.outputs[0], (symbol("i", 0, 3),))
    assert isinstance(element, Apply)
    assert element.args[0] is element.args[1]


def test_values_that_are_not_in_memory_are_an_error() -> None:
    graph = graph_of("%y = exp(%x) : f32[4, 6]")
    with pytest.raises(LoweringError, match="%x is not in memory"):
        Inliner(graph.producers(), {}).at(graph.outputs[0], (0, 0))
    graph = graph_of("%y = reduce_sum(%x) {axes=[1]} : f32[4]")
    with pytest.raises(LoweringError, match="reduce_sum can't be computed one element at a time"):
        inliner(graph).at(graph.outputs[0], (0,))


def test_a_loaded_subscript_is_no_index_expression() -> None:
    loaded: Subscripts = (
        Load(Buffer("i", graph_of("%y = exp(%x) : f32[4, 6]").inputs[0].type.dtype, (2,), (1,)), (0,)),
    )
    with pytest.raises(LoweringError, match="a loaded subscript"):
        pure(loaded)


@pytest.mark.parametrize(
    ("target", "source"),
    [((6, 4), (4, 6)), ((24,), (2, 3, 4)), ((2, 1, 12), (4, 6)), ((4, 6), (4, 1, 6)), ((3, 4, 2), (12, 2))],
)
def test_reshape_keeps_row_major_order(target: tuple[int, ...], source: tuple[int, ...]) -> None:
    flat = np.arange(24)
    for index in product(*map(range, target)):
        found = reshape_index(index, target, source)
        assert flat.reshape(source)[found] == flat.reshape(target)[index]


def test_equal_runs_of_axes_pass_through_a_reshape() -> None:
    a, b, c = symbol("a", 0, 4), symbol("b", 0, 5), symbol("c", 0, 3)
    found = reshape_index((a, b, c), (5, 6, 4), (5, 2, 3, 4))
    assert found[0] is a
    assert found[3] is c
    assert all(isinstance(i, Expr) and "b" in str(i) for i in found[1:3])


def test_view_index_of_what_is_no_view() -> None:
    graph = graph_of("%y = exp(%x) : f32[4, 6]")
    with pytest.raises(LoweringError, match="exp is not a view"):
        view_index(graph.ops[0], (0, 0))


def test_index_only_values() -> None:
    graph = parse("""graph @g(%x: i64[4]) {
        %i = iota() {axis=0} : i64[4]
        %d = add(%i, i64(3)) : i64[4]
        %c = concat(%d, %i) {axis=0} : i64[8]
        %s = slice(%c) {starts=[2], stops=[6], steps=[1]} : i64[4]
        %o = copy(%s) : i64[4]
        %m = add(%s, %x) : i64[4]
        return %o, %m
    }""")
    assert {v.name for v in index_only(graph)} >= {"i", "d", "c", "s"}
    assert not {"o", "m", "x"} & {v.name for v in index_only(graph)}


KNOWN = {
    "an offset": "%a = add(%i, i32(1)) : i32[3]\n%y = gather(%x, %a) {axis=0} : f32[3, 6]",
    "halves": "%a = floordiv(%i, i32(2)) : i32[3]\n%y = gather(%x, %a) {axis=0} : f32[3, 6]",
    "clamped": """%a = mul(%i, i32(2)) : i32[3]
        %b = sub(%a, i32(1)) : i32[3]
        %c = maximum(%b, i32(0)) : i32[3]
        %d = minimum(%c, i32(3)) : i32[3]
        %e = cast(%d) : i64[3]
        %y = gather(%x, %e) {axis=0} : f32[3, 6]""",
    "remainders": "%a = remainder(%i, i32(2)) : i32[3]\n%y = gather(%x, %a) {axis=0} : f32[3, 6]",
}


@pytest.mark.parametrize("name", KNOWN)
def test_places_that_arithmetic_tells_are_subscripts(name: str) -> None:
    graph = graph_of("%i = iota() {axis=0} : i32[3]\n" + KNOWN[name])
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    (wanted,) = interpret(graph, [data])
    made = inliner(graph)
    for at in product(*(range(n) for n in wanted.shape)):
        assert number(made.at(graph.outputs[0], at), {"x": data}) == wanted[at], at
    element = made.at(graph.outputs[0], (symbol("i", 0, 2), symbol("j", 0, 5)))
    assert isinstance(element, Load)
    assert all(isinstance(i, int | Expr) for i in element.index), print_scalar(element)


UNKNOWN = {
    "beyond 32 bits": "%a = mul(%i, i32(2000000000)) : i32[3]\n%b = remainder(%a, i32(4)) : i32[3]",
    "8 bits, which wrap": "%c = cast(%i) : u8[3]\n%a = mul(%c, u8(200)) : u8[3]\n%b = remainder(%a, u8(4)) : u8[3]",
    "outside": "%b = add(%i, i32(2)) : i32[3]",
    "data": "%b = add(%i, %n) : i32[3]",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_places_that_only_the_arithmetic_itself_tells(name: str) -> None:
    body = f"%i = iota() {{axis=0}} : i32[3]\n{UNKNOWN[name]}\n%y = gather(%x, %b) {{axis=0}} : f32[3, 6]"
    graph = graph_of(body, "%x: f32[4, 6], %n: i32[3]")
    element = inliner(graph).at(graph.outputs[0], (symbol("i", 0, 2), symbol("j", 0, 5)))
    assert isinstance(element, Load)
    assert not all(isinstance(i, int | Expr) for i in element.index), print_scalar(element)


def test_comparisons_of_places_that_are_always_so_are_gone() -> None:
    graph = graph_of(
        """%i = iota() {axis=1} : i32[4, 6]
        %c = ge(%i, i32(2)) : bool[4, 6]
        %n = neg(%x) : f32[4, 6]
        %y = select(%c, %x, %n) : f32[4, 6]"""
    )
    made, k = inliner(graph), symbol("k", 0, 1)
    assert print_scalar(made.at(graph.outputs[0], (0, k + 2))) == "x[0, k + 2]"
    assert print_scalar(made.at(graph.outputs[0], (0, k))) == "neg(x[0, k])"
    assert "select" in print_scalar(made.at(graph.outputs[0], (0, k + 1)))
