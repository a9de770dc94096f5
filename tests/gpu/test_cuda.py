"""Kernels in CUDA C++ on a device, against the graph in float64. Skipped without one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "triton"), str(ROOT / "codegen" / "cuda"), str(ROOT)]
from cuda_cases import POINTWISE, PRODUCTS  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402
from triton_cases import CASES  # noqa: E402

from fusec.codegen.cuda.build import compile_kernels  # noqa: E402
from fusec.codegen.cuda.module import CudaModule  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.passes.select_gpu import GpuSelector  # noqa: E402
from fusec.runtime.executable import Executable  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

pytestmark = pytest.mark.gpu
SHARED = {
    n: t for n, t in CASES.items() if {r.kind for r in lower(parse(t), "cuda:0").program.reports} <= {"map", "row"}
}


def on_device(text: str) -> str:
    """The text with every value on the GPU."""
    kinds = "bf16|f16|f32|f64|i8|i16|i32|i64|u8|bool"
    text = re.sub(rf"\b((?:{kinds})\[[\d, ]*\])", r"\1@cuda:0", text)
    return re.sub(rf"\b((?:{kinds})\([^%()]*\))", r"\1@cuda:0", text)


def given(graph: Any, special: bool = False) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for value in graph.inputs:
        kind, shape = value.type.dtype, value.type.static_shape
        if kind.is_float:
            data = rng.standard_normal(shape)
            if special and data.size:
                flat = data.reshape(-1)
                flat[:: max(1, flat.size // 11)] = np.resize(
                    [np.nan, np.inf, -np.inf, 0.0, -0.0], flat[:: max(1, flat.size // 11)].shape
                )
            made.append(np.asarray(data).astype(kind.numpy))
        elif kind.name == "bool":
            made.append(rng.random(shape) > 0.3)
        else:
            made.append(rng.integers(0 if kind.kind == "uint" else -4, 9, shape).astype(kind.numpy))
    return made


def indices_inside(graph: Any, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Indices of a gather are numbers of rows that there are."""
    for op in graph.ops:
        if op.name == "gather":
            k = graph.inputs.index(op.operands[1])
            arrays[k] = np.abs(arrays[k]) % op.operands[0].type.static_shape[op.attributes.axis]


def on_gpu(array: np.ndarray[Any, Any], dtype: Any, strides: tuple[int, ...], shift: int = 0) -> Any:
    source = torch.from_numpy(array.astype(np.float64) if dtype.is_float else array).to(torch_dtype(dtype))
    size = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) if array.size else 0
    memory = torch.empty(size + shift, dtype=source.dtype, device="cuda")[shift:]
    return memory.as_strided(array.shape, strides, shift).copy_(source)


class Chosen(GpuSelector):
    """Takes the candidate of a number, of kernels in CUDA C++ alone."""

    number = 0

    def candidates(self, frame: Any) -> Any:
        found = super().candidates(frame)
        return found[min(self.number, len(found) - 1) :]


def run(text: str, arrays: list[np.ndarray[Any, Any]], shift: int = 0, number: int = 0) -> tuple[list[Any], Executable]:
    selector = Chosen(gpu_target("cuda:0"), cuda=True, triton=False)
    selector.number = number
    program = lower(parse(on_device(text)), "cuda:0", check=True, selector=selector).program
    module = CudaModule.from_bytes(compile_kernels(program.kernels, gpu_target("cuda:0")).to_bytes())
    executable = Executable(program, module, "torch")
    tensors = [
        on_gpu(a, program.slots[slot].type.dtype, program.slots[slot].strides, shift)
        for a, slot in zip(arrays, program.inputs, strict=True)
    ]
    return executable(*tensors), executable


def check(text: str, special: bool = False, shift: int = 0, number: int = 0) -> None:
    graph = parse(text)
    arrays = given(graph, special)
    indices_inside(graph, arrays)
    found, _ = run(text, arrays, shift, number)
    with np.errstate(all="ignore"):
        eager = interpret(graph, arrays)
        assert_close_to_oracle([f.cpu() for f in found], graph, eager, inputs=arrays)


@pytest.mark.parametrize("name", [*SHARED, *POINTWISE, *PRODUCTS])
def test_against_float64(name: str) -> None:
    check((SHARED | POINTWISE | PRODUCTS)[name])


@pytest.mark.parametrize(
    "name",
    [
        "chain_f32_4096",
        "chain_bf16_100000",
        "functions_f32",
        "binaries_f32",
        "floor_f32",
        "softmax_f32_1000",
        "cluster_softmax",
    ],
)
def test_special_values(name: str) -> None:
    check(POINTWISE[name], special=True)


@pytest.mark.parametrize(
    "name", ["chain_f32_4096", "chain_bf16_4096", "softmax_bf16_1000", "sum_columns", "cluster_softmax", "cluster_norm"]
)
def test_addresses_off_sixteen_bytes(name: str) -> None:
    check(POINTWISE[name], shift=1)


def test_the_callers_stream_is_used() -> None:
    text = POINTWISE["chain_f32_4096"]
    x, y = (torch.zeros(4096, device="cuda") for _ in range(2))
    _, executable = run(text, given(parse(text)))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        x.fill_(3)
        (found,) = executable(x, y)
    assert not stream.query()  # nothing waited for the device
    stream.synchronize()
    assert (found == 3).all()
