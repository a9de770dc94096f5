"""Products on Hopper's tensor cores in CUDA C++, against the graph in float64. Skipped without such a card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no Hopper card", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT)]
from hopper_cases import CASES, lowered  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

import fusec  # noqa: E402
from fusec.codegen.cuda.build import compile_kernels  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

pytestmark = pytest.mark.gpu


def given(text: str) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for value in parse(text).inputs:
        data = rng.standard_normal(value.type.static_shape)
        data[..., 0] = np.where(rng.random(data[..., 0].shape) < 0.01, np.nan, data[..., 0])
        made.append(data.astype(value.type.dtype.numpy))
    return made


def to_device(array: np.ndarray[Any, Any]) -> Any:
    half = array.dtype == ml_dtypes.bfloat16
    made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(array)
    return made.cuda()


def run(text: str, schedule: Any, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    graph = parse(text)
    kernel = lowered(graph, schedule, "cuda:0")
    module = compile_kernels([kernel], gpu_target("cuda:0"))
    inputs = {v.name: to_device(a) for v, a in zip(graph.inputs, arrays, strict=True)}
    results = []
    for buffer in kernel.parameters[len(kernel.parameters) - kernel.outputs :]:
        results.append(torch.full(buffer.shape, 77, dtype=torch_dtype(buffer.dtype), device="cuda"))
    arguments = [inputs[b.name] for b in kernel.parameters[: len(kernel.parameters) - kernel.outputs]]
    module.function(kernel.name, 0)(*(t.data_ptr() for t in (*arguments, *results)))
    torch.cuda.synchronize()
    return results


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    text, schedule = CASES[name]
    arrays = given(text)
    found = run(text, schedule, arrays)
    exact = interpret(parse(text), arrays, float64=True)
    assert_close_to_oracle(found, exact, with_tf32(arrays) if "tf32" in name else interpret(parse(text), arrays))


def with_tf32(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """What PyTorch gives for a linear layer with gelu where it may round operands to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        product = torch.nn.functional.linear(*map(to_device, arrays))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return [torch.nn.functional.gelu(product, approximate="tanh")]


def test_the_same_each_time() -> None:
    text, schedule = CASES["many_tiles"]
    arrays = given(text)
    first = run(text, schedule, arrays)[0]
    for _ in range(5):
        assert torch.equal(first.nan_to_num(), run(text, schedule, arrays)[0].nan_to_num())


def test_products_in_a_row_wait_for_each_other() -> None:
    one = fusec.jit(lambda x, w: x @ w.T, fallback="error")
    three = fusec.jit(lambda x, a, b, c: ((x @ a.T) @ b.T) @ c.T, fallback="error")
    x, *weights = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45 for _ in range(4))
    expected = x
    for w in weights:
        expected = one(expected, w)
        torch.cuda.synchronize()
    assert "consumers" in fusec.explain(one, x, weights[0])
    for _ in range(20):
        assert torch.equal(three(x, *weights), expected)
