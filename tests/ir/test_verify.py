"""Graphs broken by hand, and what the verifier says about them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from op_samples import CASES, SAMPLES, t

from fusec.errors import VerifyError
from fusec.ir.attributes import NO_ATTRIBUTES, ConstantAttributes, GeluAttributes, ReduceAttributes, StridedAttributes
from fusec.ir.builder import Builder
from fusec.ir.graph import AttentionGroup, FusedAttributes, Graph
from fusec.ir.index import symbol
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.types import TensorType, f32, i64
from fusec.ir.verify import verify
from fusec.location import Location


def _graph() -> Graph:
    b = Builder("f")
    x = b.input(t(f32, 2, 3), "x")
    h = b.emit("exp", x, as_name="h", location=Location("/home/ada/model.py", 4))
    y = b.emit("add", h, x, as_name="y")
    return b.finish([y])


def _fails(graph: Graph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(graph, "fuse")


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_sample_passes(name: str, number: int) -> None:
    verify(SAMPLES[name][number].graph(name))


def test_the_message_names_pass_graph_location_and_op() -> None:
    graph = _graph()
    with pytest.raises(VerifyError) as caught:
        verify(graph.with_ops(reversed(graph.ops)), "fuse")
    assert str(caught.value) == (
        "after pass 'fuse': @f: %h is used before it is defined\n  %y = add(%h, %x) : f32[2, 3]"
    )
    exp = replace(graph.ops[0], operands=(Value(t(f32, 2, 3), "other"),))
    with pytest.raises(VerifyError) as caught:
        verify(graph.with_ops([exp, graph.ops[1]]))
    assert str(caught.value) == (
        "/home/ada/model.py:4: @f: %other is not defined in this graph\n"
        "  %h = exp(%other) : f32[2, 3]        // model.py:4"
    )


def test_a_value_made_twice() -> None:
    graph = _graph()
    _fails(graph.with_ops([*graph.ops, replace(graph.ops[0])]), "%h is defined twice")
    _fails(graph.with_ops([replace(graph.ops[0], results=graph.inputs), *graph.ops[1:]]), "%x is defined twice")


def test_two_values_of_one_name() -> None:
    graph = _graph()
    clash = replace(graph.ops[0], results=(Value(t(f32, 2, 3), "h"),))
    _fails(graph.with_ops([*graph.ops, clash]), "two values are named %h")


def test_a_type_that_is_not_the_inferred_one() -> None:
    graph = _graph()
    wrong = Value(t(f32, 3, 3), "z")
    op = replace(graph.ops[1], results=(wrong,))
    _fails(graph.with_ops([graph.ops[0], op], [wrong]), r"add gives f32\[2, 3\]\n  %z = add\(%h, %x\) : f32\[3, 3\]")


def test_operands_that_do_not_fit() -> None:
    graph = _graph()
    op = Op(OPS["reduce_sum"], graph.inputs, ReduceAttributes((2,)), (Value(t(f32), "s"),))
    _fails(graph.with_ops([*graph.ops, op]), r"reduce_sum: axes \[2\] are not all axes of f32\[2, 3\]")


def test_attributes_of_another_op() -> None:
    graph = _graph()
    op = Op(OPS["gelu"], graph.inputs, NO_ATTRIBUTES, (Value(t(f32, 2, 3), "s"),))
    _fails(graph.with_ops([*graph.ops, op]), "gelu: needs GeluAttributes, not Attributes")
    op = Op(OPS["exp"], graph.inputs, GeluAttributes(), (Value(t(f32, 2, 3), "s"),))
    _fails(graph.with_ops([*graph.ops, op]), "exp: takes no attributes, got GeluAttributes")
    op = Op(OPS["constant"], (), StridedAttributes((1,), (1,)), (Value(t(f32), "s"),))
    _fails(graph.with_ops([*graph.ops, op]), "constant: needs ConstantAttributes, not StridedAttributes")


def test_an_op_that_is_not_in_the_table() -> None:
    graph = _graph()
    other = replace(OPS["exp"], name="exq")
    _fails(graph.with_ops([replace(graph.ops[0], definition=other), graph.ops[1]]), "op exq is not in the op table")


def test_an_output_that_nobody_makes() -> None:
    graph = _graph()
    _fails(graph.with_ops(graph.ops[:1]), "output %y is not defined")


def test_ports() -> None:
    graph = _graph()
    _fails(replace(graph, input_ports=(Port(), Port())), "1 inputs have 2 input ports")
    _fails(replace(graph, outputs=(*graph.outputs, *graph.outputs)), "2 outputs have 1 output ports")
    _fails(replace(graph, input_ports=(Port((1,)),)), r"input %x: f32\[2, 3\] has strides \[1\]")
    _fails(replace(graph, output_ports=(Port(offset=-1),)), "output %y has the negative offset -1")
    _fails(replace(graph, input_ports=(Port(mutates=0),)), "an input port has 'mutates'")
    _fails(replace(graph, output_ports=(Port(mutates=1),)), "output %y mutates input 1, but there are 1 inputs")
    twice = replace(graph, outputs=(*graph.outputs, *graph.outputs), output_ports=(Port(mutates=0), Port(mutates=0)))
    _fails(twice, "outputs %y and %y both mutate input %x")


def test_a_mutation_of_another_type() -> None:
    b = Builder("f")
    x = b.input(t(f32, 2, 3), "x")
    y = b.emit("isnan", x, as_name="y")
    _fails(b.finish([y], [Port(mutates=0)]), r"output %y: bool\[2, 3\] can't be written to input %x: f32\[2, 3\]")


def test_two_symbols_of_one_name() -> None:
    b = Builder("f")
    x = b.input(TensorType(f32, (symbol("B"),)), "x")
    y = b.input(TensorType(f32, (symbol("B", 1, 8),)), "y")
    _fails(b.finish([x, y]), "after pass 'fuse': @f: two symbols are named B, with different ranges")


def test_bodies_are_checked_too() -> None:
    inner = _graph()
    body = inner.with_ops(reversed(inner.ops))
    b = Builder("outer")
    x = b.input(t(f32, 2, 3), "x")
    y = b.emit("fused", x, attributes=FusedAttributes("map", body), as_name="y")
    _fails(b.finish([y]), "after pass 'fuse': @f in @outer: %h is used before it is defined")


def test_a_body_that_reads_the_graph_around_it() -> None:
    b = Builder("outer")
    x = b.input(t(f32, 2, 3), "x")
    inner = Builder("f")
    a = inner.input(t(f32, 2, 3), "a")
    inner.emit("add", a, x, as_name="s")
    op = inner.last_op
    assert op is not None
    body = inner.finish([op.result])
    y = b.emit("fused", x, attributes=FusedAttributes("map", body), as_name="y")
    _fails(b.finish([y]), "@f in @outer: %x is not defined in this graph")


def test_an_attention_says_which_values_are_its_parts() -> None:
    b = Builder("outer")
    x = b.input(t(f32, 2, 3), "x")
    y = b.emit("fused", x, attributes=FusedAttributes("attention", _graph()), as_name="y")
    _fails(b.finish([y]), "a fused op of kind attention lacks the parts of an attention")


def test_parts_of_an_attention_are_in_its_body() -> None:
    body = _graph()
    (h, y), elsewhere = (op.result for op in body.ops), Value(t(f32, 2, 3), "elsewhere")
    parts = AttentionGroup(h, elsewhere, 1, h, y, 0)
    b = Builder("outer")
    x = b.input(t(f32, 2, 3), "x")
    out = b.emit("fused", x, attributes=FusedAttributes("attention", body, parts), as_name="out")
    _fails(b.finish([out]), "scores is %elsewhere, which is not in the body")


def test_operands_of_a_fused_op_are_what_the_body_takes() -> None:
    b = Builder("outer")
    x = b.input(t(f32, 3, 3), "x")
    op = Op(OPS["fused"], (x,), FusedAttributes("map", _graph()), (Value(t(f32, 2, 3), "y"),))
    _fails(Graph("outer", (x,), op.results, (op,)), r"operands f32\[3, 3\] are not what the body takes: f32\[2, 3\]")


def test_a_constant_out_of_range() -> None:
    op = Op(OPS["constant"], (), ConstantAttributes(2**63, i64), (Value(t(i64), "c"),))
    _fails(Graph("f", (), op.results, (op,)), "constant: 9223372036854775808 is out of the range of i64")
