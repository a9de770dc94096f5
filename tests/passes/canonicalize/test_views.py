from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.ir.parse import parse
from fusec.ir.types import DTYPES, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from fusec.passes.canonicalize.views import VIEW_RULES, is_exact_cast

composed = applying(*VIEW_RULES)

CHAINS = [
    (
        "f32[2, 3, 4]",
        "%a = permute(%x) {permutation=[1, 2, 0]} : f32[3, 4, 2]\n"
        "%b = permute(%a) {permutation=[1, 0, 2]} : f32[4, 3, 2]",
        "%b = permute(%x) {permutation=[2, 1, 0]} : f32[4, 3, 2]",
    ),
    (
        "f32[2, 3, 4]",
        "%a = reshape(%x) : f32[6, 4]\n%b = reshape(%a) : f32[3, 8]",
        "%b = reshape(%x) : f32[3, 8]",
    ),
    (
        "f32[3, 1]",
        "%a = broadcast(%x) : f32[2, 3, 1]\n%b = broadcast(%a) : f32[5, 2, 3, 4]",
        "%b = broadcast(%x) : f32[5, 2, 3, 4]",
    ),
    (
        "f32[20, 9]",
        "%a = slice(%x) {starts=[2, 8], stops=[20, -1], steps=[3, -2]} : f32[6, 5]\n"
        "%b = slice(%a) {starts=[5, 1], stops=[0, 5], steps=[-2, 3]} : f32[3, 2]",
        "%b = slice(%x) {starts=[17, 6], stops=[4, -1], steps=[-6, -6]} : f32[3, 2]",
    ),
    (
        "f32[20, 9]",
        "%a = slice(%x) {starts=[2, 0], stops=[20, 9], steps=[1, 1]} : f32[18, 9]\n"
        "%b = slice(%a) {starts=[4, 0], stops=[4, 9], steps=[1, 1]} : f32[0, 9]",
        "%b = slice(%x) {starts=[0, 0], stops=[0, 9], steps=[1, 1]} : f32[0, 9]",
    ),
    (
        "f32[20, 9]",
        "%a = windows(%x) {axis=0, size=4, step=2} : f32[9, 9, 4]\n"
        "%b = slice(%a) {starts=[1, 3, 0], stops=[9, 9, 4], steps=[3, 2, 1]} : f32[3, 3, 4]",
        "%b_slice = slice(%x) {starts=[2, 3], stops=[18, 9], steps=[1, 2]} : f32[16, 3]\n"
        "%b = windows(%b_slice) {axis=0, size=4, step=6} : f32[3, 3, 4]",
    ),
    (
        "f32[B, 9]",
        "%a = slice(%x) {starts=[0, 2], stops=[B, 9], steps=[1, 1]} : f32[B, 7]\n"
        "%b = slice(%a) {starts=[0, 3], stops=[B, 7], steps=[1, 2]} : f32[B, 2]",
        "%b = slice(%x) {starts=[0, 5], stops=[B, 8], steps=[1, 2]} : f32[B, 2]",
    ),
]


def _graph(type_: str, body: str, result: str) -> str:
    lines = "\n".join(f"      {line.strip()}" for line in body.splitlines())
    return f"    graph @g(%x: {type_}) {{\n{lines}\n      return {result}\n    }}\n"


@pytest.mark.parametrize(("type_", "before", "after"), CHAINS)
def test_a_view_of_a_view_is_one_view(type_: str, before: str, after: str) -> None:
    if "B" in type_:
        text = dedent(_graph(type_, before, "%b"))
        assert str(composed(parse(text))) == str(parse(dedent(_graph(type_, after, "%b"))))
    else:
        becomes(composed, _graph(type_, before, "%b"), _graph(type_, after, "%b"))


IDENTITIES = [
    "permute(%x) {permutation=[0, 1]} : f32[2, 3]",
    "reshape(%x) : f32[2, 3]",
    "broadcast(%x) : f32[2, 3]",
    "slice(%x) {starts=[0, 0], stops=[2, 3], steps=[1, 1]} : f32[2, 3]",
    "cast(%x) : f32[2, 3]",
    "copy(%x) : f32[2, 3]",
    "reduce_max(%x) {axes=[]} : f32[2, 3]",
    "concat(%x) {axis=0} : f32[2, 3]",
    "pad(%x, f32(1.0)) {low=[0, 0], high=[0, 0]} : f32[2, 3]",
]


@pytest.mark.parametrize("call", IDENTITIES)
def test_what_changes_nothing_goes_away(call: str) -> None:
    becomes(
        composed,
        _graph("f32[2, 3]", f"%a = {call}\n%y = exp(%a) : f32[2, 3]", "%y"),
        _graph("f32[2, 3]", "%y = exp(%x) : f32[2, 3]", "%y"),
    )


