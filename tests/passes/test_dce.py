from __future__ import annotations

from textwrap import dedent

from rewriting import becomes

from fusec.ir.parse import parse
from fusec.passes.dce import dce


def test_ops_that_no_output_needs_go_with_what_only_they_read() -> None:
    becomes(
        dce,
        """
        graph @g(%x: f32[4], %unused: f32[2]) {
          %a = exp(%x) : f32[4]
          %b = log(%a) : f32[4]
          %c = add(%a, %b) : f32[4]
          %y = neg(%x) : f32[4]
          return %y
        }
        """,
        """
        graph @g(%x: f32[4], %unused: f32[2]) {
          %y = neg(%x) : f32[4]
          return %y
        }
        """,
    )


def test_one_used_result_keeps_a_call_of_several() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %v, %i = extern(%x) {target="aten.sort", arguments="(($0,), {})"} : f32[4], i64[4]
      %y = neg(%x) : f32[4]
      return %y, %i
    }
    """
    assert [op.name for op in dce(parse(dedent(text))).ops] == ["extern", "neg"]


def test_an_output_that_mutates_an_input_is_needed() -> None:
    text = """
    graph @g(%x: f32[4]) {
      %a = add(%x, f32(1.0)) : f32[4]
      return %a mutates=0
    }
    """
    graph = parse(dedent(text))
    assert dce(graph) is graph


def test_ports_survive() -> None:
    text = """
    graph @g(%x: f32[4] parameter "self.w") {
      %d = exp(%x) : f32[4]
      %a = add(%x, f32(1.0)) : f32[4]
      return %a mutates=0
    }
    """
    graph = dce(parse(dedent(text)))
    assert graph.input_ports[0].path == "self.w"
    assert graph.output_ports[0].mutates == 0


def test_an_unused_library_call_stays() -> None:
    """It may raise."""
    text = """
    graph @g(%x: f32[4]) {
      %s = extern(%x) {target="aten.sort", arguments="(($0,), {})"} : f32[4]
      %y = neg(%x) : f32[4]
      return %y
    }
    """
    assert [op.name for op in dce(parse(dedent(text))).ops] == ["extern", "neg"]
