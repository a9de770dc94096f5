"""What the parser refuses, and what it says."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from op_samples import CASES, SAMPLES

from fusec.errors import ParseError
from fusec.ir.parse import parse
from fusec.location import Location

GOOD = """graph @f(%x: f32[2, 3], %w: f32[4, 3]) {
  %h = dot(%x, %w) {contract=[1]x[1]} : f32[2, 4]        // m.py:3
  %y = mul(%h, f32(0.5)) : f32[2, 4]
  return %y
}"""


def _change(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'graph', found the end of the text"),
        ("grap @f() {\n  return\n}", "line 1, column 1: expected 'graph', found 'grap'"),
        (GOOD + "x", "line 5, column 2: expected the end of the text after the graph, found 'x'"),
        (GOOD[:-2], "line 4, column 12: expected '}', found the end of the text"),
        (_change("@f", "f"), "line 1, column 7: expected '@', found 'f'"),
        (_change("@f", "@"), r"column 8: expected the name of the graph after '@', found '\('"),
        (_change("%x: f32[2, 3]", "%x: f31[2, 3]"), "line 1, column 14: no dtype 'f31'; known: f16, bf16, f32"),
        (_change("%x: f32[2, 3]", "%x f32[2, 3]"), "line 1, column 13: expected ':', found 'f32'"),
        (_change("%x: f32[2, 3]", "%x: f32[2, 3"), r"line 1, column 34: expected '\)'|not closed|not an index"),
        (_change("f32[4, 3]) {", "f32[4, 3 {"), r"line 1, column 32: this '\[' is not closed on its line"),
        (_change("%x: f32[2, 3]", "%x: f32[2, 3.5]"), "line 1, column 20: not an index expression: ' 3.5'"),
        (_change("%x: f32[2, 3]", "%x: f32[2 // 0, 3]"), "line 1, column 18: .*division"),
        (_change("%w: f32[4, 3]", "%x: f32[4, 3]"), "line 1, column 25: %x is defined twice"),
        (_change("%y = mul", "%h = mul"), "line 3, column 3: %h is defined twice"),
        (_change("mul(%h,", "mul(%k,"), "line 3, column 12: %k is used before it is defined"),
        (_change("mul", "mull"), "line 3, column 8: no op 'mull'; did you mean 'mul'?"),
        (
            _change("mul", "xyzzy"),
            "line 3, column 8: no op 'xyzzy'; IR text is read by the version",
        ),
        (_change("f32(0.5)", "f32(abc)"), "line 3, column 20: expected a number, found 'abc'"),
        (_change("f32(0.5)", "bool(1)"), "line 3, column 21: expected true or false, found '1'"),
        (_change("f32(0.5)", "i8(300)"), "line 3, column 16: constant: 300 is out of the range of i8, -128 to 127"),
        (_change("f32(0.5)", "i64(0.5)"), "line 3, column 16: constant: 0.5 is not a value of i64"),
        (_change("f32(0.5)", "i64(1)"), "line 3, column 8: mul: operands .* have different dtypes"),
        (_change("{contract=[1]x[1]}", ""), "line 2, column 8: attribute 'contract' is missing"),
        (_change("{contract=[1]x[1]}", "{contract=[1]}"), "expected 'x', found '}'"),
        (_change("{contract=[1]x[1]}", "{contract=[1]x[B]}"), "expected plain integers in this list"),
        (
            _change("{contract", "{axes"),
            "line 2, column 21: attribute 'axes' is not known here; known: contract, batch, .*; IR text is",
        ),
        (_change("x[1]}", "x[1], contract=[1]x[1]}"), "attribute 'contract' is given twice"),
        (_change("x[1]}", "x[0]}"), "line 2, column 8: dot: contracted axes .* must pair up with equal extents"),
        (_change("f32[2, 4]        //", "f32[2, 5]        //"), r"dot gives f32\[2, 4\], but f32\[2, 5\] is written"),
        (_change("return %y", "return %z"), "line 4, column 10: %z is used before it is defined"),
        (_change("return %y", "%y"), "line 5, column 1: expected '=', found '}'"),
        (_change("return %y", "return %y mutates=x"), "expected an integer, found 'x'"),
        (_change("%x: f32[2, 3]", "%x: f32[2, 3] parameter fc"), "expected a quoted string, found 'fc'"),
        (_change("%x: f32[2, 3]", '%x: f32[2, 3] state "\\q"'), r"is not a well-formed string"),
        (_change("@f(", "@f<B in [1]>("), "a range is two bounds"),
        (_change("@f(", "@f<B in [1, x]>("), "'x' is not a bound: an integer, inf or -inf"),
        (_change("f32(0.5)", "i64(" + "9" * 41 + ")"), "the integer has more than 40 digits"),
        (_change("f32[2, 4]\n", "f32[2, 4], f32[2]\n"), "1 results have 2 types"),
    ],
)
def test_messages(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_a_field_that_is_missing() -> None:
    with pytest.raises(ParseError, match="line 2, column 8: attribute 'axes' is missing"):
        parse("graph @f(%x: f32[2]) {\n  %y = reduce_sum(%x) : f32[]\n  return %y\n}")


def test_a_fused_kind_that_is_not_one() -> None:
    with pytest.raises(ParseError, match="'magic' is not a kind of fused op: map, row, gemm"):
        parse("graph @f(%x: f32[2]) {\n  %y = fused(%x) magic @g(%x: f32[2]) {\n return %x\n } : f32[2]\n return %y\n}")


def test_a_body_does_not_see_the_values_around_it() -> None:
    text = "graph @f(%x: f32[2]) {\n  %y = fused(%x) map @g(%a: f32[2]) {\n    return %x\n  } : f32[2]\n  return %y\n}"
    with pytest.raises(ParseError, match="line 3, column 12: %x is used before it is defined"):
        parse(text)


def test_locations_are_read_from_comments_and_other_comments_are_not() -> None:
    graph = parse("// head:1\n" + GOOD.replace("f32[2, 4]\n", "f32[2, 4] // scaled\n// my file.py:9\n"))
    assert [op.location for op in graph.ops] == [Location("m.py", 3), None, None]
    text = GOOD.replace("m.py:3", "my file.py:9")
    assert parse(text).ops[0].location == Location("my file.py", 9)


def test_layout_is_free() -> None:
    loose = GOOD.replace("\n  ", "\n\n\t").replace(", %", " ,\n %").replace(" = ", "=")
    assert str(parse(loose)) == GOOD


def test_nothing_but_parse_error_whatever_the_text() -> None:
    rng = random.Random(5)
    texts = [str(SAMPLES[name][n].graph(name)) for name, n in CASES] + [GOOD]
    pieces = [
        "%",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        '"',
        "//",
        "-",
        "0",
        "9" * 50,
        "inf",
        "\\",
        "\n",
        "\0",
        "é",
        "f32",
        "=",
        "<",
    ]
    for _ in range(1500):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            at, end = rng.randrange(len(text)), rng.randrange(6)
            text = text[:at] + rng.choice([*pieces, ""]) + text[at + end :]
        with suppress(ParseError):
            graph = parse(text)
            assert str(parse(str(graph))) == str(graph)


def test_deep_nesting_is_refused() -> None:
    text = "graph @f() {\n" + "fused() map @g() {\n" * 3000
    with pytest.raises(ParseError, match="nested too deeply"):
        parse(text)