@pytest.mark.parametrize("made", ["mul(%x, %x)", "maximum(%x, %x)", "cast(%x) {implied=true}"])
def test_a_cast_of_a_half_value_to_its_own_dtype_is_a_rounding(made: str) -> None:
    """The value may have been kept with the digits of f32; not so an argument, or what a cast has rounded."""
    body = f"%a = {made} : f16[2]\n%b = cast(%a) : f16[2]\n%y = cast(%b) : f32[2]"
    unchanged(composed, _graph("f32[2]" if "cast" in made else "f16[2]", body, "%y"))
    again = body.replace("%y =", "%c = cast(%b) : f16[2]\n%y =").replace("cast(%b) : f32", "cast(%c) : f32")
    kind = "f32[2]" if "cast" in made else "f16[2]"
    becomes(composed, _graph(kind, again, "%y"), _graph(kind, body, "%y"))
    plain = "%a = cast(%x) : f16[2]\n%b = cast(%a) : f16[2]\n%y = exp(%b) : f16[2]"
    becomes(
        composed,
        _graph("f32[2]", plain, "%y"),
        _graph("f32[2]", plain.replace("%b = cast(%a) : f16[2]\n", "").replace("exp(%b)", "exp(%a)"), "%y"),
    )


def test_an_integer_needs_no_implied_rounding() -> None:
    """What is kept with the digits of f32 is a float."""
    becomes(
        composed,
        _graph("i8[2]", "%a = cast(%x) : f32[2]\n%y = cast(%a) {implied=true} : bf16[2]", "%y"),
        _graph("i8[2]", "%y = cast(%x) : bf16[2]", "%y"),
    )


NEARLY = [
    "permute(%x) {permutation=[1, 0]} : f32[2, 2]",
    "reshape(%x) : f32[4, 1]",
    "broadcast(%x) : f32[1, 2, 2]",
    "slice(%x) {starts=[1, 0], stops=[-1, 2], steps=[-1, 1]} : f32[2, 2]",
    "cast(%x) : f64[2, 2]",
    "pad(%x, f32(1.0)) {low=[0, 1], high=[0, 0]} : f32[2, 3]",
]


@pytest.mark.parametrize("call", NEARLY)
def test_what_changes_something_stays(call: str) -> None:
    dtype = "f64" if "f64" in call else "f32"
    shape = call.rpartition("[")[2]
    unchanged(composed, _graph("f32[2, 2]", f"%a = {call}\n%y = exp(%a) : {dtype}[{shape}", "%y"))


@pytest.mark.parametrize("source", ["%h = exp(%x) : f32[4]\n", ""])
def test_copies_are_dropped(source: str) -> None:
    kept = "%h" if source else "%x"
    body = f"{source}%y = copy({kept}) : f32[4]\n%v = reshape(%y) : f32[2, 2]"
    left = f"{source}%v = reshape({kept}) : f32[2, 2]"
    becomes(composed, _graph("f32[4]", body, "%y, %v"), _graph("f32[4]", left, f"{kept}, %v"))


def test_elementwise_ops_broadcast_by_themselves() -> None:
    becomes(
        composed,
        """
        graph @g(%x: f32[2, 3, 4], %m: bool[2, 1, 4], %b: f32[4]) {
          %bb = broadcast(%b) : f32[2, 3, 4]
          %s = add(%x, %bb) : f32[2, 3, 4]
          %mm = broadcast(%m) : bool[2, 3, 4]
          %zero = broadcast(f32(0.0)) : f32[2, 3, 4]
          %y = select(%mm, %s, %zero) : f32[2, 3, 4]
          return %y
        }
        """,
        """
        graph @g(%x: f32[2, 3, 4], %m: bool[2, 1, 4], %b: f32[4]) {
          %s = add(%x, %b) : f32[2, 3, 4]
          %y = select(%m, %s, f32(0.0)) : f32[2, 3, 4]
          return %y
        }
        """,
    )


def test_axes_of_one_at_the_left_are_implied_too() -> None:
    becomes(
        composed,
        """
        graph @g(%x: f32[2, 3, 4], %b: f32[4]) {
          %r = reshape(%b) : f32[1, 1, 4]
          %y = mul(%x, %r) : f32[2, 3, 4]
          return %y
        }
        """,
        """
        graph @g(%x: f32[2, 3, 4], %b: f32[4]) {
          %y = mul(%x, %b) : f32[2, 3, 4]
          return %y
        }
        """,
    )


