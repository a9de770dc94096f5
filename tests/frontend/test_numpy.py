from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

sys.path.insert(0, str(Path(__file__).parent))
from numpy_harness import check

RNG = np.random.default_rng(0)
F32 = RNG.standard_normal((6, 8)).astype(np.float32)
G32 = RNG.standard_normal((6, 8)).astype(np.float32)
F64 = RNG.standard_normal((6, 8))
F16 = RNG.standard_normal((6, 8)).astype(np.float16)
I32 = RNG.integers(-5, 6, (6, 8)).astype(np.int32)
U8 = RNG.integers(0, 255, (6, 8)).astype(np.uint8)
B = RNG.random((6, 8)) > 0.5
M = RNG.standard_normal((8, 5)).astype(np.float32)
V = RNG.standard_normal(8).astype(np.float32)
T3 = RNG.standard_normal((3, 4, 5)).astype(np.float32)
POS = np.abs(F32) + np.float32(0.1)


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * g + b


def attention(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[0]
    scores = q @ k.T / np.sqrt(q.shape[-1])
    mask = np.triu(np.ones((n, n), dtype=bool), k=1)
    scores = np.where(mask, -np.inf, scores)
    return softmax(scores).astype(np.float32) @ v


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def stencil(x: Any) -> Any:
    out = np.zeros_like(x)
    out[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4
    return out


def recurrence(x: Any) -> Any:
    h = np.empty(x.shape, x.dtype)
    h[0] = x[0]
    for t in range(1, len(x)):
        h[t] = 0.5 * h[t - 1] + x[t]
    return h


def masked_fill(x: Any) -> Any:
    y = x.copy()
    y[y < 0] = 0
    y[np.isnan(x)] = 1.0
    return y


def views_alias(x: Any) -> Any:
    y = x * 2
    row = y[1]
    flat = y.ravel()
    row += 1
    y[:, 2] = 7
    flat[0] = -1
    y.T[3] *= 2
    return y, row, flat.copy()


def as_list(x: Any) -> Any:
    rows = [row * 2 for row in x]
    return np.stack(rows), np.array([r.sum() for r in rows]), {"first": rows[0]}


def in_place_chain(x: Any) -> Any:
    y = x.astype(np.float64)
    y -= y.mean(axis=0)
    y /= y.std(axis=0)
    np.maximum(y, 0, out=y)
    np.sqrt(y, out=y)
    return y


def fill_steps(x: Any) -> Any:
    y = np.zeros((6, 8), x.dtype)
    y[::2] = x[::2]
    y[1::2, ::-1] = x[:3]
    y[-1, 3:] += 5
    return y


def write_through(x: Any) -> Any:
    top = x.max()
    views = (top[...], top.reshape(1), top[None], np.atleast_1d(top), top.ravel())
    for view in views:
        view += 2
    return top, views


def local_import(x: Any) -> Any:
    import numpy
    from numpy import array as make

    return numpy.zeros(3) + make([x[0, 0], x[0, 1], 1.0])


CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("expression", lambda x: 1 / (1 + np.exp(-x)) * x + np.sqrt(np.abs(x)) * 2 - 1, (F32,)),
    ("softmax", softmax, (F32,)),
    ("layer_norm", layer_norm, (F32, V, V)),
    ("attention", attention, (F32, G32, G32)),
    ("gelu", gelu, (F32,)),
    ("gelu f64", gelu, (F64,)),
    ("stencil", stencil, (F32,)),
    ("recurrence", recurrence, (F32,)),
    ("masked fill", masked_fill, (F32,)),
    ("views alias", views_alias, (F32,)),
    ("lists", as_list, (F32,)),
    ("in place", in_place_chain, (F32,)),
    ("fill steps", fill_steps, (F32,)),
    ("local import", local_import, (F32,)),
    ("promotion i32/i32", lambda x: x / x.shape[0] + x // 3 + x % 3, (I32,)),
    ("u8 + 1", lambda x: (x + 1, x * 2.0, x > 300, x - x, ~x), (U8,)),
    ("f16", lambda x: (x * 2, x.sum(), np.exp(x), x.mean(axis=1)), (F16,)),
    ("bool", lambda b: (b + b, b * b, b & ~b, b | True, b ^ b, b.sum(), b.mean()), (B,)),
    ("i32 f32", lambda i, f: (i * f, i + np.float32(2), f + np.float64(2)), (I32, F32)),
    ("weak scalars", lambda x: (x + 1, x * 2.5, 2**x, x**2, x**0.5, x**-1, x**3, x**1.5), (POS,)),
    ("int power", lambda x: (x**2, x**3, np.power(x, 2), x**2.0), (I32,)),
    ("remainder", lambda x: (x % 3, x // -3, np.fmod(x, 3), np.divmod(x, 4), divmod(x, 3)), (I32,)),
    ("float remainder", lambda x: (x % 0.3, x // 0.3, np.fmod(x, 0.3)), (F32,)),
    ("div by zero", lambda x: (x // (x - x), x % (x - x)), (I32,)),
    ("unary", lambda x: [f(x) for f in (np.exp, np.log1p, np.sqrt, np.tanh, np.sin, np.square)], (POS,)),
    ("rounding", lambda x: (np.floor(x), np.ceil(x), np.rint(x), np.trunc(x), np.round(x, 2), x.round()), (F32 * 3,)),
    ("predicates", lambda x: (np.isnan(x), np.isinf(x), np.isfinite(x), np.signbit(x), np.sign(x)), (F32,)),
    ("int predicates", lambda x: (np.isnan(x), np.isfinite(x), np.floor(x), np.abs(x), np.sign(x)), (I32,)),
    ("binary", lambda x, y: (np.arctan2(x, y), np.hypot(x, y), np.copysign(x, y), np.fmax(x, y)), (F32, G32)),
    ("logaddexp", lambda x, y: (np.logaddexp(x, y), np.heaviside(x, 0.5), np.deg2rad(x)), (F32, G32)),
    ("logical", lambda x, y: (np.logical_and(x, y), np.logical_not(x), x & y, x << 2, x >> 1), (I32, I32)),
    ("compare", lambda x, y: (x == y, x != y, x < y, x >= 0, x < 1.5), (I32, F32)),
    ("where", lambda x, y: (np.where(x > 0, x, 0.0), np.where(x > y, x, y), np.where(x > 0, 1, 2)), (F32, G32)),
    ("where mixed", lambda x, y: np.where(y > 0, x, y), (F32, I32)),
    ("clip", lambda x: (np.clip(x, -0.5, 0.5), x.clip(0), np.clip(x, None, 1), x.clip(min=-1, max=1)), (F32,)),
    ("sums", lambda x: (x.sum(), x.sum(0), x.sum(axis=(0, 1)), np.sum(x, axis=1, keepdims=True)), (F32,)),
    ("int sums", lambda x: (x.sum(), x.prod(axis=1), x.cumsum(), np.cumsum(x, axis=1), x.mean(0)), (I32,)),
    ("sum dtype", lambda x: (x.sum(dtype=np.float64), np.mean(x, dtype=np.float64), x.sum(initial=3)), (F32,)),
    ("masked sums", lambda x: (x.sum(where=x > 0), np.max(x, where=x > 0, initial=-9), x.mean(where=x > 0)), (F32,)),
    ("extremes", lambda x: (x.max(), x.min(0), np.amax(x, 1), np.ptp(x, axis=0), np.maximum.reduce(x)), (F32,)),
    ("searches", lambda x: (x.argmax(), x.argmin(axis=1), np.argmax(x, 0, keepdims=True)), (F32,)),
    ("any all", lambda x: ((x > 0).any(), np.all(x > 0, axis=1), np.any(x, axis=0)), (F32,)),
    ("moments", lambda x: (x.var(), x.std(axis=0, ddof=1), np.std(x, axis=1, keepdims=True), np.var(x, 1)), (F32,)),
    ("int moments", lambda x: (x.var(axis=0), x.std(), np.average(x, axis=1)), (I32,)),
    ("ufunc methods", lambda x: (np.add.reduce(x), np.multiply.accumulate(x[0]), np.add.outer(x[0], x[1])), (F32,)),
    ("matmul", lambda x, m: (x @ m, np.matmul(x, m), np.dot(x, m), x.dot(m)), (F32, M)),
    ("products", lambda x, v: (x @ v, np.inner(x, v), np.outer(v, v), np.vdot(v, v), v @ v), (F32, V)),
    ("batched", lambda t: (t @ t.transpose(0, 2, 1), np.tensordot(t, t, axes=([1, 2], [1, 2])), t @ t[0].T), (T3,)),
    ("nd dot", lambda t, m: np.dot(t, m), (T3, T3.transpose(0, 2, 1).copy())),
    ("int matmul", lambda x: (x @ x.T, (x > 0) @ (x.T > 0)), (I32,)),
    (
        "einsum",
        lambda x, m: (np.einsum("ij,jk->ik", x, m), np.einsum("ij->j", x), np.einsum("ij,ij->", x, x)),
        (F32, M),
    ),
    ("einsum 3", lambda x, m, y: np.einsum("ij,jk,il->kl", x, m, y), (F32, M, G32)),
    ("einsum diag", lambda t: (np.einsum("ii->i", t[0, :, :4]), np.einsum("...ij,...kj->...ik", t, t)), (T3,)),
    ("views", lambda x: (x.T, x[1:4, ::2], x[::-1], x[..., None, 0], x.reshape(-1), x.reshape(4, 12)), (F32,)),
    ("views of fresh", lambda x: ((x * 2).T, (x + 1)[1:3], (x * 3).reshape(8, 6), np.swapaxes(x + 1, 0, 1)), (F32,)),
    ("elements", lambda x: (x[0, 0], x[0, ...], x[-1, -1], x[2], x[1:2, 3]), (F32,)),
    ("gather", lambda x: (x[[0, 2, -1]], x[:, [1, 1]], x[[0, 1], [2, 3]], x[np.arange(6), np.arange(6)]), (F32,)),
    ("gather new axes", lambda t: (t[:, None, [0, 2]], t[[0, 1], :, [1, 2]], t[0, :, [1, 2]], t[:, [0, 1], 1]), (T3,)),
    (
        "traced index",
        lambda x, i: (x[i], x[:, i[0]], np.take(x, i, axis=0), x[i[0, 0]]),
        (F32, np.array([[0, -1], [2, 5]])),
    ),
    (
        "take along",
        lambda x: (np.take(x, [0, 2], axis=1), x.take(3), x.repeat(2, axis=0), np.repeat(x, [1, 2] * 3, 0)),
        (F32,),
    ),
    ("constant mask", lambda x: x[np.arange(6) % 2 == 0], (F32,)),
    ("scatter rows", lambda x: _scattered(x), (F32,)),
    (
        "concat",
        lambda x, y: (np.concatenate([x, y]), np.vstack([x, y]), np.hstack((x, y)), np.stack([x, y], 1)),
        (F32, G32),
    ),
    (
        "concat mixed",
        lambda x, y: (np.concatenate([x, y], axis=1), np.column_stack([x[0], y[0]]), np.r_[1.0:3.0]),
        (F32, I32),
    ),
    ("split", lambda x: (np.split(x, 2), np.array_split(x, 4), np.hsplit(x, [3])), (F32,)),
    (
        "axes",
        lambda t: (np.moveaxis(t, 0, -1), np.expand_dims(t, 1), np.squeeze(t[:1]), np.transpose(t, (2, 0, 1))),
        (T3,),
    ),
    ("flips", lambda x: (np.flip(x), np.fliplr(x), np.rot90(x), np.roll(x, 2, axis=1), np.roll(x, -1)), (F32,)),
    ("tiles", lambda x: (np.tile(x, (2, 1)), np.repeat(x, 3), np.broadcast_to(x[0], (3, 8)) + 0), (F32,)),
    (
        "pads",
        lambda x: (np.pad(x, 1), np.pad(x, ((1, 0), (0, 2)), constant_values=3), np.pad(x, 2, mode="edge")),
        (F32,),
    ),
    ("pad reflect", lambda x: np.pad(x, ((0, 0), (2, 1)), mode="reflect"), (F32,)),
    ("triangles", lambda x: (np.tril(x), np.triu(x, 2), x * np.eye(6, 8, dtype=np.float32)), (F32,)),
    ("diagonals", lambda x: (np.diagonal(x) + 0, np.trace(x), np.diag(x[0])), (F32,)),
    ("differences", lambda x: (np.diff(x), np.diff(x, n=2, axis=0), np.gradient(x[0])), (F32,)),
    ("norms", lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1), np.linalg.norm(x[0], 1)), (F32,)),
    (
        "likes",
        lambda x: (np.zeros_like(x), np.ones_like(x, dtype=int), np.full_like(x, 2) + x, np.empty_like(x) * 0),
        (F32,),
    ),
    (
        "creation",
        lambda x: (x + np.arange(8), x * np.linspace(0, 1, 8), x + np.full(8, 2), np.ones((6, 1)) + x),
        (F32,),
    ),
    (
        "nan handling",
        lambda x: (np.nan_to_num(x), np.nansum(x, axis=0), np.nanmean(x), np.nanmax(x)),
        (np.where(B, F32, np.nan),),
    ),
    (
        "extremes of integers",
        lambda x: (np.nanmin(x), np.nanmax(x, axis=0), np.nanmin(x > 2, axis=-1, keepdims=True)),
        (np.arange(12).reshape(3, 4),),
    ),
    (
        "counts",
        lambda x: (
            np.count_nonzero(x, axis=0),
            np.count_nonzero(x.T, axis=0, keepdims=True),
            np.count_nonzero(x[0, 0]),
        ),
        (F32,),
    ),
    (
        "a ... for no axis keeps arrays and ints apart",
        lambda x: (x[:, 4, ..., [1, 0]], x[None, :, 4, ..., [1, 0]], x[..., 4, [1, 0]], x[[0, 1], ..., 2, 3]),
        (np.arange(70.0).reshape(2, 5, 7),),
    ),
    (
        "scalars stay scalars",
        lambda x: (x.max().T, np.transpose(x.max()), np.squeeze(x.max()), x.max().reshape(()), x.max().imag),
        (F32,),
    ),
    (
        "lists of bools",
        lambda x, b: (np.sum(x, axis=0, where=[True, False, True]), np.full_like(b, [True, False, True]) | b),
        (np.arange(6.0).reshape(2, 3), np.zeros((2, 3), bool)),
    ),
    ("bools are rounded to float16", lambda b: (np.round(b), b.round(), np.rint(b)), (B,)),
    ("views of scalars are copies", write_through, (F32,)),
    ("axes kept of none", lambda x: (x.sum(keepdims=True), np.argmin(x, keepdims=True)), (np.array(2.0),)),
    ("copies", lambda x: (x.copy(), np.array(x), np.asarray(x), x.flatten(), np.ascontiguousarray(x.T)), (F32,)),
    ("casts", lambda x: (x.astype(int), x.astype(bool), x.astype(np.float16), x.astype("f8", copy=False)), (F32,)),
    ("fortran", lambda x: (x + 1, x.sum(0), np.exp(x).T, np.zeros_like(x), x.mean(axis=1)), (np.asfortranarray(F32),)),
    ("strided input", lambda x: (x * 2, x[1:], x.T, x.reshape(-1)), (F64[::2, ::-3],)),
    ("zero size", lambda x: (x * 2, x.sum(0), x.sum(), x.T @ x, x.mean(axis=1)), (np.zeros((0, 3), np.float32),)),
    ("0-d", lambda x: (x + 1, x * x, np.exp(x), x.reshape(1), x[...], x[()]), (np.array(2.0, np.float32),)),
    (
        "metadata",
        lambda x: x * x.ndim + x.size + len(x) + x.itemsize + int(isinstance(x, np.ndarray)) + x.strides[0],
        (F32,),
    ),
    ("tuple result", lambda x: (x.shape, {"y": x + 1, "n": 3}, [x.T, None]), (F32,)),
    (
        "broadcast",
        lambda x, v: (x + v, x[:, :1] * v, np.broadcast_arrays(x, v)[1] + 0, np.add(x, v, dtype=np.float64)),
        (F32, V),
    ),
    ("nonlinear", lambda x: np.sinc(x) + np.log(np.cosh(x)) + np.expm1(x) * np.exp2(x), (F32,)),
    ("select", lambda x: np.select([x > 1, x < -1], [x * 2, x * 3], default=0), (F32,)),
    ("kron cross", lambda t: (np.kron(t[0, :2, :2], t[1, :2, :2]), np.cross(t[0, :, :3], t[1, :, :3])), (T3,)),
    ("matrix power", lambda x: np.linalg.matrix_power(x[:, :6], 3), (F32,)),
    ("cov", lambda x: np.cov(x), (F64,)),
    ("meshgrid", lambda v: np.meshgrid(v, v * 2)[1] + 0, (V,)),
    ("count", lambda x: np.count_nonzero(x > 0, axis=1), (F32,)),
    ("windows", lambda v: sliding_window_view(v, 3) @ np.arange(3, dtype=np.float32), (V,)),
    ("iterate", lambda x: sum(row for row in x) + max(3, len(x)), (F32,)),
    ("enumerate", lambda x: np.array([i * row.sum() for i, row in enumerate(x)]), (F32,)),
    ("np.int loop", lambda x: sum(x[i] for i in np.arange(3)), (F32,)),
    ("scalar accumulate", lambda x: _accumulated(x), (F32,)),
    ("out", lambda x: np.add(x, 1, out=np.empty_like(x)), (F32,)),
    ("u64 i64", lambda a, b: (a < b, a == b, b >= a, a + b), (I32.astype(np.int64), U8.astype(np.uint64))),
]


def _scattered(x: Any) -> Any:
    y = np.zeros_like(x)
    y[[4, 0]] = x[:2]
    y[:, [1, 3]] = 9
    return y


def _accumulated(x: Any) -> Any:
    total = 0.0
    for row in x:
        total += row.sum() * 2
    total += 1
    return total


@pytest.mark.parametrize(("f", "args"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_graph_gives_what_numpy_gives(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    check(f, *args, ulps=24)


def test_as_strided_windows_of_columns() -> None:
    a = RNG.standard_normal((10, 20)).astype(np.float32)
    b = RNG.standard_normal((20, 1000)).astype(np.float32)

    def f(a: Any, b: Any) -> Any:
        s0, s1 = b.strides
        windows = as_strided(b, shape=(981, 20, 20), strides=(s1, s0, s1))
        return a @ windows

    captured = check(f, a, b, ulps=200)
    assert [op.name for op in captured.graph.ops] == ["windows", "permute", "matmul"]
