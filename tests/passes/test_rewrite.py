from __future__ import annotations

from textwrap import dedent

import pytest
from rewriting import applying, becomes

from fusec.errors import VerifyError
from fusec.ir.builder import Builder
from fusec.ir.parse import parse
from fusec.ir.types import TensorType, f32
from fusec.location import Location
from fusec.passes.rewrite import Outcome, Reject, Rewriter, rewrite, rule

RELU = """
    graph @g(%x: f32[4]) {
      %h = relu(%x) : f32[4]        // model.py:3
      return %h
    }
"""


@rule("relu")
def twice_max(r: Rewriter) -> Outcome:
    """relu(x) ⇒ max(max(x, 0), 0), for tests"""
    zero = r.constant(0.0, r.operands[0])
    return r.emit("maximum", r.emit("maximum", r.operands[0], zero, hint="once"), zero)


@rule("neg")
def drop_neg(r: Rewriter) -> Outcome:
    """neg(x) ⇒ x, for tests"""
    return r.operands[0]


@rule("neg")
def flip(r: Rewriter) -> Outcome:
    """neg(x) ⇒ neg(x), for tests"""
    return r.emit("neg", r.operands[0])


@rule("relu")
def halved(r: Rewriter) -> Outcome:
    """relu(x) ⇒ reduce(x), which is wrong"""
    return r.reduce("reduce_sum", r.operands[0], [0])


@rule("exp")
def never(r: Rewriter) -> Outcome:
    """exp(x) ⇒ nothing"""
    return Reject(f"{r.operands[0]} is only a test")


def test_the_last_op_takes_the_name_and_the_others_derived_ones() -> None:
    graph = becomes(
        applying(twice_max),
        RELU,
        """
        graph @g(%x: f32[4]) {
          %h_once = maximum(%x, f32(0.0)) : f32[4]        // model.py:3
          %h = maximum(%h_once, f32(0.0)) : f32[4]        // model.py:3
          return %h
        }
        """,
    )
    assert [op.name for op in graph.ops] == ["constant", "maximum", "maximum"]


def test_derived_names_avoid_the_names_of_the_graph() -> None:
    text = RELU.replace("%x", "%h_once").replace("model.py:3", "m.py:1")
    graph = rewrite(parse(dedent(text)), (twice_max,))
    assert [op.result.name for op in graph.ops[1:]] == ["h_once_1", "h"]


def test_emitted_ops_keep_the_location() -> None:
    builder = Builder("g")
    x = builder.input(TensorType(f32, (4,)), "x")
    location = Location("/home/me/model.py", 7)
    graph = rewrite(builder.finish([builder.emit("relu", x, as_name="h", location=location)]), (twice_max,))
    assert {op.location for op in graph.ops} == {location}


def test_constants_are_made_once_and_those_of_the_graph_are_found() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %a = add(%x, f32(0.0)) : f32[4]
      %h = relu(%a) : f32[4]
      %k = relu(%h) : f32[4]
      return %k
    }
    """
    graph = rewrite(parse(dedent(text)), (twice_max,))
    assert sum(op.name == "constant" for op in graph.ops) == 1


def test_negative_zero_is_another_constant() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %a = add(%x, f32(-0.0)) : f32[4]
      %h = relu(%a) : f32[4]
      return %h
    }
    """
    graph = rewrite(parse(dedent(text)), (twice_max,))
    assert sum(op.name == "constant" for op in graph.ops) == 2


def test_a_value_inside_is_replaced() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %a = neg(%x) : f32[4]
      %b = exp(%a) : f32[4]
      return %b
    }
    """
    graph = rewrite(parse(dedent(text)), (drop_neg,))
    assert [op.name for op in graph.ops] == ["exp"]


def test_rejects_are_logged_once_with_the_value() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %a = relu(%x) : f32[4]
      %b = exp(%a) : f32[4]
      return %b
    }
    """
    log: list[str] = []
    rewrite(parse(dedent(text)), (never, twice_max), log=lambda d: log.append(f"{d.rule}: {d.reason}"))
    assert log == ["never: %b: %a is only a test"]


def test_rules_that_undo_each_other_are_an_error() -> None:
    text = RELU.replace("relu", "neg")
    with pytest.raises(VerifyError, match="rules still fire after 5 sweeps: flip"):
        rewrite(parse(dedent(text)), (flip,), max_sweeps=5)


def test_a_rule_that_changes_the_type_is_an_error() -> None:
    with pytest.raises(VerifyError, match=r"rule halved changed .* from f32\[4\] to f32\[\]"):
        rewrite(parse(dedent(RELU)), (halved,))


def test_a_rule_that_emits_nonsense_is_an_error_that_names_the_op() -> None:
    @rule("relu")
    def wrong(r: Rewriter) -> Outcome:
        """relu(x) ⇒ logical_not(x), which is no op on floats"""
        return r.emit("logical_not", r.operands[0])

    with pytest.raises(VerifyError, match=r"rewriting .*relu.*logical_not"):
        rewrite(parse(dedent(RELU)), (wrong,))


def test_a_graph_that_no_rule_matches_is_the_same_object() -> None:
    graph = parse(dedent(RELU))
    assert rewrite(graph, (drop_neg,)) is graph