def test_a_broadcast_that_makes_the_shape_stays() -> None:
    becomes(
        composed,
        """
        graph @g(%x: f32[1, 4], %b: f32[4]) {
          %xx = broadcast(%x) : f32[3, 4]
          %bb = broadcast(%b) : f32[3, 4]
          %y = mul(%xx, %bb) : f32[3, 4]
          return %y
        }
        """,
        """
        graph @g(%x: f32[1, 4], %b: f32[4]) {
          %bb = broadcast(%b) : f32[3, 4]
          %y = mul(%x, %bb) : f32[3, 4]
          return %y
        }
        """,
    )


CASTS = [
    ("bf16", "f32", "bf16", None),
    ("f16", "f32", "i32", "i32"),
    ("f32", "f64", "bf16", "bf16"),
    ("bool", "i64", "f32", "f32"),
    ("u8", "i16", "f32", "f32"),
]


@pytest.mark.parametrize(("first", "second", "third", "direct"), CASTS)
def test_an_exact_cast_in_between_is_skipped(first: str, second: str, third: str, direct: str | None) -> None:
    result = "exp" if third in ("bf16", "f32") else "neg"
    before = f"%a = cast(%x) : {second}[9]\n%b = cast(%a) : {third}[9]\n%y = {result}(%b) : {third}[9]"
    after = f"%b = cast(%x) : {direct}[9]\n%y = {result}(%b) : {third}[9]"
    if direct is None:
        after = f"%y = {result}(%x) : {third}[9]"
    becomes(composed, _graph(f"{first}[9]", before, "%y"), _graph(f"{first}[9]", after, "%y"), special=third != "i32")


@pytest.mark.parametrize(("first", "second"), [("f32", "bf16"), ("f16", "bf16"), ("bf16", "f16"), ("i64", "f32")])
def test_a_users_rounding_cast_stays(first: str, second: str) -> None:
    body = f"%a = cast(%x) : {second}[9]\n%y = cast(%a) : {first}[9]"
    unchanged(composed, _graph(f"{first}[9]", body, "%y"))


def test_exact_casts_are_those_that_lose_no_integer() -> None:
    real = [d for d in DTYPES.values() if d.kind not in ("complex", "float8")]
    for source in real:
        if source.is_float:
            continue
        ends = (0, 1) if source == bool_ else (np.iinfo(source.numpy).min, np.iinfo(source.numpy).max)
        values = [int(ends[0]), int(ends[1]), int(ends[1]) - 1]
        for target in real:
            if is_exact_cast(source, target):
                assert [int(v) for v in np.array(values, source.numpy).astype(target.numpy)] == values
    assert is_exact_cast(u8, f16)
    assert is_exact_cast(i8, bf16)
    assert is_exact_cast(i32, f64)
    for source, target in ((i32, f32), (i64, f64), (i8, u8)):
        assert not is_exact_cast(source, target)


def test_exact_casts_of_floats_widen_digits_and_exponent() -> None:
    order = {(a.name, b.name) for a in (f16, bf16, f32, f64) for b in (f16, bf16, f32, f64) if is_exact_cast(a, b)}
    assert order - {(n, n) for n in ("f16", "bf16", "f32", "f64")} == {
        ("f16", "f32"),
        ("f16", "f64"),
        ("bf16", "f32"),
        ("bf16", "f64"),
        ("f32", "f64"),
    }


def test_empty_parts_of_a_concat_are_dropped() -> None:
    becomes(
        composed,
        """
        graph @g(%x: f32[2, 3], %e: f32[0, 3], %y: f32[1, 3]) {
          %z = concat(%e, %x, %e, %y) {axis=0} : f32[3, 3]
          return %z
        }
        """,
        """
        graph @g(%x: f32[2, 3], %e: f32[0, 3], %y: f32[1, 3]) {
          %z = concat(%x, %y) {axis=0} : f32[3, 3]
          return %z
        }
        """,
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_slices_compose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    extents, body, name = [13, 7], "", "%x"
    for k in range(3):
        starts, stops, steps, counts = [], [], [], []
        for extent in extents:
            step = int(rng.choice([-2, -1, 1, 2, 3]))
            start = int(rng.integers(0, max(extent, 1)))
            room = (extent - 1 - start) // step if step > 0 else start // -step
            count = int(rng.integers(0, max(room, 0) + 2)) if extent else 0
            if count == 0:
                start, step = 0, 1
            starts.append(start)
            steps.append(step)
            stops.append(start + (count - 1) * step + (1 if step > 0 else -1) if count else 0)
            counts.append(count)
        body += f"%s{k} = slice({name}) {{starts={starts}, stops={stops}, steps={steps}}} : f32{counts}\n"
        name, extents = f"%s{k}", counts
    graph = computes_the_same(composed, _graph("f32[13, 7]", body + f"%y = exp({name}) : f32{extents}", "%y"))
    assert sum(op.name == "slice" for op in graph.ops) <= 1
