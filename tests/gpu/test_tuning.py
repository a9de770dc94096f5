"""Measured search on a device: right results, inputs left alone, failures counted out, choices remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import fusec  # noqa: E402
from fusec.build import compile_module  # noqa: E402
from fusec.errors import CodegenError  # noqa: E402
from fusec.ir.graph import FusedAttributes  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.ir.types import contiguous_strides  # noqa: E402
from fusec.passes.lower.context import LoweredGroup, LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Alternative, Pieces  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.passes.select_gpu import GpuSelector  # noqa: E402
from fusec.runtime.executable import Module  # noqa: E402
from fusec.runtime.program import Program  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402
from fusec.tile.nodes import Grid, Loop, Store  # noqa: E402
from fusec.tile.scalar import Const  # noqa: E402
from fusec.tuning.measure_gpu import GpuMeasure  # noqa: E402

pytestmark = pytest.mark.gpu

PRODUCT = """graph @f(%x: bf16[512, 256]@cuda:0, %w: bf16[ROWS, 256]@cuda:0, %b: bf16[ROWS]@cuda:0) {
  %h = linear(%x, %w, %b) : bf16[512, ROWS]@cuda:0
  %y = silu(%h) : bf16[512, ROWS]@cuda:0
  return %y
}"""


def rand(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("effort", ["quick", "full"])
@pytest.mark.usefixtures("own_cache")
def test_tuned_functions_are_right_and_leave_inputs_alone(effort: str) -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return torch.softmax(F.gelu(F.linear(x, w, b), approximate="tanh"), -1)

    args = rand(256, 128), rand(64, 128) / 11, rand(64)
    before = [a.clone() for a in args]
    fast = fusec.jit(f, tune=effort, fallback="error")
    torch.testing.assert_close(fast(*args), f(*args), atol=0.02, rtol=0.02)
    for a, b in zip(args, before, strict=True):
        assert torch.equal(a, b)
    text = fusec.explain(fast, *args)
    assert "measured" in text
    assert "(chosen)" in text
    assert "library matmul with bias" in text


def group(text: str) -> LoweringContext:
    graph = lower(parse(text), "cuda:0").graph
    (op,) = (o for o in graph.ops if isinstance(o.attributes, FusedAttributes))
    layouts = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    return LoweringContext(op, layouts, "group")


def measure(
    context: LoweringContext, alternatives: list[Alternative], compile: Callable[[Program], Module] = compile_module
) -> Any:
    return GpuMeasure(gpu_target("cuda:0"), "cuda:0", compile, "cuda:0")(context, alternatives, 60.0, lambda: None)


def spoiled(alternative: Alternative) -> Alternative:
    """An alternative whose kernel stores zeros."""

    def make(context: LoweringContext) -> LoweredGroup | Pieces:
        lowered = alternative.lower(context)
        assert isinstance(lowered, LoweredGroup)
        body = tuple(map(_zeroed, lowered.kernel.body))
        return replace(lowered, kernel=replace(lowered.kernel, body=body))

    return Alternative("spoiled", make)


def _zeroed(statement: Any) -> Any:
    if isinstance(statement, Store):
        return replace(statement, value=Const(0.0, statement.target.dtype))
    if isinstance(statement, Loop | Grid):
        return replace(statement, body=tuple(map(_zeroed, statement.body)))
    return statement


def unwritten(alternative: Alternative) -> Alternative:
    """An alternative whose kernel writes the first row block only."""

    def make(context: LoweringContext) -> LoweredGroup | Pieces:
        lowered = alternative.lower(context)
        assert isinstance(lowered, LoweredGroup)
        (grid,) = lowered.kernel.body
        assert isinstance(grid, Grid)
        short = replace(grid, iters=tuple(replace(i, extent=1, limit=None) for i in grid.iters))
        return replace(lowered, kernel=replace(lowered.kernel, body=(short,)))

    return Alternative("unwritten", make)


@pytest.mark.parametrize("rows", [128, 16384])
def test_wrong_results_are_found_out(rows: int) -> None:
    """With few rows by the oracle, with many by the others' results."""
    context = group(PRODUCT.replace("ROWS", str(rows)))
    good = GpuSelector(gpu_target("cuda:0")).alternatives(context)[:3]
    plain = next(a for a in GpuSelector(gpu_target("cuda:0")).alternatives(context) if "persistent=0" in a.text)
    results = measure(context, [spoiled(plain), good[0], unwritten(plain), *good[1:]])
    assert [r.seconds is None for r in results] == [True, False, True, False, False]
    assert "differs" in results[0].reason
    assert all(r.seconds is None or 1e-6 < r.seconds < 1e-2 for r in results)


def test_failures_are_counted_out() -> None:
    context = group(PRODUCT.replace("ROWS", "128"))
    good = GpuSelector(gpu_target("cuda:0")).alternatives(context)[0]
    errors: list[Exception] = [
        CodegenError("it needs 300000 bytes of shared memory"),
        torch.OutOfMemoryError("no memory"),
    ]

    def fails(program: Program) -> Module:
        if errors:
            raise errors.pop()
        return compile_module(program)

    results = measure(context, [replace(good, text="a"), replace(good, text="b"), good], fails)
    assert [r.reason for r in results] == ["no memory", "it needs 300000 bytes of shared memory", ""]
    assert results[2].seconds is not None


def test_too_little_memory_to_measure_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    context = group(PRODUCT.replace("ROWS", "128"))
    good = GpuSelector(gpu_target("cuda:0")).alternatives(context)[0]

    def none(*args: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(GpuMeasure, "_random", none)
    assert measure(context, [good]) == []


@pytest.mark.usefixtures("own_cache")
def test_a_choice_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rand(300, 64)
    calls: list[int] = []
    inner = GpuMeasure.__call__

    def counted(self: GpuMeasure, *args: Any) -> Any:
        calls.append(1)
        return inner(self, *args)

    monkeypatch.setattr(GpuMeasure, "__call__", counted)
    w = rand(64, 128)
    for _ in range(2):
        fast = fusec.jit(lambda x, w: torch.relu(x @ w), tune="quick", fallback="error", cache=False)
        torch.testing.assert_close(fast(x, w), torch.relu(x @ w), atol=0.02, rtol=0.02)
    assert len(calls) == 1


@pytest.mark.usefixtures("own_cache")
def test_nothing_is_measured_while_a_stream_is_captured() -> None:
    x, w = rand(300, 64), rand(64, 160)
    fast = fusec.jit(lambda x, w: torch.relu(x @ w), tune="quick", fallback="error", cache=False)
    torch.relu(x @ w)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        found = fast(x, w)
    outer.replay()
    torch.testing.assert_close(found, torch.relu(x @ w), atol=0.02, rtol=0.02)


def test_steps_are_timed_on_the_device() -> None:
    x, w = rand(8192, 4096), rand(4096, 4096)
    fast = fusec.jit(lambda x, w: torch.relu(x @ w), fallback="error")
    fast(x, w)
    (seconds,) = fast.dispatcher.plans[0].executable.profile([x, w])
    assert 1e-4 < seconds < 2e-3  # the host's part takes some microseconds
    assert "measured" in fusec.explain(fast, x, w, measure=True)
