"""Stores past the caches, elements fetched ahead, and quotients by a divisor that all lanes share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tile_harness import buffer, compare, const, iters, kernel, load, op, sym

import fusec
from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import bf16, bool_, f16, f32, f64, i8, i32
from fusec.passes.families.map.schedule import cpu as map_schedules
from fusec.target.cpu import cpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Grid, Iter, Store

V3 = cpu_target("cpu:x86-64-v3")
WIDE = cpu_target("cpu:x86-64-v4")


def doubled(rows: int, n: int, dtype=f32, non_temporal: bool = True) -> Kernel:
    """y = x + x, each row a task, the next row fetched meanwhile."""
    x, y = buffer("x", dtype, (rows, n)), buffer("y", dtype, (rows, n))
    r, i = sym("r", rows), sym("i", n)
    value = load(x, r, i) if dtype is bool_ else op("add", load(x, r, i), load(x, r, i))
    store = Store((Iter(i, n),), y, (r, i), value, non_temporal, (load(x, r + 1, i),))
    return kernel("doubled", (x, y), (Grid(iters((r, rows)), (store,)),))


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i32, i8, bool_], ids=str)
@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
def test_types(dtype, target):
    compare(doubled(3, 70, dtype), target=target)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100])
def test_tails(n):
    compare(doubled(1, n))
    compare(doubled(5, n))


@pytest.mark.parametrize("shift", [1, 3, 4, 8, 12])
@pytest.mark.parametrize("dtype", [f32, f64, bf16], ids=str)
def test_addresses_that_are_no_multiple_of_a_vector(shift, dtype):
    rows, n = 3, 96
    compiled = compile_kernels([doubled(rows, n, dtype)], cpu_target())
    source = np.arange(rows * n + 64).astype(np.float32).astype(dtype.numpy)
    for start in (0, shift):
        memory = np.zeros(rows * n + 128, dtype.numpy)
        aligned = -memory.ctypes.data % 64 // dtype.itemsize
        view = memory[aligned + start : aligned + start + rows * n]
        compiled.function("doubled")(source.ctypes.data, view.ctypes.data)
        assert (view == source[: rows * n] + source[: rows * n]).all()
        assert not memory[: aligned + start].any()
        assert not memory[aligned + start + rows * n :].any()


@pytest.mark.parametrize("target", [WIDE, V3], ids=["avx512", "avx2"])
def test_the_code(target):
    """Each task ends by waiting for its stores; other kernels do neither."""
    text = compile_kernels([doubled(4, 128)], target).assembly()
    assert "vmovnt" in text
    assert "sfence" in text
    assert "prefetcht0" in text
    usual = compile_kernels([doubled(4, 128, non_temporal=False)], target).assembly()
    assert "vmovnt" not in usual
    assert "sfence" not in usual


def test_arm_has_usual_stores():
    text = compile_kernels([doubled(4, 128)], cpu_target("cpu:neoverse-n1")).assembly()
    assert "stnp" not in text


@pytest.fixture
def streaming(monkeypatch, tmp_path):
    """Every result counts as a large one."""
    monkeypatch.setattr(map_schedules, "STREAMED", 1)
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))


FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "two results, one made of the other": lambda x: (torch.tanh(x), torch.tanh(x) * 2 + x),
    "a normalised row": lambda x: x / x.abs().sum(-1, keepdim=True),
    "columns": lambda x: x.T * 2,
    "in place": lambda x: x.mul_(2).add_(1),
    "into a part": lambda x: x[:, 1:].mul_(3),
    "a kernel that reads another's result": lambda x: torch.cumsum(torch.exp(x), 0) + 1,
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [(7, 33), (64, 256)], ids=str)
def test_functions(streaming, name, size):
    function = FUNCTIONS[name]
    x = torch.randn(size, generator=torch.Generator().manual_seed(1))
    compiled = fusec.jit(function)
    for source in (x, torch.randn(size[0], size[1] + 1)[:, 1:], torch.randn(size[::-1]).T):
        ours, theirs = source.clone(memory_format=torch.preserve_format), source.clone()
        torch.testing.assert_close(compiled(ours), function(theirs))
        torch.testing.assert_close(ours, theirs)


def quotients(n: int) -> Kernel:
    """y[i] = x[i] / d."""
    x, d, y = buffer("x", f32, (n,)), buffer("d", f32, (1,)), buffer("y", f32, (n,))
    i = sym("i", n)
    return kernel("quotients", (x, d, y), (Store((Iter(i, n),), y, (i,), op("div", load(x, i), load(d, 0))),))


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-38, -3e-39, 3.4e38, 1.0, -1.0]
DIVISORS = [*SPECIAL, 3.0, -7.1, 1e-20, 1e-30, 1e30, 2.0**100, 2.0**-100, 1.9999999, 0.99999994, 8.5e37, 1e38]


@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
def test_quotients_are_those_of_a_division(target):
    """But for dividends near the smallest numbers, whose rests lose digits: one unit of the last digit."""
    rng = np.random.default_rng(0)
    random = rng.normal(size=3000).astype(np.float32)
    x = np.concatenate([random, random * np.float32(1e30), random * np.float32(1e-25), np.float32(SPECIAL)])
    run = compile_kernels([quotients(len(x))], target).function("quotients")
    for number in [*DIVISORS, *rng.uniform(1, 2, 40)]:
        d, y = np.float32([number]), np.empty_like(x)
        run(x.ctypes.data, d.ctypes.data, y.ctypes.data)
        with np.errstate(all="ignore"):
            expected = x / d
        tiny = (np.abs(x) < 2.0**-100) & np.isfinite(expected)
        np.testing.assert_array_equal(y[~tiny], expected[~tiny], err_msg=str(number))
        np.testing.assert_array_max_ulp(y[tiny], expected[tiny], 1)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
def test_constants_divide_as_numbers_in_memory_do(target):
    """Lanes are multiplied by the reciprocal in two parts; by powers of two, and by unusual numbers, divided."""
    rng = np.random.default_rng(0)
    random = rng.normal(size=3000).astype(np.float32)
    x = np.concatenate([random, random * np.float32(1e30), random * np.float32(1e-25), np.float32(SPECIAL)])
    i = sym("i", len(x))
    numbers = [*DIVISORS, 2.0, 0.25, 5.656854249492381, 768.0, *rng.uniform(1, 2, 8)]
    kernels = []
    for k, number in enumerate(numbers):
        source, y = buffer("x", f32, (len(x),)), buffer("y", f32, (len(x),))
        divided = op("div", load(source, i), const(float(np.float32(number)), f32))
        kernels.append(kernel(f"by{k}", (source, y), (Store((Iter(i, len(x)),), y, (i,), divided),)))
    module = compile_kernels(kernels, target)
    for k, number in enumerate(numbers):
        y = np.empty_like(x)
        module.function(f"by{k}")(x.ctypes.data, y.ctypes.data)
        with np.errstate(all="ignore"):
            expected = x / np.float32(number)
        tiny = (np.abs(x) < 2.0**-100) & np.isfinite(expected)
        np.testing.assert_array_equal(y[~tiny], expected[~tiny], err_msg=str(number))
        np.testing.assert_array_max_ulp(y[tiny], expected[tiny], 1)
        given = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(y[given]), np.signbit(expected[given]))


@pytest.mark.parametrize(("number", "divides"), [(3.0, False), (-3.0, True), (2.0, False), (1e38, True)])
def test_no_vector_is_divided_by_a_usual_constant(number, divides):
    x, y, i = buffer("x", f32, (256,)), buffer("y", f32, (256,)), sym("i", 256)
    store = Store((Iter(i, 256),), y, (i,), op("div", load(x, i), const(number, f32)))
    text = compile_kernels([kernel("by", (x, y), (store,))], cpu_target("cpu:sapphirerapids")).assembly()
    assert ("vdivps" in text) == divides


def test_quotients_of_constants_and_of_whole_rows():
    x, y = buffer("x", f32, (40,)), buffer("y", f32, (40,))
    i = sym("i", 40)
    compare(kernel("k", (x, y), (Store((Iter(i, 40),), y, (i,), op("div", load(x, i), const(3.0, f32))),)))
    compare(kernel("k", (x, y), (Store((Iter(i, 40),), y, (i,), op("div", load(x, 3), load(x, i))),)))


@pytest.mark.parametrize(("name", "instruction"), [("znver5", "prefetcht0"), ("sapphirerapids", "prefetcht1")])
def test_what_is_fetched_ahead_goes_to_l2_on_intels_servers(name, instruction):
    x, y, i = buffer("x", f32, (64,)), buffer("y", f32, (64,)), sym("i", 64)
    store = Store((Iter(i, 64),), y, (i,), load(x, i), prefetch=(load(x, i),))
    text = compile_kernels([kernel("fetching", (x, y), (store,))], cpu_target(f"cpu:{name}")).assembly()
    assert instruction in text
    assert text.count("prefetch") == text.count(instruction)
