"""Every kernel family on a CUDA device, against the graph in float64. Skipped without one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "codegen" / "triton"))
from triton_cases import CASES, linear, sdpa  # noqa: E402

from fusec.build import Options, build  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402

pytestmark = pytest.mark.gpu


def softmax(dtype: str, rows: int, columns: int) -> str:
    shape = f"{dtype}[{rows}, {columns}]"
    return f"graph @s(%x: {shape}) {{\n  %y = softmax(%x) {{axis=1}} : {shape}\n  return %y\n}}"


LARGE = {
    "gemm_many_tiles": linear(1000, 512, 2048, "bf16"),
    "gemm_square": linear(1024, 1024, 1024, "f16", "relu(%h)"),
    "gemm_tall": linear(16, 2048, 1024, "bf16", "silu(%h)"),
    "gemv": linear(1, 4096, 1024, "bf16", "silu(%h)"),
    "attention_128": sdpa((2, 3, 1000, 128), (2, 3, 1000, 128), "bf16"),
    "attention_128_causal": sdpa((2, 3, 1024, 128), (2, 3, 1024, 128), "bf16", causal=True),
    "attention_256": sdpa((1, 2, 300, 256), (1, 2, 300, 256), "bf16", causal=True),
    "softmax_wide": "graph @s(%x: bf16[5, 8192]) {\n  %y = softmax(%x) {axis=1} : bf16[5, 8192]\n  return %y\n}",
    "softmax_cluster": softmax("bf16", 70, 40000),
    "softmax_cluster_odd": softmax("f32", 67, 70001),
    "norm_cluster": """graph @n(%x: f16[66, 140000], %w: f16[140000]) {
  %n = layer_norm(%x) {axes=[1], eps=1e-5} : f16[66, 140000]
  %y = mul(%n, %w) : f16[66, 140000]
  return %y
}""",
    "softmax_very_wide": "graph @s(%x: f32[3, 30000]) {\n  %y = softmax(%x) {axis=1} : f32[3, 30000]\n  return %y\n}",
}


def on_device(text: str) -> str:
    """The text with every value on the GPU."""
    kinds = "bf16|f16|f32|f64|i64|i32|i16|i8|u64|u32|u16|u8|bool"
    text = re.sub(rf"((?:{kinds})\[[\d, ]*\])", r"\1@cuda:0", text)
    return re.sub(rf"((?:{kinds})\([^%()]*\))", r"\1@cuda:0", text)


def tolerance(text: str) -> float:
    return 0.03 if "bf16" in text else 4e-3 if "f16" in text else 3e-5


def given(graph: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for value in graph.inputs:
        kind, shape = value.type.dtype, value.type.static_shape
        data = rng.standard_normal(shape) if kind.is_float else rng.integers(0, 5, shape)
        made.append(np.asarray(data).astype(kind.numpy))
    return made


def on_gpu(array: np.ndarray[Any, Any], dtype: Any, strides: tuple[int, ...]) -> Any:
    source = torch.from_numpy(array.astype(np.float64) if dtype.is_float else array).to(torch_dtype(dtype))
    return torch.empty_strided(array.shape, strides, dtype=source.dtype, device="cuda").copy_(source)


@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_against_float64(name: str) -> None:
    text = (CASES | LARGE)[name]
    arrays = given(parse(text))
    executable = build(parse(on_device(text)), "torch", Options(cache=False)).executable
    program = executable.program
    tensors = [
        on_gpu(a, program.slots[slot].type.dtype, program.slots[slot].strides)
        for a, slot in zip(arrays, program.inputs, strict=True)
    ]
    for found, wanted in zip(executable(*tensors), interpret(parse(text), arrays, float64=True), strict=True):
        assert found.is_cuda
        got = found.double().cpu().numpy()
        assert got.shape == wanted.shape
        assert (np.isnan(got) == np.isnan(wanted)).all()
        finite = np.isfinite(wanted)
        assert (got[np.isinf(wanted)] == wanted[np.isinf(wanted)]).all()
        apart = np.abs(got[finite] - wanted[finite]) / (1 + np.abs(wanted[finite]))
        assert float(np.max(apart, initial=0.0)) < tolerance(text)
