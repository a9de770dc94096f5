"""CuPy functions and arrays. Skipped without CuPy and a device."""

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

pytestmark = pytest.mark.gpu
SPIN = """extern "C" __global__ void wait(long long cycles) {
    for (const long long start = clock64(); clock64() - start < cycles;) {}
}"""


def rand(*shape: int, dtype: Any = np.float32) -> Any:
    return cp.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def softmax(x: Any) -> Any:
    e = cp.exp(x - cp.max(x, axis=1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def same(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    assert type(found) is cp.ndarray
    assert (found.shape, found.dtype, found.strides) == (wanted.shape, wanted.dtype, wanted.strides)
    cp.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_rows(dtype: Any) -> None:
    x = rand(100, 333, dtype=dtype)
    same(fusec.jit(softmax, fallback="error")(x), softmax(x), 1e-5 if dtype != np.float16 else 2e-3)


@pytest.mark.parametrize("take", [lambda x: x[1:, ::2], lambda x: x.T, lambda x: x[:, ::-1], lambda x: x[:0]])
def test_layouts(take: Any) -> None:
    x = take(rand(64, 96))
    double = fusec.jit(lambda x: x * 2 + 1, fallback="error")
    cp.testing.assert_allclose(double(x), x * 2 + 1)


def test_product_and_reduction() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        y = cp.maximum(x @ w + b, 0)
        return y, y.sum()

    x, w, b = rand(130, 200), rand(200, 70), rand(70)
    y, total = fusec.jit(f, fallback="error")(x, w, b)
    wanted, wanted_total = f(x, w, b)
    cp.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    assert type(total) is cp.ndarray
    assert total.shape == ()
    cp.testing.assert_allclose(total, wanted_total, rtol=1e-4)


def test_in_place_and_globals() -> None:
    weight = rand(50)

    def f(x: Any) -> Any:
        x += weight
        return x * 2

    fast = fusec.jit(f, fallback="error")
    x, y = rand(20, 50), rand(20, 50)
    cp.testing.assert_allclose(fast(x), f(y))
    cp.testing.assert_allclose(x, y)
    weight *= 3
    cp.testing.assert_allclose(fast(x), f(y))


def test_a_library_call() -> None:
    def f(a: Any, b: Any) -> Any:
        return cp.linalg.solve(a + cp.eye(8, dtype=cp.float32) * 9, b) * 2

    a, b = rand(8, 8), rand(8)
    cp.testing.assert_allclose(fusec.jit(f)(a, b), f(a, b), rtol=1e-4)


def test_the_callers_stream() -> None:
    x = cp.zeros(1 << 22, cp.float32)
    double = fusec.jit(lambda x: x * 2 + 1, fallback="error")
    double(x)
    wait = cp.RawKernel(SPIN, "wait")
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        wait((1,), (1,), (np.int64(1),))
        x.fill(1)  # CuPy has loaded its kernel now, which waits for the device (filling with 0 runs none)
        double(x)  # memory of this stream is in the pool now
        stream.synchronize()
        wait((1,), (1,), (np.int64(1_000_000_000),))
        x.fill(3)
        y = double(x)
    assert not stream.done  # nothing waited for the device
    stream.synchronize()
    assert bool((y == 7).all())


def test_generated_source_compiles_as_a_raw_module() -> None:
    """The source is plain CUDA C++: CuPy compiles it, given the headers."""
    from pathlib import Path

    import fusec.codegen.cuda
    from fusec.codegen.cuda.build import module_source
    from fusec.ir.parse import parse
    from fusec.passes.pipeline import lower
    from fusec.target.gpu import gpu_target

    text = "graph @m(%x: f32[1000]) {\n  %y = exp(%x) : f32[1000]\n  return %y\n}"
    source = module_source(lower(parse(text), "cuda:0").program.kernels, gpu_target("cuda:0"))
    (kernel,) = source.kernels
    include = Path(fusec.codegen.cuda.__file__).parent / "include"
    module = cp.RawModule(code=kernel.text, options=("--std=c++17", "-default-device", f"-I{include}"))
    x, y = rand(1000), cp.zeros(1000, cp.float32)
    module.get_function(kernel.name)(kernel.grid, (kernel.threads,), (x, y), shared_mem=kernel.shared)
    cp.testing.assert_allclose(y, cp.exp(x), rtol=1e-6)
