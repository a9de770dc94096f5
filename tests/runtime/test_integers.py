"""Integer arguments that change: one program for a range of them, where the function does the same for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.frontend.structures import CallSpec, Static
from fusec.notices import InternalErrorWarning
from fusec.runtime.integers import IntegersSeen, integers_in

torch = pytest.importorskip("torch")

Function = Callable[..., Any]
TABLE = [1.0] * 77 + [2.0] * 200


def written(x: Any, n: Any) -> Any:
    x[n] = 1
    return x + 0


def slice_written(x: Any, n: Any) -> Any:
    x[:, 1:3] = 0.5
    x[n : n + 2, 2:] = x[0, 2:] * 2
    return x[:n].sum() + x[n:].sum()


def guarded(x: Any, n: Any) -> Any:
    if n >= 1000:
        raise ValueError(n)
    return x[n - 1] * 2


def scaled(x: Any, n: Any) -> Any:
    return x * n + n


def stepped(x: Any, n: Any) -> Any:
    x[n + 1] = 0.25 * x[n] + 0.5 * x[n - 1]
    return x[n + 1].sum()


def told_apart(x: Any, n: Any) -> Any:
    return x * 2 if n == 77 else x * 3


def parity(x: Any, n: Any) -> Any:
    return x[n] if n % 2 else x[n] * 2


def counted(x: Any, n: Any) -> Any:
    for _ in range(n % 10):
        x = x + 1
    return x


def from_a_table(x: Any, n: Any) -> Any:
    return x * TABLE[n]


def named(x: Any, n: Any) -> Any:
    return x.sum(0) if f"{n}" == "77" else x.max()


def checked_kind(x: Any, n: Any) -> Any:
    return x * 3 if isinstance(n, int) and n == 77 else x[n]


def kind_asked(x: Any, n: Any) -> Any:
    return x * 3 if type(n) is int and n == 77 else x[n]


def attribute_asked(x: Any, n: Any) -> Any:
    return x * 3 if hasattr(n, "bit_length") and n == 77 else x[n]


def refusal_handled(x: Any, n: Any) -> Any:
    try:
        return x * TABLE[n]
    except Exception:
        return x


def rows_told_apart(x: Any, n: Any) -> Any:
    part = x[:n]
    return part * 3 if part.shape[0] == 77 else part * 2


def length_told_apart(x: Any, n: Any) -> Any:
    part = x[n:]
    return part * 3 if len(part) == 200 - 77 else part * 2


def stride_told_apart(x: Any, n: Any) -> Any:
    part = x[:n].T
    part = part.contiguous() if hasattr(part, "contiguous") else np.ascontiguousarray(part)
    strides = part.stride() if hasattr(part, "stride") else part.strides
    return part * 3 if strides[0] in (77, 77 * 4) else part * 2


def shapes_compared(x: Any, n: Any) -> Any:
    part, other = x[:n], x[: 2 * n - 77 if n > 50 else 3]
    return part + other if part.shape == other.shape else part * 2


def shapes_used(x: Any, n: Any) -> Any:
    part = x[:n]
    rows, columns = part.shape
    if rows > 0 and rows <= 1000:
        part = part.reshape(rows * 2, columns // 2).reshape(part.shape)
    return part * (rows + columns) + x[rows - 1]


ONE_PROGRAM = (written, slice_written, guarded, scaled, stepped, shapes_used)
A_PROGRAM_EACH = (
    *(told_apart, parity, counted, from_a_table, named, checked_kind, kind_asked, attribute_asked, refusal_handled),
    *(rows_told_apart, length_told_apart, stride_told_apart, shapes_compared),
)
NUMBERS = (5, 6, 9, 77, 150, 2, 1)


def check(function: Function, make: Callable[[np.ndarray[Any, Any]], Any], numbers: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    jitted = fusec.jit(fallback="error")(function)
    for n in numbers:
        array = rng.random((200, 6)).astype(np.float32)
        ours, theirs = make(array.copy()), make(array.copy())
        np.testing.assert_allclose(jitted(ours, n), function(theirs, n), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    return jitted.dispatcher


@pytest.mark.parametrize("function", ONE_PROGRAM, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_one_program_for_a_range(function: Function, make: Any) -> None:
    dispatcher = check(function, make, NUMBERS)
    assert len(dispatcher.plans) == 3  # for 5, for 2 and more, for 1


@pytest.mark.parametrize("function", A_PROGRAM_EACH, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_program_for_each_where_they_differ(function: Function, make: Any) -> None:
    dispatcher = check(function, make, (5, 6, 77))
    assert len(dispatcher.plans) == 3


def test_the_last_places_and_past_the_end() -> None:
    jitted = fusec.jit(fallback="error")(written)
    ours, theirs = torch.zeros(40, 3), torch.zeros(40, 3)
    for n in range(30, 40):
        torch.testing.assert_close(jitted(ours, n), written(theirs, n))
    for wrong in (40, 41, -41):
        with pytest.raises(IndexError):
            jitted(ours, wrong)
    torch.testing.assert_close(ours, theirs)
    assert len(jitted.dispatcher.plans) <= 3


def positions(x: Any, *, start: int, count: int) -> Any:
    angles = torch.outer(torch.arange(start, start + count).float(), torch.tensor([1.0, 0.5]))
    return torch.cos(angles) * x[:count, :2]


def test_places_made_of_an_integer_by_name() -> None:
    jitted = fusec.jit(fallback="error")(positions)
    for start in (3, 8, 30, 4000):
        x = torch.randn(5, 3)
        torch.testing.assert_close(jitted(x, start=start, count=2), positions(x, start=start, count=2))
    assert len(jitted.dispatcher.plans) <= 4


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.register_buffer("keys", torch.zeros(1, 4, 48, 8))
        self.register_buffer("values", torch.zeros(1, 4, 48, 8))

    def forward(self, x: Any, start: int) -> Any:
        count = x.shape[1]
        q, k, v = (t.view(1, count, 4, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.keys[:, :, start : start + count] = k
        self.values[:, :, start : start + count] = v
        end = start + count
        return torch.nn.functional.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end])


def test_a_cache_of_keys_written_token_by_token() -> None:
    ours, theirs = Layer().requires_grad_(False), Layer().requires_grad_(False)
    theirs.load_state_dict(ours.state_dict())
    jitted = fusec.jit(fallback="error")(ours)
    x = torch.randn(1, 5, 32)
    torch.testing.assert_close(jitted(x, 0), theirs(x, 0), rtol=1e-4, atol=1e-5)
    for start in range(5, 48):
        x = torch.randn(1, 1, 32)
        torch.testing.assert_close(jitted(x, start), theirs(x, start), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-5)
    plans = jitted._fusec.dispatcher.plans
    assert len(plans) <= 4
    assert "copy_(" not in plans[-1].executable.source


def test_trials_end() -> None:
    seen = IntegersSeen()

    def spec(*numbers: int) -> CallSpec:
        return CallSpec(tuple(map(Static, (*numbers, True, "x"))), ())

    assert integers_in(spec(4, 5)) == [4, 5]
    assert seen.opening("kind", spec(4, 5)) is None
    assert seen.opening("kind", spec(4, 1)) is None  # below the least
    opened = seen.opening("kind", spec(4, 9))
    assert opened is not None
    assert list(opened.symbols) == [1]
    assert seen.opening("other kind", spec(4, 10)) is None
    seen.close("kind", opened)
    assert seen.opening("kind", spec(4, 10)) is None
    for n in range(11, 30):
        seen.opening("kind", spec(n, n))
    assert seen.opening("kind", spec(30, 31)) is None


def test_equal_integers_share_a_symbol() -> None:
    def f(x: Any, a: int, b: int) -> Any:
        return x[a:].sum() + x[:b].sum()

    jitted = fusec.jit(fallback="error")(f)
    x = torch.randn(30)
    for a, b in ((3, 3), (4, 4), (9, 9), (9, 12), (5, 5)):
        torch.testing.assert_close(jitted(x, a, b), f(x, a, b))


def makes_a_table(x: Any, k: int) -> Any:
    return x * torch.tensor([k, 1, 2])


def returns_what_it_makes(x: Any, k: int) -> Any:
    return x + 1, np.arange(3) * k


def returns_nothing_else(x: Any, k: int) -> Any:
    return np.arange(3) * k


@pytest.mark.parametrize(
    ("f", "make"), [(makes_a_table, torch.ones), (returns_what_it_makes, np.ones), (returns_nothing_else, np.ones)]
)
def test_arrays_made_of_an_integer_are_not_kept(f: Any, make: Any) -> None:
    fast = fusec.jit(f, fallback="error")
    for k in (4, 5, 6, 3, 40, 2, 4):
        x = make(3)
        found, expected = fast(x, k), f(x, k)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("f", [lambda x: (x + 1, np.arange(3) * x.shape[0]), lambda x: np.arange(3) * x.shape[0]])
def test_arrays_made_of_an_extent_are_not_kept(f: Any) -> None:
    fast = fusec.jit(f, dynamic=True)
    for n in (3, 4, 5, 6, 7):
        for one, other in zip(fast(np.ones(n)), f(np.ones(n)), strict=True):
            np.testing.assert_array_equal(one, other)


def with_a_constant_nan(x: Any, k: int) -> Any:
    return x * k + torch.tensor([np.nan, 1, 2])


def test_a_constant_with_nan_serves_a_range() -> None:
    fast = fusec.jit(with_a_constant_nan, fallback="error")
    for k in (4, 5, 6, 3):
        torch.testing.assert_close(fast(torch.ones(3), k), with_a_constant_nan(torch.ones(3), k), equal_nan=True)
    assert len(fast.dispatcher.plans) == 2


def test_what_pytorch_refuses_at_other_integers() -> None:
    def f(x: Any, n: int) -> Any:
        try:
            return x[:n] + x[: 78 - n]  # fits where n is 39 or 77
        except RuntimeError:
            return x[:n]

    fast = fusec.jit(f)
    x = torch.randn(100, 3)
    for n in (50, 51, 60, 77, 39, 76):
        torch.testing.assert_close(fast(x, n), f(x, n))


def test_an_index_past_the_end_is_no_fault_of_fusecs() -> None:
    def f(x: Any, i: int) -> Any:
        x.add_(1)
        return x[i]

    jitted, x = fusec.jit(f), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InternalErrorWarning)
        jitted(x, 1)
        with pytest.raises(IndexError):
            jitted(x, 5)
    assert x.eq(3).all()


def test_as_many_keys_as_queries() -> None:
    def attend(x: Any, n: int) -> Any:
        q, k = x[None, None, :4], x[None, None, :n]
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=q.shape[2] == k.shape[2])

    fast = fusec.jit(attend)
    x = torch.randn(30, 8)
    for n in (9, 10, 11, 4, 5):
        torch.testing.assert_close(fast(x, n), attend(x, n), rtol=1e-4, atol=1e-5)
