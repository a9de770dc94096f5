from __future__ import annotations

from rewriting import becomes, computes_the_same, unchanged

from fusec.passes.cse import cse


def test_equal_ops_become_the_first() -> None:
    becomes(
        cse,
        """
        graph @g(%x: f32[2, 3], %b: f32[3]) {
          %a = add(%x, %b) : f32[2, 3]
          %c = add(%b, %x) : f32[2, 3]
          %r = reduce_sum(%a) {axes=[1]} : f32[2]
          %s = reduce_sum(%c) {axes=[1]} : f32[2]
          %y = sub(%r, %s) : f32[2]
          return %y
        }
        """,
        """
        graph @g(%x: f32[2, 3], %b: f32[3]) {
          %a = add(%x, %b) : f32[2, 3]
          %r = reduce_sum(%a) {axes=[1]} : f32[2]
          %y = sub(%r, %r) : f32[2]
          return %y
        }
        """,
    )


def test_an_output_may_be_the_merged_value() -> None:
    becomes(
        cse,
        """
        graph @g(%x: f32[3]) {
          %a = exp(%x) : f32[3]
          %b = exp(%x) : f32[3]
          %y = mul(%a, %b) : f32[3]
          return %y, %b
        }
        """,
        """
        graph @g(%x: f32[3]) {
          %a = exp(%x) : f32[3]
          %y = mul(%a, %a) : f32[3]
          return %y, %a
        }
        """,
    )


def test_outputs_are_merged_too() -> None:
    """Of one value, all but one are copied later."""
    becomes(
        cse,
        """
        graph @g(%x: f32[3]) {
          %a = exp(%x) : f32[3]
          %b = exp(%x) : f32[3]
          %v = reshape(%b) : f32[3, 1]
          %c = exp(%x) : f32[3]
          return %a, %v, %c
        }
        """,
        """
        graph @g(%x: f32[3]) {
          %a = exp(%x) : f32[3]
          %v = reshape(%a) : f32[3, 1]
          return %a, %v, %a
        }
        """,
    )


DIFFERENT = """
    graph @g(%x: f32[2, 2], %z: f32[2, 2]) {
      %a = sub(%x, %z) : f32[2, 2]
      %b = sub(%z, %x) : f32[2, 2]
      %c = reduce_sum(%x) {axes=[0]} : f32[2]
      %d = reduce_sum(%x) {axes=[1]} : f32[2]
      %e = add(%x, f32(0.0)) : f32[2, 2]
      %f = add(%x, f32(-0.0)) : f32[2, 2]
      %h = mul(%a, %b) : f32[2, 2]
      %k = mul(%h, %e) : f32[2, 2]
      %l = div(%k, %f) : f32[2, 2]
      %m = mul(%l, %c) : f32[2, 2]
      %n = mul(%m, %d) : f32[2, 2]
      return %n
    }
"""


def test_other_operands_attributes_and_signs_of_zero_are_not_equal() -> None:
    unchanged(cse, DIFFERENT)


def test_views_of_one_output_are_the_same_memory_anyway() -> None:
    graph = computes_the_same(
        cse,
        """
        graph @g(%x: f32[4]) {
          %a = reshape(%x) : f32[2, 2]
          %b = reshape(%x) : f32[2, 2]
          return %a, %b
        }
        """,
    )
    assert len(graph.ops) == 1


def test_library_calls_are_left_alone() -> None:
    unchanged(
        cse,
        """
        graph @g(%x: f32[4]) {
          %a = extern(%x) {target="aten.bernoulli", arguments="(($0,), {})"} : f32[4]
          %b = extern(%x) {target="aten.bernoulli", arguments="(($0,), {})"} : f32[4]
          %y = sub(%a, %b) : f32[4]
          return %y
        }
        """,
    )
