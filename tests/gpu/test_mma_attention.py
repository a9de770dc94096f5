"""Attention by mma.sync, against the same code in float64. Skipped without a card of sm_80."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("no card with mma.sync", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT)]
from mma_attention_cases import CASES, PLAIN, causal, library, lowered_for, plain  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

from fusec.codegen.cuda.build import compile_kernels  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

pytestmark = pytest.mark.gpu


def given(shapes: list[tuple[int, ...]], dtype: Any, shift: int = 0) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    made = []
    for shape in shapes:
        values = torch.randn(shape, device="cuda", generator=generator)
        memory = torch.empty(values.numel() + shift, dtype=dtype, device="cuda")[shift:]
        made.append(memory.view(shape).copy_(values))
    return made


def run(function: Any, arrays: list[Any], schedule: Any) -> Any:
    empty = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) for a in arrays]
    kernel = lowered_for(empty, function, schedule, "cuda:0")
    module = compile_kernels([kernel], gpu_target("cuda:0"))
    inputs = dict(zip(function.__code__.co_varnames, arrays, strict=False))
    (buffer,) = kernel.parameters[len(kernel.parameters) - 1 :]
    memory = torch.full((buffer.most + 64,), 77, dtype=torch_dtype(buffer.dtype), device="cuda")
    result = memory[: buffer.most].view(buffer.shape)
    arguments = [inputs[b.name] for b in kernel.parameters[:-1]]
    module.function(kernel.name, 0)(*(t.data_ptr() for t in (*arguments, result)))
    torch.cuda.synchronize()
    assert bool((memory[buffer.most :] == 77).all())
    return result


def check(function: Any, arrays: list[Any], schedule: Any) -> None:
    found = run(function, arrays, schedule)
    exact = function(*(a.double() for a in arrays))
    eager = function(*arrays)
    assert_close_to_oracle(found.reshape(eager.shape), exact, eager)


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    function, shapes, schedule = CASES[name]
    check(function, given(shapes, torch.bfloat16), schedule)


@pytest.mark.parametrize("name", ["plain", "causal, odd length", "soft cap, slopes and a window"])
def test_f16(name: str) -> None:
    function, shapes, schedule = CASES[name]
    check(function, given(shapes, torch.float16), schedule)


@pytest.mark.parametrize("name", ["odd length", "causal, odd length", "heads of 80", "joined heads"])
def test_addresses_that_are_no_multiples_of_16(name: str) -> None:
    function, shapes, schedule = CASES[name]
    check(function, given(shapes, torch.bfloat16, shift=1), schedule)


@pytest.mark.parametrize("pitch", [65, 66, 68, 72])
def test_odd_strides(pitch: int) -> None:
    arrays = [torch.randn(1, 3, 200, pitch, device="cuda").to(torch.bfloat16)[..., :64] for _ in range(3)]
    check(causal, arrays, PLAIN)


def test_values_that_run_along_the_keys() -> None:
    q, k, v = given([(1, 3, 200, 64)] * 3, torch.bfloat16)
    check(plain, [q, k, v.transpose(-1, -2).contiguous().transpose(-1, -2)], PLAIN)


@pytest.mark.parametrize("name", ["plain", "causal", "other keys"])
def test_large_scores(name: str) -> None:
    function, shapes, schedule = CASES[name]
    arrays = given(shapes, torch.bfloat16)
    arrays[0] *= 100
    check(function, arrays, schedule)


def test_specials_stay_in_their_rows() -> None:
    function, shapes, schedule = CASES["causal"]
    arrays = given(shapes, torch.bfloat16)
    arrays[0][0, 1, 7, 3] = float("nan")
    arrays[1][1, 2, 300, 5] = float("inf")
    found, eager = run(function, arrays, schedule), causal(*arrays)
    assert torch.equal(found.isnan(), eager.isnan())


def test_rows_without_a_finite_score() -> None:
    """Zeros from the library's attention, NaN from a softmax."""
    for name, function in (("the library's, causal", library), ("causal, odd length", causal)):
        arrays = given(CASES[name][1], torch.bfloat16)
        arrays[0], arrays[1][:, :, :200, 0] = arrays[0].abs(), -torch.inf
        found = run(function, arrays, CASES[name][2])
        empty = found[:, :, :200]
        assert bool((empty == 0).all() if function is library else empty.isnan().all())
        assert bool(found[:, :, 200:].isfinite().all())


def test_the_same_each_time() -> None:
    function, shapes, schedule = CASES["causal, odd length"]
    arrays = given(shapes, torch.bfloat16)
    first = run(function, arrays, schedule)
    for _ in range(5):
        assert torch.equal(first, run(function, arrays, schedule))
