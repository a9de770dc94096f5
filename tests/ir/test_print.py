"""The text that the printer writes, and that it is read back as the same text."""

from __future__ import annotations

import pytest
from op_samples import CASES, SAMPLES, t

from fusec.ir.attributes import DotAttributes, ExternAttributes, IotaAttributes, ReduceAttributes, ShapeAttributes
from fusec.ir.builder import Builder
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import symbol
from fusec.ir.nodes import Port
from fusec.ir.ops import OPS
from fusec.ir.parse import parse
from fusec.ir.print import print_op
from fusec.ir.types import TensorType, bool_, f32, i64
from fusec.ir.verify import verify
from fusec.location import Location


def _mlp() -> Graph:
    b = Builder("mlp")
    x = b.input(t(f32, 512, 768), "x")
    w = b.input(t(f32, 3072, 768), "w", Port(role="parameter", path="fc.weight"))
    line = Location("/home/ada/model.py", 12)
    h = b.emit("dot", x, w, attributes=DotAttributes((1,), (1,)), as_name="h", location=line)
    half = b.constant(0.5, f32)
    y = b.emit("mul", h, half, as_name="y")
    return b.finish([y])


def test_the_text_of_a_graph() -> None:
    assert str(_mlp()) == (
        'graph @mlp(%x: f32[512, 768], %w: f32[3072, 768] parameter "fc.weight") {\n'
        "  %h = dot(%x, %w) {contract=[1]x[1]} : f32[512, 3072]        // model.py:12\n"
        "  %y = mul(%h, f32(0.5)) : f32[512, 3072]\n"
        "  return %y\n"
        "}"
    )


def test_every_op_has_a_sample() -> None:
    assert set(SAMPLES) == set(OPS), "add the new op to tests/op_samples.py"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_round_trip_of_every_op(name: str, number: int) -> None:
    graph = SAMPLES[name][number].graph(name)
    text = str(graph)
    back = parse(text)
    assert str(back) == text
    verify(back)
    if name not in ("constant", "fused"):
        assert [op.attributes for op in back.ops] == [op.attributes for op in graph.ops]
    assert [v.type for v in back.outputs] == [v.type for v in graph.outputs]


def test_text_is_the_same_each_time() -> None:
    assert str(_mlp()) == str(_mlp())


def test_ports_are_written_where_they_are_not_the_usual() -> None:
    b = Builder("f")
    x = b.input(t(f32, 2, 3), "x", Port((1, 2), 4))
    s = b.input(t(f32, 2, 3), "s", Port(role="state", path='cache["k"]'))
    y = b.emit("add", x, s, as_name="y")
    text = str(b.finish([y, y], [Port((1, 2)), Port(mutates=1)]))
    assert text.splitlines()[0] == (
        'graph @f(%x: f32[2, 3] strides=[1, 2] offset=4, %s: f32[2, 3] state "cache[\\"k\\"]") {'
    )
    assert text.splitlines()[-2] == "  return %y strides=[1, 2], %y mutates=1"
    back = parse(text)
    assert str(back) == text
    assert back.input_ports == (Port((1, 2), 4), Port(role="state", path='cache["k"]'))
    assert back.output_ports == (Port((1, 2)), Port(mutates=1))


def test_an_argument_with_a_path_keeps_it() -> None:
    b = Builder("f")
    x = b.input(t(f32), "x", Port(path="batch[0]"))
    text = str(b.finish([x]))
    assert 'argument "batch[0]"' in text
    assert parse(text).input_ports == (Port(path="batch[0]"),)


def test_strides_of_a_0d_value_are_an_empty_list() -> None:
    b = Builder("f")
    text = str(b.finish([b.input(t(f32), "x", Port(()))]))
    assert parse(text).input_ports == (Port(()),)


def test_ranges_of_symbols_that_are_not_the_usual() -> None:
    b = Builder("f")
    shape = (symbol("A"), symbol("B", 1, 64), symbol("C", None, 9), symbol("D", -4, None), symbol("E", None))
    x = b.input(TensorType(f32, shape), "x")
    text = str(b.finish([x]))
    assert text.startswith("graph @f<B in [1, 64], C in [-inf, 9], D in [-4, inf], E in [-inf, inf]>(")
    back = parse(text)
    assert back.inputs[0].type.shape == shape
    assert str(back) == text


def test_symbols_only_in_attributes_have_their_ranges_too() -> None:
    b = Builder("f")
    n = symbol("n", 2, 8)
    y = b.emit("iota", attributes=IotaAttributes((n,), 0, i64), as_name="y")
    text = str(b.finish([y]))
    assert "<n in [2, 8]>" in text
    assert str(parse(text)) == text


