"""Index arithmetic against brute-force evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.ir.index import (
    Expr,
    Index,
    add,
    bounds,
    floordiv,
    is_at_least,
    is_below,
    maximum,
    minimum,
    mod,
    mul,
    sub,
    symbol,
    symbols_of,
)
from fusec.ir.index import product as index_product
from fusec.ir.index_text import parse_index
from fusec.ir.indexing import (
    INT32_MAX,
    coefficient,
    delinearize,
    evaluate,
    last,
    linearize,
    most,
    needs_int64,
    slope,
    substitute,
)

SYMBOLS = {
    "i": symbol("i", 0, 7),
    "j": symbol("j", -3, 4),
    "n": symbol("n", 1, 5),
    "B": symbol("B"),
    "z": symbol("z", None, 9),
    "u": symbol("u", None),
}
VALUES = {
    "i": st.integers(0, 7),
    "j": st.integers(-3, 4),
    "n": st.integers(1, 5),
    "B": st.integers(0, 50),
    "z": st.integers(-40, 9),
    "u": st.integers(-40, 40),
}


@dataclass(frozen=True)
class Tree:
    """An expression as written: how to build it, and what it is in plain integers."""

    build: Callable[[], Index]
    value: Callable[[Mapping[str, int]], int]


def _leaf(name: str) -> Tree:
    return Tree(lambda: SYMBOLS[name], lambda env: env[name])


def _number(k: int) -> Tree:
    return Tree(lambda: k, lambda env: k)


def _join(a: Tree, b: Tree, make: Callable[[Index, Index], Index], plain: Callable[[int, int], int]) -> Tree:
    return Tree(lambda: make(a.build(), b.build()), lambda env: plain(a.value(env), b.value(env)))


def _nodes(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    divisor = st.integers(-6, 6).filter(bool).map(_number) | st.just(_leaf("n"))
    return st.one_of(
        st.builds(lambda a, b: _join(a, b, add, lambda x, y: x + y), inner, inner),
        st.builds(lambda a, b: _join(a, b, sub, lambda x, y: x - y), inner, inner),
        st.builds(lambda a, b: _join(a, b, mul, lambda x, y: x * y), inner, inner),
        st.builds(lambda a, b: _join(a, b, minimum, min), inner, inner),
        st.builds(lambda a, b: _join(a, b, maximum, max), inner, inner),
        st.builds(lambda a, b: _join(a, b, floordiv, lambda x, y: x // y), inner, divisor),
        st.builds(lambda a, b: _join(a, b, mod, lambda x, y: x % y), inner, divisor),
    )


TREES = st.recursive(
    st.sampled_from(sorted(SYMBOLS)).map(_leaf) | st.integers(-9, 9).map(_number), _nodes, max_leaves=8
)
ENVIRONMENTS = st.fixed_dictionaries(VALUES)


@settings(max_examples=300, deadline=None)
@given(TREES, st.lists(ENVIRONMENTS, min_size=3, max_size=3))
def test_simplified_value_equals_the_value_as_written(tree: Tree, environments: list[dict[str, int]]) -> None:
    e = tree.build()
    lo, hi = bounds(e)
    for env in environments:
        wanted = tree.value(env)
        assert evaluate(e, env) == wanted
        assert lo is None or lo <= wanted
        assert hi is None or wanted <= hi


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_text_is_read_back_as_the_same_object(tree: Tree) -> None:
    e = tree.build()
    back = parse_index(str(e), SYMBOLS.__getitem__)
    assert back is e or (isinstance(e, int) and back == e)


@settings(max_examples=300, deadline=None)
@given(TREES, TREES, ENVIRONMENTS)
def test_substitute_then_evaluate(tree: Tree, replacement: Tree, env: dict[str, int]) -> None:
    e = substitute(tree.build(), {SYMBOLS["u"]: replacement.build()})
    assert evaluate(e, env) == tree.value({**env, "u": replacement.value(env)})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_delinearize_undoes_linearize(shape: list[int]) -> None:
    indices = [symbol(f"d{axis}_{n}", 0, n - 1) if n > 1 else 0 for axis, n in enumerate(shape)]
    assert delinearize(linearize(indices, shape), tuple(shape)) == tuple(indices)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_linearize_undoes_delinearize(shape: list[int]) -> None:
    size = 1
    for n in shape:
        size *= n
    flat = symbol("flat", 0, size - 1)
    indices = delinearize(flat, tuple(shape))
    again = linearize(indices, shape)
    places = [tuple(evaluate(i, {"flat": f}) for i in indices) for f in range(size)]
    assert places == list(product(*map(range, shape)))
    assert all(evaluate(again, {"flat": f}) == f for f in range(size))


def test_a_reshape_and_its_inverse_cancel() -> None:
    x = symbol("x", 0, 767)
    head, rest = floordiv(x, 64), mod(x, 64)
    assert add(mul(head, 64), rest) is x
    assert floordiv(add(mul(head, 64), rest), 64) is head
    inner = delinearize(linearize((head, rest), (12, 64)), (3, 4, 64))
    assert linearize(inner, (3, 4, 64)) is x


@pytest.mark.parametrize(("n", "c"), [(128, 4), (640, 20), (96, 3)])
def test_a_remainder_and_a_quotient_of_it_cancel(n: int, c: int) -> None:
    """``x % n % c`` is ``x % c``, which still completes ``x % n // c``: channels of groups, taken apart and put
    together."""
    x = symbol("x", 0, 10 * n - 1)
    group, channel = floordiv(mod(x, n), c), mod(mod(x, n), c)
    assert channel is mod(x, c)
    assert add(mul(group, c), channel) is mod(x, n)
    assert add(add(mul(group, 2 * c), 5), mul(channel, 2)) is add(mul(mod(x, n), 2), 5)
    assert symbols_of(add(mul(group, c + 1), channel)) == {x}


def test_equal_expressions_are_one_object() -> None:
    a, b = symbol("a"), symbol("b")
    assert (a + b) * 2 is b * 2 + 2 * a  # type: ignore[operator]
    assert symbol("a") is a
    assert symbol("a", 1) is not a
    assert sub(a, a) == 0
    assert symbols_of(mod(mul(a, b), 7)) == {a, b}


def test_two_symbols_of_one_name_sum_to_one_object_in_either_order() -> None:
    a, b = symbol("a", 0, 3), symbol("a", 0, 4)
    assert add(a, b) is add(b, a)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("B*S", "B*S"),
        ("x // (B*S)", "(x // (B*S))"),
        ("x % (B*S)", "(x % (B*S))"),
        ("B*S % 8", "(B*S % 8)"),
        ("min(B, 4) + 1", "(min(4, B) + 1)"),
        ("-B", "(-B)"),
        ("8*B // 4", "(2*B)"),
        ("(8*B + 3) % 4", "3"),
    ],
)
def test_spelling(text: str, shown: str) -> None:
    assert str(parse_index(text, symbol)) == shown


def test_ranges_decide_quotients_and_extremes() -> None:
    i = symbol("i", 0, 7)
    assert floordiv(i, 8) == 0
    assert mod(i, 8) is i
    assert maximum(i, 0) is i
    assert minimum(i, 7) is i
    assert bounds(floordiv(i, symbol("n", 1, 5))) == (0, 7)
    assert bounds(mod(i, symbol("n", 1, 5))) == (0, 4)


def test_bounds_of_a_division_by_what_may_be_negative_are_open() -> None:
    i, k = symbol("i", 0, 7), symbol("k", -3, 3)
    lo, hi = bounds(floordiv(i, k))
    assert lo is None
    assert hi is None
    assert bounds(mod(i, k)) == (-2, 2)


def test_coefficient_of_a_linear_expression() -> None:
    i, j = symbol("i"), symbol("j")
    e = add(mul(i, 3), add(j, 5))
    assert coefficient(e, i) == 3
    assert coefficient(5, i) == 0
    assert coefficient(add(i, floordiv(i, 2)), i) is None


def test_needs_int64_at_the_edge() -> None:
    assert not needs_int64(symbol("a", 0, INT32_MAX))
    assert needs_int64(symbol("a", 0, INT32_MAX + 1))
    assert not needs_int64(symbol("a", -INT32_MAX - 1, 0))
    assert needs_int64(symbol("a", -INT32_MAX - 2, 0))
    assert needs_int64(symbol("B"))
    assert needs_int64(mul(symbol("r", 0, 65535), 65536))
    assert not needs_int64(mul(symbol("r", 0, 32767), 65536))
    assert not needs_int64()


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        floordiv(symbol("a"), 0)
    with pytest.raises(ZeroDivisionError):
        mod(add(symbol("a"), 1), 0)


def test_evaluate_names_a_missing_symbol() -> None:
    e = symbol("a")
    assert isinstance(e, Expr)
    with pytest.raises(KeyError, match="a"):
        evaluate(e, {})


def test_expressions_are_not_pickled() -> None:
    import pickle

    with pytest.raises(TypeError, match="saved as text"):
        pickle.dumps(symbol("a"))


# symbols that end at an expression


def test_reshapes_over_symbolic_extents_cancel() -> None:
    b, s = symbol("B", 1, 64), symbol("S", 2, 512)
    i, j, k = symbol("i", 0, b - 1), symbol("j", 0, s - 1), symbol("k", 0, 767)
    flat = linearize((i, j, k), (b, s, 768))
    assert delinearize(flat, (b, s, 768)) == (i, j, k)
    assert delinearize(flat, (b * s, 768)) == (s * i + j, k)
    row = symbol("r", 0, b * 12 * s - 1)
    outer, head, inner = delinearize(row, (b, 12, s))
    assert linearize((outer, head, inner), (b, 12, s)) is row


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 400))
def test_division_by_symbols_keeps_its_value(n: int, m: int, place: int) -> None:
    b, s = symbol("B", 1, 9), symbol("S", 1, 7)
    place %= n * m * 5
    row = symbol("r", 0, b * s * 5 - 1)
    values = {"B": n, "S": m, "r": place}
    for e, wanted in (
        (floordiv(row, s), place // m),
        (mod(row, s), place % m),
        (floordiv(row * 3 + s * 2, s), (place * 3 + m * 2) // m),
        (mod(row + b * s, b * s), (place + n * m) % (n * m)),
        (mul(floordiv(row, s * 5), s * 5) + mod(row, s * 5), place),
        (minimum(row, b * s * 5 - 1), place),
    ):
        assert evaluate(e, values) == wanted


def test_bounds_against_expressions() -> None:
    b = symbol("B", 1, 64)
    i = symbol("i", 0, b - 1)
    assert is_below(i, b)
    assert not is_below(i + 1, b)
    assert is_at_least(b, 1)
    assert not is_at_least(i, 1)
    assert is_below(mod(i * 3, b), b)
    assert (most(b * 3), last(b), last(0), index_product([2, b])) == (192, b - 1, 0, 2 * b)
    assert slope(b * i + 3, i) is b
    assert slope(i * i, i) is None
    with pytest.raises(ValueError, match="no upper bound"):
        most(symbol("n"))
