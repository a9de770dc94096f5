from __future__ import annotations

import pytest
from rewriting import applying, becomes, unchanged

from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.integers import INTEGER_RULES

RULES = applying(*INTEGER_RULES)


def test_what_was_added_is_taken_away() -> None:
    for added in ("add(%x, %y)", "add(%y, %x)"):
        becomes(
            RULES,
            f"""
            graph @g(%x: i32[4, 3], %y: i32[3]) {{
              %t = {added} : i32[4, 3]
              %z = sub(%t, %y) : i32[4, 3]
              %r = neg(%z) : i32[4, 3]
              return %r
            }}
            """,
            """
            graph @g(%x: i32[4, 3], %y: i32[3]) {
              %r = neg(%x) : i32[4, 3]
              return %r
            }
            """,
        )


def test_what_is_computed_alike_is_the_same() -> None:
    becomes(
        RULES,
        """
        graph @g(%x: i32[4, 3], %w: i8[5, 3]) {
          %a = cast(%w) : i32[5, 3]
          %s = reduce_sum(%a) {axes=[0]} : i32[3]
          %p = mul(%s, i32(128)) : i32[3]
          %b = cast(%w) : i32[5, 3]
          %t = reduce_sum(%b) {axes=[0]} : i32[3]
          %q = mul(%t, i32(128)) : i32[3]
          %u = add(%x, %p) : i32[4, 3]
          %z = sub(%u, %q) : i32[4, 3]
          %r = neg(%z) : i32[4, 3]
          return %r
        }
        """,
        """
        graph @g(%x: i32[4, 3], %w: i8[5, 3]) {
          %r = neg(%x) : i32[4, 3]
          return %r
        }
        """,
    )


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("%t = add(%f, %g) : f32[3]\n  %z = sub(%t, %g) : f32[3]", "floats round"),
        ("%t = add(%y, %y) : i32[3]\n  %s = neg(%y) : i32[3]\n  %z = sub(%t, %s) : i32[3]", "another value"),
        ("%t = add(%o, %y) : i32[3]\n  %z = sub(%t, %y) : i32[3]", "the sum is larger than what is left"),
        (
            "%s = reduce_sum(%m) {axes=[0]} : i32[3]\n  %t = add(%y, %s) : i32[3]\n"
            "  %u = reduce_max(%m) {axes=[0]} : i32[3]\n  %z = sub(%t, %u) : i32[3]",
            "a sum is no maximum",
        ),
    ],
)
def test_others_are_left(before: str, why: str) -> None:
    dtype = "f32" if "f32" in before else "i32"
    unchanged(
        RULES,
        f"graph @g(%f: f32[3], %g: f32[3], %y: i32[3], %o: i32[], %m: i32[2, 3]) {{\n  {before}\n"
        f"  %r = neg(%z) : {dtype}[3]\n  return %r\n}}",
    )


def test_a_byte_with_an_offset_is_the_sum_that_it_was() -> None:
    becomes(
        canonicalize,
        """
        graph @g(%x: i8[4, 3]) {
          %a = cast(%x) : i32[4, 3]
          %b = add(%a, i32(128)) : i32[4, 3]
          %c = cast(%b) : u8[4, 3]
          %d = cast(%c) : i32[4, 3]
          %e = sub(%d, i32(128)) : i32[4, 3]
          %f = cast(%e) : i8[4, 3]
          %r = neg(%f) : i8[4, 3]
          return %r
        }
        """,
        """
        graph @g(%x: i8[4, 3]) {
          %r = neg(%x) : i8[4, 3]
          return %r
        }
        """,
    )


@pytest.mark.parametrize(("offset", "dtype"), [(127, "i8"), (128, "i16"), (128, "u8")])
def test_a_byte_that_may_wrap_around_is_left(offset: int, dtype: str) -> None:
    unchanged(
        RULES,
        f"graph @g(%x: {dtype}[4, 3]) {{\n  %a = cast(%x) : i32[4, 3]\n  %b = add(%a, i32({offset})) : i32[4, 3]\n"
        "  %c = cast(%b) : u8[4, 3]\n  %d = cast(%c) : i32[4, 3]\n  return %d\n}",
    )
