"""Compiled modules: their text, their bytes, threads, other targets."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tile_harness import buffer, compare_compiled, const, iters, kernel, load, op, sym, tile

import fusec
from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.build import compile_kernels
from fusec.codegen.tvm.module import CompiledModule
from fusec.errors import ArtifactError, CodegenError, LoweringError
from fusec.ir.types import c64, f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Map, Reduce, RegisterTile, Store

GOLDEN = Path(__file__).parent / "golden"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


def add_kernel(n=40):
    x, y, out, i = buffer("x", f32, (n,)), buffer("y", f32, (n,)), buffer("out", f32, (n,)), sym("i", n)
    return kernel("add", (x, y, out), (Store(iters((i, n)), out, (i,), op("add", load(x, i), load(y, i))),))


def row_kernel():
    """exp of each row over its sum."""
    x, out = buffer("x", f32, (64, 40)), buffer("out", f32, (64, 40))
    b, i, j = sym("b", 8), sym("i", 8), sym("j", 40)
    total, scratch = tile("total", f32, (8,)), tile("scratch", f32, (8, 40), (48, 1))
    rows = iters((i, 8), (j, 40))
    body = (
        Alloc(scratch),
        Map(rows, scratch, (i, j), op("exp", load(x, 8 * b + i, j))),
        Alloc(total),
        Reduce(rows, total, (i,), "sum", load(scratch, i, j)),
        Store(rows, out, (8 * b + i, j), op("div", load(scratch, i, j), load(total, i))),
    )
    return kernel("row", (x, out), (Grid((Iter(b, 8),), body),), kind="row")


def gemm_kernel():
    a, b, c = buffer("a", f32, (10, 24)), buffer("b", f32, (24, 32)), buffer("c", f32, (10, 32))
    i, j, s = sym("i", 10), sym("j", 32), sym("s", 24)
    acc = tile("acc", f32, (12, 32))
    dot = Dot(
        Iter(i, 10), Iter(j, 32), Iter(s, 24), load(acc, i, j), load(a, i, s), load(b, s, j), True, RegisterTile(4, 32)
    )
    store = Store(iters((i, 10), (j, 32)), c, (i, j), op("maximum", load(acc, i, j), const(0.0, f32)))
    return kernel("gemm", (a, b, c), (Alloc(acc), dot, store), kind="gemm")


@pytest.mark.parametrize("make", [add_kernel, row_kernel, gemm_kernel])
def test_golden_source(make):
    """UPDATE_GOLDEN=1 writes the files anew."""
    k = make()
    text = compile_kernels([k], cpu_target("cpu:x86-64-v4")).source(k.name)
    path = GOLDEN / f"{k.name}.py.txt"
    if UPDATE:
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


def test_several_kernels_in_one_module():
    kernels = [add_kernel(), row_kernel(), gemm_kernel()]
    compiled = compile_kernels(kernels, cpu_target())
    for k in kernels:
        compare_compiled(compiled, k, atol=1e-5)
    with pytest.raises(CodegenError, match="no kernel 'other'"):
        compiled.function("other")
    assert "vaddps" in compiled.assembly()
    assert "define" in compiled.llvm()


def test_names_must_differ():
    with pytest.raises(CodegenError, match="same name"):
        compile_kernels([add_kernel(), add_kernel()], cpu_target())


def test_types_without_registers_are_refused():
    x, out, i = buffer("x", c64, (4,)), buffer("out", c64, (4,)), sym("i", 4)
    with pytest.raises(LoweringError, match="c64"):
        compile_kernels([kernel("k", (x, out), (Store(iters((i, 4)), out, (i,), load(x, i)),))], cpu_target())


def test_bytes_round_trip():
    kernels = [add_kernel(), row_kernel()]
    data = compile_kernels(kernels, cpu_target()).to_bytes()
    loaded = CompiledModule.from_bytes(data)
    for k in kernels:
        compare_compiled(loaded, k, atol=1e-5)
    assert loaded.to_bytes() == data, "a module from the cache can be saved"
    with pytest.raises(ArtifactError, match="not the bytes"):
        CompiledModule.from_bytes(b"something else")
    with pytest.raises(ArtifactError, match="checksum"):
        CompiledModule.from_bytes(data[: len(data) // 2])


def _mapped():
    """Pieces of deleted files in memory: loaded modules'."""
    return Path("/proc/self/maps").read_text().count(".so (deleted)")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list what is mapped")
