"""NumPy functions on a GPU: arrays in host memory, chunk by chunk. Skipped without CuPy and a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytest.importorskip("triton")
try:
    if not cp.cuda.runtime.getDeviceCount():
        pytest.skip("no CUDA device", allow_module_level=True)
except cp.cuda.runtime.CUDARuntimeError:
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.runtime import host, staging  # noqa: E402

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)


def rand(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def scores(x: Any, w: Any, b: Any) -> Any:
    h = np.maximum(x @ w + b, 0)
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), h.sum(-1)


def close(found: Any, wanted: Any) -> None:
    assert (type(found), found.shape, found.dtype, found.strides) == (
        type(wanted),
        wanted.shape,
        wanted.dtype,
        wanted.strides,
    )
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("batch", [1, 2, 7, 13, 64])
def test_chunks(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CHUNK_BYTES", 1 << 16)
    args = rand(batch, 33, 40), rand(40, 24), rand(24)
    fast = fusec.jit(scores, target="cuda", fallback="error")
    for _ in range(2):
        for found, wanted in zip(fast(*args), scores(*args), strict=True):
            close(found, wanted)


def test_a_large_array_that_comes_again_is_pinned_where_it_lies() -> None:
    x, w = rand(64, 256, 1024), rand(1024)
    fast = fusec.jit(lambda x, w: np.tanh(x) * w, target="cuda", fallback="error")
    wanted = np.tanh(x) * w
    for pinned in (False, True, True):
        close(fast(x, w), wanted)
        assert staging.is_pinned(x) is pinned
    x[:] = rand(64, 256, 1024)
    close(fast(x, w), np.tanh(x) * w)
    close(fast(x[3:], w), np.tanh(x[3:]) * w)


def test_explain_tells_of_the_chunks() -> None:
    args = rand(64, 33, 40), rand(40, 24), rand(24)
    text = fusec.explain(fusec.jit(scores, target="cuda"), *args)
    assert "64 elements of a batch" in text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: (x * 2).sum(),
        lambda x: np.asfortranarray(x * 2),
        lambda x: x.T * 2,
    ],
)
def test_without_chunks(function: Any) -> None:
    x = rand(50, 60)
    found, wanted = fusec.jit(function, target="cuda", fallback="error")(x), function(x)
    if isinstance(wanted, np.ndarray):
        close(found, wanted)
    else:
        assert type(found) is type(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("take", [lambda x: x[::2], lambda x: x[:, ::-1], lambda x: x[:, 3:, :5], lambda x: x[:0]])
def test_strided_arguments(take: Any) -> None:
    x = take(rand(32, 30, 20))
    close(fusec.jit(lambda x: x * 2 + 1, target="cuda", fallback="error")(x), x * 2 + 1)


def test_in_place() -> None:
    def f(x: Any) -> Any:
        x *= 3
        return x.sum(1)

    x, y = rand(40, 50), None
    y = x.copy()
    close(fusec.jit(f, target="cuda", fallback="error")(x), f(y))
    np.testing.assert_array_equal(x, y)


def test_results_are_the_callers_own() -> None:
    double = fusec.jit(lambda x: x * 2, target="cuda", fallback="error")
    x = rand(64, 256)
    first = double(x)
    kept = first.copy()
    second = double(x + 1)
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    first += 1  # it may be written to


def test_pinned_memory_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(cp.cuda, "alloc_pinned_memory", refuse)
    x = rand(64, 1000)
    close(fusec.jit(lambda x: x * 2, target="cuda", fallback="error")(x), x * 2)


def test_a_pinned_argument_needs_no_staging() -> None:
    x = staging.pinned_empty((64, 1000), np.dtype(np.float32))
    x[...] = rand(64, 1000)
    assert staging.is_pinned(x)
    assert not staging.is_pinned(rand(10))
    close(fusec.jit(lambda x: x * 2, target="cuda", fallback="error")(x), x * 2)


def test_more_than_the_card_may_hold() -> None:
    """A pool limited to a few chunks takes a batch many times as large."""
    pool = cp.get_default_memory_pool()
    x = rand(256, 1 << 18)
    double = fusec.jit(lambda x: x * 2 + 1, target="cuda", fallback="error")
    pool.free_all_blocks()
    pool.set_limit(size=max(pool.used_bytes(), 1) + 320 * 2**20)
    try:
        assert x.nbytes * 2 > 320 * 2**20
        close(double(x), x * 2 + 1)
    finally:
        pool.set_limit(size=0)