def test_index_expressions_in_a_shape() -> None:
    b = Builder("f")
    n = symbol("n", 2, 8)
    x = b.input(TensorType(f32, (n // 2, n % 3 + 1, n * symbol("m"))), "x")  # type: ignore[operator]
    text = str(b.finish([x]))
    assert "f32[(n // 2), ((n % 3) + 1), m*n]" in text
    assert parse(text).inputs[0].type == x.type


def test_devices() -> None:
    b = Builder("f")
    x = b.input(TensorType(f32, (2,), "cuda:0"), "x")
    y = b.emit("add", x, b.constant(1.0, f32, "cuda:0"), as_name="y")
    text = str(b.finish([y]))
    assert "%y = add(%x, f32(1.0)@cuda:0) : f32[2]@cuda:0" in text
    assert str(parse(text)) == text


def test_unusual_names_are_quoted() -> None:
    b = Builder("<lambda>")
    x = b.input(t(f32), 'my "x"\n')
    y = b.emit("neg", x, as_name="fc.0")
    text = str(b.finish([y]))
    assert text.splitlines()[0] == 'graph @"<lambda>"(%"my \\"x\\"\\n": f32[]) {'
    assert "%fc.0 = neg" in text
    assert str(parse(text)) == text


def test_constants_stand_where_they_are_used() -> None:
    b = Builder("f")
    flag = b.constant(True, bool_)
    x = b.input(t(f32, 2), "c")
    y = b.emit("select", flag, x, b.constant(float("-inf"), f32), as_name="y")
    text = str(b.finish([y, b.constant(-1, i64)]))
    assert "select(bool(true), %c, f32(-inf)) : f32[2]" in text
    assert "return %y, i64(-1)" in text
    back = parse(text)
    verify(back)
    assert str(back) == text


def test_a_constant_of_the_text_never_takes_a_name_from_it() -> None:
    text = "graph @f(%x: f32[]) {\n  %y = add(%x, f32(1.0)) : f32[]\n  %const = neg(%y) : f32[]\n  return %const\n}"
    back = parse(text)
    verify(back)
    assert str(back) == text


def test_a_fused_op_prints_its_body() -> None:
    inner = Builder("rows")
    a = inner.input(t(f32, 4, 8), "a")
    e = inner.emit("exp", a, as_name="e", location=Location("m.py", 2))
    s = inner.emit("reduce_sum", e, attributes=ReduceAttributes((1,)), as_name="s")
    b = Builder("f")
    x = b.input(t(f32, 4, 8), "x")
    body = FusedAttributes("row", inner.finish([e, s]))
    y = b.op("fused", x, attributes=body, names=("e", "s"), location=Location("m.py", 3))
    text = str(b.finish(y))
    assert text == (
        "graph @f(%x: f32[4, 8]) {\n"
        "  %e, %s = fused(%x) row @rows(%a: f32[4, 8]) {\n"
        "    %e = exp(%a) : f32[4, 8]        // m.py:2\n"
        "    %s = reduce_sum(%e) {axes=[1]} : f32[4]\n"
        "    return %e, %s\n"
        "  } : f32[4, 8], f32[4]        // m.py:3\n"
        "  return %e, %s\n"
        "}"
    )
    back = parse(text)
    assert str(back) == text
    assert back.ops[0].location == Location("m.py", 3)


def test_many_inputs_stand_one_a_line() -> None:
    b = Builder("f")
    values = [b.input(t(f32, 1024, 1024), f"weight_{n}") for n in range(8)]
    text = str(b.finish(values[:1]))
    assert text.splitlines()[:2] == ["graph @f(", "    %weight_0: f32[1024, 1024],"]
    assert text.splitlines()[8:10] == ["    %weight_7: f32[1024, 1024]", ") {"]
    assert str(parse(text)) == text


def test_a_graph_of_nothing() -> None:
    text = str(Builder("f").finish([]))
    assert text == "graph @f() {\n  return\n}"
    assert str(parse(text)) == text


def test_an_op_without_results() -> None:
    b = Builder("f")
    b.op("extern", attributes=ExternAttributes("numpy.seterr", "((), {})", ()))
    text = str(b.finish([]))
    assert text.splitlines()[1] == '  extern() {target="numpy.seterr", arguments="((), {})"}'
    assert str(parse(text)) == text


def test_print_op() -> None:
    b = Builder("f")
    x = b.input(t(f32, 6), "x")
    b.emit("reshape", x, attributes=ShapeAttributes((2, 3)), as_name="y")
    op = b.last_op
    assert op is not None
    assert print_op(op) == "%y = reshape(%x) : f32[2, 3]"


def test_a_long_head_without_inputs_is_one_line() -> None:
    """As of a kernel that makes many constants: it reads nothing, and all its results stand before it."""
    name = "made_of_nothing_" * 10
    text = f"graph @{name}() {{\n  %x = iota() {{axis=0}} : i64[3]\n  return %x\n}}"
    assert str(parse(text)).strip() == text