def test_a_loaded_module_goes_with_the_last_of_its_functions():
    data = compile_kernels([row_kernel()], cpu_target()).to_bytes()
    x, out = np.ones((64, 40), np.float32), np.zeros((64, 40), np.float32)
    gc.collect()
    before = _mapped()
    module = CompiledModule.from_bytes(data)
    function, (chain, table, kept) = module.function("row"), module.chain([("row", [(1, 0, 0), (2, 0, 0)])])
    assert _mapped() > before
    del module
    gc.collect()
    function(x.ctypes.data, out.ctypes.data)
    del function
    chain(table, x.ctypes.data, out.ctypes.data)
    assert abs(out - 1 / 40).max() < 1e-7
    del chain, kept
    assert _mapped() == before


def test_bytes_without_a_linker(monkeypatch):
    monkeypatch.setenv("PATH", "")
    data = compile_kernels([row_kernel()], cpu_target()).to_bytes()
    compare_compiled(CompiledModule.from_bytes(data), row_kernel(), atol=1e-5)


LOADER = """
import sys
import numpy as np
from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.module import CompiledModule
openmp = sys.argv[2] == "openmp"
if not openmp:
    parallel._openmp = lambda: None
function = CompiledModule.from_bytes(open(sys.argv[1], "rb").read()).function("row")
x = np.ones((64, 40), np.float32)
for threads in (2, 1):
    parallel.set_threads(threads)
    out = np.zeros_like(x)
    function(x.ctypes.data, out.ctypes.data)
    assert abs(out - 1 / 40).max() < 1e-7
assert ("tvm" in sys.modules) != openmp, "the compiler is loaded for its thread pool only"
"""


@pytest.mark.parametrize("threads", [pytest.param("openmp", marks=pytest.mark.nightly), "tvm's own"])
def test_another_process_runs_the_bytes_without_the_compiler(tmp_path, threads):
    path = tmp_path / "module"
    path.write_bytes(compile_kernels([row_kernel()], cpu_target()).to_bytes())
    subprocess.run([sys.executable, "-c", LOADER, str(path), threads], check=True)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads(count):
    compiled = compile_kernels([row_kernel()], cpu_target())
    parallel.set_threads(count)
    try:
        compare_compiled(compiled, row_kernel(), atol=1e-5)
    finally:
        parallel.set_threads(len(os.sched_getaffinity(0)))
    with pytest.raises(ValueError, match="at least one thread"):
        parallel.set_threads(0)


def test_kernels_run_in_many_python_threads():
    compiled = compile_kernels([row_kernel()], cpu_target())
    function = compiled.function("row")
    failures = []

    def work():
        x = np.random.default_rng(0).normal(size=(64, 40)).astype(np.float32)
        out = np.zeros_like(x)
        expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        for _ in range(50):
            out[:] = 0
            function(x.ctypes.data, out.ctypes.data)
            if not np.allclose(out, expected, rtol=1e-5):
                failures.append(out)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_launching_leaves_the_affinity_of_the_caller_alone():
    before = os.sched_getaffinity(0)
    compare_compiled(compile_kernels([row_kernel()], cpu_target()), row_kernel(), atol=1e-5)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cpu:sapphirerapids", "cpu:znver5", "cpu:haswell"])
def test_other_processors(name):
    target = cpu_target(name)
    compiled = compile_kernels([add_kernel(), row_kernel(), gemm_kernel()], target)
    assert ("zmm" in compiled.assembly()) == (target.vector_bits == 512)
    assert compiled.to_bytes()


def test_a_number_divided_by_zero_has_a_source() -> None:
    text = "graph @g(%x: f32[4, 0]) {\n  %v = var(%x) {axes=[1]} : f32[4]\n  %y = sin(%v) : f32[4]\n  return %y\n}\n"
    sources = [kernel.source for kernel in fusec.lower(fusec.parse(text), "cpu:x86-64-v3").kernels]
    assert sources
    assert all("prim_func" in source or "can't print this kernel" in source for source in sources)
