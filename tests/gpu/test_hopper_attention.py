"""Attention on Hopper's tensor cores in CUDA C++, against the same code in float64. Skipped without such a card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no Hopper card", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT)]
from hopper_attention_cases import CASES, causal, library, lowered  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

from fusec.codegen.cuda.build import compile_kernels  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

pytestmark = pytest.mark.gpu


def given(shapes: list[tuple[int, ...]], dtype: Any) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes]


def run(name: str, arrays: list[Any], dtype: Any) -> Any:
    function, shapes, schedule = CASES[name]
    kernel = lowered(function, shapes, schedule, dtype)
    module = compile_kernels([kernel], gpu_target("cuda:0"))
    inputs = dict(zip(function.__code__.co_varnames, arrays, strict=False))
    (buffer,) = kernel.parameters[len(kernel.parameters) - 1 :]
    result = torch.full(buffer.shape, 77, dtype=torch_dtype(buffer.dtype), device="cuda")
    arguments = [inputs[b.name] for b in kernel.parameters[:-1]]
    module.function(kernel.name, 0)(*(t.data_ptr() for t in (*arguments, result)))
    torch.cuda.synchronize()
    return result


def check(name: str, arrays: list[Any], dtype: Any) -> None:
    function = CASES[name][0]
    found = run(name, arrays, dtype)
    exact = function(*(a.double() for a in arrays))
    eager = function(*arrays)
    assert_close_to_oracle(found.reshape(eager.shape), exact, eager)


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    check(name, given(CASES[name][1], torch.bfloat16), torch.bfloat16)


@pytest.mark.parametrize("name", ["plain", "causal, odd length", "soft cap, slopes and a window"])
def test_f16(name: str) -> None:
    check(name, given(CASES[name][1], torch.float16), torch.float16)


@pytest.mark.parametrize("name", ["plain", "causal", "other keys"])
def test_large_scores(name: str) -> None:
    arrays = given(CASES[name][1], torch.bfloat16)
    arrays[0] *= 100
    check(name, arrays, torch.bfloat16)


def test_specials_stay_in_their_rows() -> None:
    arrays = given(CASES["causal"][1], torch.bfloat16)
    arrays[0][0, 1, 7, 3] = float("nan")
    arrays[1][1, 2, 300, 5] = float("inf")
    found, eager = run("causal", arrays, torch.bfloat16), causal(*arrays)
    assert torch.equal(found.isnan(), eager.isnan())


def test_rows_without_a_finite_score() -> None:
    """Zeros from the library's attention, NaN from a softmax."""
    for name, function in (("the library's, causal", library), ("causal, odd length", causal)):
        arrays = given(CASES[name][1], torch.bfloat16)
        arrays[0], arrays[1][:, :, :200, 0] = arrays[0].abs(), -torch.inf
        found = run(name, arrays, torch.bfloat16)
        empty = found[:, :, :200]
        assert bool((empty == 0).all() if function is library else empty.isnan().all())
        assert bool(found[:, :, 200:].isfinite().all())


def test_the_same_each_time() -> None:
    arrays = given(CASES["causal, odd length"][1], torch.bfloat16)
    first = run("causal, odd length", arrays, torch.bfloat16)
    for _ in range(5):
        assert torch.equal(first, run("causal, odd length", arrays, torch.bfloat16))
