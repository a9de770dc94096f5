"""Kernels one after another behind one native call: order, offsets, failures, threads."""

from __future__ import annotations

import numpy as np
import pytest
from threads import at_once
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.codegen.tvm.module import CompiledModule
from fusec.errors import CodegenError
from fusec.ir.types import f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Grid, Iter, Store


def _kernel(name, function, n=64, blocks=1):
    """out = function(x), in so many blocks in parallel."""
    x, out = buffer("x", f32, (n,)), buffer("out", f32, (n,))
    b, i = sym("b", blocks), sym("i", n // blocks)
    at = b * (n // blocks) + i
    body = (Store(iters((i, n // blocks)), out, (at,), function(load(x, at))),)
    return kernel(name, (x, out), (Grid((Iter(b, blocks),), body),))


def _double(name="double", **more):
    return _kernel(name, lambda x: op("mul", x, const(2.0, f32)), **more)


def _increase(name="increase", **more):
    return _kernel(name, lambda x: op("add", x, const(1.0, f32)), **more)


@pytest.fixture(scope="module")
def module():
    return compile_kernels([_double(), _increase(), _increase("wide", n=64, blocks=8)], cpu_target())


def _run(module, launches, *values):
    run, table, kept = module.chain(launches)
    run(table, *values)
    del kept


def test_addresses_are_read_from_memory(module):
    x, out = np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    record = np.array([0, 0, x.ctypes.data, out.ctypes.data])
    launches = [("double", [(1, 16, 0), (1, 24, 256)]), ("increase", [(1, 24, 256), (2, 0, 0)])]
    _run(module, launches[:1], record.ctypes.data)
    np.testing.assert_array_equal(out[64:], x * 2)
    _run(module, launches, record.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out[:64], x * 2 + 1)


@pytest.mark.parametrize("saved", [False, True])
def test_kernels_run_in_order_on_sums_of_addresses(module, saved):
    if saved:
        module = CompiledModule.from_bytes(module.to_bytes())
    x, scratch, out = np.arange(64, dtype=np.float32), np.zeros(128, np.float32), np.zeros(64, np.float32)
    launches = [
        ("double", [(1, 0, 0), (2, 0, 256)]),
        ("wide", [(2, 0, 256), (2, 0, 0)]),
        ("double", [(2, 0, 0), (0, 0, out.ctypes.data)]),
    ]
    _run(module, launches, x.ctypes.data, scratch.ctypes.data)
    np.testing.assert_array_equal(out, (x * 2 + 1) * 2)


def test_no_kernels_are_run_too(module):
    _run(module, [])


def test_a_failing_kernel_ends_the_chain_with_its_error(module):
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    launches = [("double", [(1, 0, 0), (2, 0, 0)]), ("double", [(1, 0, 0)]), ("increase", [(2, 0, 0), (2, 0, 0)])]
    with pytest.raises(TypeError, match="double"):
        _run(module, launches, x.ctypes.data, out.ctypes.data)
    assert (out == 2).all()
    _run(module, launches[2:], x.ctypes.data, out.ctypes.data)
    assert (out == 3).all()


def test_a_chain_is_of_the_modules_own_kernels(module):
    with pytest.raises(CodegenError, match="no kernel 'other'"):
        module.chain([("other", [])])


def test_threads_run_one_chain_at_the_same_time(module):
    run, table, kept = module.chain([("wide", [(1, 0, 0), (2, 0, 0)]), *[("wide", [(2, 0, 0), (2, 0, 0)])] * 20])

    def work(seed):
        x = np.full(64, seed, np.float32)
        out = np.empty_like(x)
        for _ in range(200):
            run(table, x.ctypes.data, out.ctypes.data)
            assert (out == seed + 21).all()

    at_once(work, range(4))
    del kept
