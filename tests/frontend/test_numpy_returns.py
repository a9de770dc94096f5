"""Results are the arrays that NumPy gives: scalars or 0-d, strides, writeable flags, and whose memory they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_parity import agree

import fusec

A = np.arange(24.0).reshape(4, 6)
F = np.asfortranarray(A)
Z = A * (1 + 2j)


def program(text: str) -> Any:
    """A function of ``x`` of these statements."""
    names: dict[str, Any] = {"np": np}
    exec(compile("def f(x):\n" + "".join(f"    {line}\n" for line in text.split("; ")), "<program>", "exec"), names)
    return names["f"]


PROGRAMS = [
    ("y = x + 1; y[0] = 3; return y[:, ::2], y", A),
    ("return (x + 1)[:, ::2]", A),
    ("return (x + 1)[:, 2:3]", A),
    ("return (x + 1)[::-1]", A),
    ("return (x + 1)[:, ::-1][0]", A),
    ("return x.T.T, x.view(), x, x[...], x.T", A),
    ("y = x + 1; return y, y.view(), y.T, y", A),
    ("x += 1; return x.diagonal(), x[1:], x, x.view()", F),
    ("return x.diagonal(), np.diagonal(x, 1), np.diag(x)", A),
    ("return np.diagonal(x[:, :4]), np.einsum('ii->i', x[:, :4])", A),
    ("y = np.einsum('ii->i', x[:, :4]); y += 1; return x", A),
    ("return np.broadcast_to(x[0], (3, 6)), np.broadcast_to(x, x.shape)", A),
    ("return np.broadcast_arrays(x, x)[0]", A),
    ("return np.atleast_2d(x), np.asarray(x), x.squeeze(), x.reshape(x.shape), x.swapaxes(0, 0)", A),
    ("return np.lib.stride_tricks.as_strided(x, (3, 4), (0, 8))", A),
    ("return np.lib.stride_tricks.as_strided(x, (3, 4), (0, 8), writeable=False)", A),
    ("y = x + 1; return np.lib.stride_tricks.sliding_window_view(y, 3, axis=1), y", A),
    ("return np.full(3, 2.0), np.arange(4), x.sum()", A),
    ("return x + 1, x + 1, (x + 1)[1:], (x + 1).T", A),
    ("return np.flip(np.arange(3)) + 0 * x[0, :3].sum(), np.flip(np.arange(3)), np.atleast_2d(np.arange(4)), x + 1", A),
    ("return np.broadcast_to(np.arange(3), (2, 3)), x + 1", A),
    ("y = np.lib.stride_tricks.sliding_window_view(x, 1, axis=0); return y.cumsum(axis=-1), y", A),
    ("x //= 2; y = np.roll(x, 1); return y, np.power(x, y)", np.arange(3)[:, None] + 1),
    ("y = x ** 2; return y, x[0] ** 2", np.array([True, False])),
    ("return x + 1 if type(x) is np.ndarray and type(type(x)) is type else x - 1", A),
    ("return x.copy(), x.copy(), np.zeros(3), np.zeros(3)", A),
    ("return x.imag, x.T.imag, x[:, None].T.imag", A[:, ::2]),
    ("return x.imag, x.real, x.conj(), np.real(x), np.imag(x)", A),
    ("return np.real(x), np.imag(x)", Z),
    ("return np.tensordot(x, x), np.dot(x[0], x[1]), np.inner(x[0], x[0]), x[0] @ x[0]", A),
    ("return np.moveaxis(x, 0, 1), np.flip(x), np.rot90(x), np.expand_dims(x, 0)", A),
    ("return np.meshgrid(x[0], x[0], copy=False)", A),
    ("y = x + 1; y.flags.writeable = False; return y", A),
    ("y = x ** 2; z = y.view(); z.flags.writeable = False; return [y]", A),
    ("y = x + 1; z = y.view(); z.flags.writeable = False; return y, z, y.reshape(y.shape), y[...]", A),
    ("y = x + 1; z = y.T; y.flags.writeable = False; return y, z, y.view(), y.T", A),
    ("return np.array(x, ndmin=3), np.array(x, ndmin=3, copy=None), np.array(x, ndmin=3, order='F')", A),
    ("return x.ravel('K'), x.flatten('K'), x.ravel(), x.flatten('A'), x.ravel('F')", F),
    ("return x.ravel('K'), x.flatten('K'), x.ravel(), x.flatten('A'), x.ravel('F')", A[:, ::2]),
    ("return x[0].ravel('K'), x.T.flatten('K')", np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0)),
    ("return np.sort(x), np.sort(x, axis=0)", np.asfortranarray(A[::-1])),
    ("return np.asfortranarray(x), np.ascontiguousarray(x)", np.array(3.0)),
    ("return np.asfortranarray(x.sum()), np.ascontiguousarray(x.sum())", A),
    ("return x.diagonal(), x.diagonal(1), np.einsum('ii->i', x[:, :4])", F),
    ("return x.diagonal(), x.diagonal(1), x[1:].diagonal(), x[None].T", A[::2, ::2]),
    ("return x[:1, :, None].swapaxes(0, 2), x[None].T, x[:, None, :1].T", A[:, ::2]),
    ("return x.swapaxes(0, -1), x.T", np.arange(32).reshape(2, 8, 2)[::2, ::2, ::2]),
    ("return np.pad(x, 1), np.pad(x, 1, mode='edge'), np.pad(x[:, :1], 1), np.pad(x.T, 1)", F),
    ("return x[[0, -1]], x[[[0, -1]]], x[:, [0, 0]], x[[True]], x.take([0, 0], 0)", A[None, :1]),
    ("return x[[0, 0]], x[[0, 0], :, [0, 0]], x[:, [0]]", A[:, None, ::2]),
    ("return np.broadcast_to(x, (2, 4, 6))[:0], x[:0], np.broadcast_to(x, (2, 4, 6))[::-2, :0]", A),
    ("c = np.arange(6); return c, c[::2], c.reshape(2, 3).T, c, x + 1", A),
    ("c = np.arange(6).reshape(2, 3).T; return c, c[::-1], c[1:], x + 1", A),
    ("c = np.atleast_2d(np.arange(4)); return c, c[0], c.view(float), x + 1", A),
    ("c = np.arange(6); d = c[1:]; c.flags.writeable = False; return c, d, x + 1", A),
    ("c = np.arange(6); d = c[1:]; d.flags.writeable = False; return d, c, d[1:], x + 1", A),
    ("c = np.frombuffer(b'abcdefgh', np.uint8)[::2]; return c, c[1:], x + 1", A),
    ("return np.round(x), x.round(2), np.round(x.astype(float))", np.array(3)),
    ("c = np.ones(4, complex); return c.real, c.imag, x + 1", A),
]


@pytest.mark.parametrize(("text", "x"), PROGRAMS, ids=[text for text, _ in PROGRAMS])
def test_results_lie_where_numpys_do(text: str, x: Any) -> None:
    agree(program(text), x)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_empty_array_is_returned_itself(shape: tuple[int, ...], order: Any) -> None:
    x = np.zeros(shape, order=order)
    for same in (lambda x: x, np.asarray, np.asfortranarray, lambda x: x.astype(float, copy=False), np.squeeze):
        made, right = fusec.jit(same)(x), same(x)
        assert (made is x, made.base is x, made.flags.owndata) == (right is x, right.base is x, right.flags.owndata)
    first, second = fusec.jit(lambda x: (x, x[:]))(x)
    assert first is x
    assert second.base is x


ORDERS = [
    "return 2 - x, x + x, -x, x < 2, np.isnan(x)",
    "return x * 1.0, x * 2, x + np.float32(1), x.astype(int) + x",
    "return np.where(x > 2, x, 1), np.where(x > 2, 0, 1), np.where(True, x, x)",
    "return np.clip(x, 1, 3), np.clip(x, x, 3), x.clip(0)",
    "return x.copy('K'), x.astype(np.float32), np.zeros_like(x), np.array(x), x.copy('A')",
    "return np.array(np.sort(x), order='F'), np.array(np.sort(x, 0)[:, :1], order='F')",
    "return x.ravel('F'), x.reshape(-1, order='F')",
    "return x.cumsum(0), x.sum(0, keepdims=True), x.max(-1), np.concatenate([x, x], 1), x[[0]]",
]
GAPPED = np.arange(160.0).reshape(8, 10, 2)[::2, ::2, ::2]
LAYOUTS = {
    "a gap": GAPPED.T,
    "a gap, integers": GAPPED.astype(int)[:, ::2].T,
    "dense": GAPPED.copy().T,
    "one in the middle": GAPPED.transpose(1, 2, 0),
    "backwards": GAPPED[::-1].T,
    "one element, backwards": np.ones((1, 1, 1))[::-1, ::-1],
    "a column": np.arange(4.0)[:, None],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", ORDERS)
def test_axes_of_one_element_lie_where_numpys_do(text: str, layout: str) -> None:
    agree(program(text), LAYOUTS[layout])


@pytest.mark.parametrize(
    "shown", ["windows(v, 1)", "windows(v, 4)", "windows(v, 2).view()", "np.broadcast_to(v, (2, 4))"]
)
def test_views_of_arrays_that_are_the_same_at_each_call_lie_in_them(shown: str) -> None:
    agree(program(f"windows = np.lib.stride_tricks.sliding_window_view; v = np.arange(4.0); return v, {shown}, x"), A)


@pytest.mark.parametrize("x", [np.array([3, 3, 2])[::-1], A[::-1], A[:, ::-1]], ids=["numbers", "rows", "columns"])
@pytest.mark.parametrize("write", ["x.sort()", "x += v", "x[1:] = v[:-1]", "x[...] = v.sum() + x", "x[::-1] = x + v"])
def test_what_is_written_backwards_is_read_before(write: str, x: Any) -> None:
    agree(program(f"v = x * 3; {write}; v[0] += 1; return v"), x)


@pytest.mark.parametrize(
    "call", ["x, -1, 300", "x, 2, 100", "x, None, None", "x, 1.5, 2", "3, x, 5", "[3] * 6, x, 5", "x, x, 3"]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_clip_is_the_ufunc_that_numpy_takes(call: str, dtype: Any) -> None:
    agree(program(f"return np.clip({call}), np.clip({call}, dtype=float), x.clip(max=9)"), A.astype(dtype))


def test_what_is_read_only_stays_so() -> None:
    frozen = A.copy()
    frozen.flags.writeable = False
    agree(program("return x[1:], x, x + 1"), frozen)


def test_a_program_that_writes_is_not_for_a_read_only_array() -> None:
    import fusec

    def f(x: Any) -> Any:
        x[1] = 2 * x[0]
        return x

    jitted = fusec.jit(f)
    jitted(A.copy())
    frozen = A.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        jitted(frozen)
    assert np.array_equal(frozen, A)
    compiled = fusec.compile(f, A.copy())
    with pytest.raises(ValueError, match="read-only"):
        compiled(frozen)
    assert np.array_equal(frozen, A)


def test_a_constant_that_is_returned_is_new_at_each_call() -> None:
    import fusec

    def f(x: Any) -> Any:
        return x + 1, np.arange(3.0)

    jitted = fusec.jit(f)
    for _ in range(3):
        _, constant = jitted(A)
        np.testing.assert_array_equal(constant, np.arange(3.0))
        constant += 5


@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("return x.astype(float, order='A', copy=False)", np.ones((4, 6))[::2, ::2]),
        ("return x.astype(float, order='A', copy=False)", np.ones((2, 3, 4)).transpose(1, 0, 2)),
        ("return x.astype(float, order='A', copy=False)", np.ones((2, 3)).T),
        ("return np.broadcast_arrays(x, x[0])", A),
        ("return np.broadcast_arrays(x[0], x, 1.0)", A),
        ("return x == np.str_('a'), x != np.str_('a')", A),
        ("return x == np.datetime64('2020')", A),
        ("return x.max(), x.min(0)", A + 1j),
    ],
)
def test_arrays_that_numpy_gives_back_and_operands_that_are_no_numbers(text: str, x: Any) -> None:
    agree(program(text), x)
