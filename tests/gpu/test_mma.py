"""Products by warps' tensor core instructions, against the graph in float64. Skipped without a card that has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("no card with mma.sync", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT)]
from mma_cases import CASES, lowered  # noqa: E402
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


def to_device(array: np.ndarray[Any, Any], shift: int = 0) -> Any:
    half = array.dtype == ml_dtypes.bfloat16
    source = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(array)
    memory = torch.empty(array.size + shift, dtype=source.dtype, device="cuda")[shift:]
    return memory.view(array.shape).copy_(source)


def run(text: str, schedule: Any, arrays: list[np.ndarray[Any, Any]], shift: int = 0) -> list[Any]:
    graph = parse(text)
    kernel = lowered(graph, schedule, "cuda:0")
    module = compile_kernels([kernel], gpu_target("cuda:0"))
    inputs = {v.name: to_device(a, shift) for v, a in zip(graph.inputs, arrays, strict=True)}
    results = []
    for buffer in kernel.parameters[len(kernel.parameters) - kernel.outputs :]:
        memory = torch.full((buffer.most + shift + 64,), 77, dtype=torch_dtype(buffer.dtype), device="cuda")
        results.append(memory)
    inside = [
        memory[shift : shift + b.most].view(b.shape)
        for memory, b in zip(results, kernel.parameters[len(kernel.parameters) - kernel.outputs :], strict=True)
    ]
    arguments = [inputs[b.name] for b in kernel.parameters[: len(kernel.parameters) - kernel.outputs]]
    module.function(kernel.name, 0)(*(t.data_ptr() for t in (*arguments, *inside)))
    torch.cuda.synchronize()
    for memory, part in zip(results, inside, strict=True):
        around = torch.cat([memory[:shift], memory[shift + part.numel() :]])
        assert bool((around == torch.full_like(around, 77)).all())
    return inside


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shift", [0, 1])
def test_against_float64(name: str, shift: int) -> None:
    text, schedule = CASES[name]
    arrays = given(text)
    found = run(text, schedule, arrays, shift)
    exact = interpret(parse(text), arrays, float64=True)
    assert_close_to_oracle(found, exact, with_tf32(text, arrays) if "tf32" in name else interpret(parse(text), arrays))


def with_tf32(text: str, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """The graph on operands that were rounded to TF32, as PyTorch's products round them."""
    rounded = [with_ten_bits(a) for a in arrays[:2]]
    return interpret(parse(text), [*rounded, *arrays[2:]])


def with_ten_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    bits = array.view(np.uint32)
    rounded = (bits + 0x1000) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), rounded.view(np.float32), array)


def test_the_same_each_time() -> None:
    text, schedule = CASES["many_tiles"]
    arrays = given(text)
    first = run(text, schedule, arrays)[0]
    for _ in range(5):
        assert torch.equal(first.nan_to_num(), run(text, schedule, arrays)[0].nan_to_num())


@pytest.mark.parametrize("shift", [0, 1])
def test_through_jit(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    """Odd rows, which no bulk copy takes, through all passes and the launcher."""
    monkeypatch.setenv("FUSEC_GPU_LANGUAGE", "cuda")

    def layer(x: Any, w: Any, b: Any) -> Any:
        return torch.relu(torch.nn.functional.linear(x, w, b))

    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Any:
        memory = torch.empty(int(np.prod(shape)) + shift, dtype=torch.bfloat16, device="cuda")[shift:]
        return memory.view(shape).copy_(torch.randn(shape, device="cuda", generator=generator))

    arrays = [random(300, 131), random(200, 131), random(200)]
    made = fusec.jit(layer, fallback="error", cache=False)(*arrays)
    assert " warp=" in fusec.explain(layer, *arrays)
    assert_close_to_oracle(made, layer(*(a.double() for a in arrays)), layer(*arrays))
