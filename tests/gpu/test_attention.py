"""Attention as users write it, on a CUDA device: error against float64 at most twice eager's. Skipped without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "codegen" / "triton"))
from attention_cases import ATTENTION, Case, causal, full, library, masked, repeated, same  # noqa: E402

import fusec  # noqa: E402

pytestmark = pytest.mark.gpu

LARGE = {
    "causal_large": Case(masked(causal), *same(1, 4, 2048, 128)),
    "odd_large": Case(full, (2, 3, 1001, 72), (2, 3, 1507, 72), dtype=torch.float16),
    "window_longer": Case(masked(lambda i, j: (j <= i) & (i - j < 300)), *same(1, 4, 2000, 64)),
    "window_of_both_sides": Case(masked(lambda i, j: (i - j).abs() < 400), *same(1, 4, 2000, 128)),
    "prefix_longer": Case(masked(lambda i, j: (j <= i) | (j < 700)), *same(1, 4, 2000, 128)),
    "decode_large": Case(repeated(full), (3, 32, 1, 128), (3, 8, 20000, 128)),
    "decode_library": Case(library(), (1, 32, 1, 128), (1, 8, 65536, 128)),
    "decode_of_four": Case(repeated(masked(lambda i, j: j <= i + 4092)), (2, 32, 4, 128), (2, 8, 4096, 128)),
}


def largest_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    assert found.shape == exact.shape
    assert torch.equal(found.isnan(), exact.isnan())
    return float((found.double() - exact).abs().nan_to_num().max())


@pytest.mark.parametrize("name", [*ATTENTION, *LARGE])
def test_no_worse_than_twice_eager(name: str) -> None:
    case = (ATTENTION | LARGE)[name]
    args = case.examples("cuda")
    exact = case.function(*(a.double() if a.is_floating_point() else a for a in args))
    with torch.no_grad():
        found = fusec.jit(case.function, fallback="error")(*args)
        eager = case.function(*args)
    assert found.dtype == eager.dtype
    floor = 1e-6 * float(exact.abs().nan_to_num().max())
    assert largest_error(found, exact) <= 2 * largest_error(eager, exact) + floor


def test_parts_of_the_keys_are_joined_the_same_way_each_time() -> None:
    case = LARGE["decode_large"]
    args = case.examples("cuda")
    function = fusec.jit(case.function, fallback="error")
    first = function(*args)
    assert all(torch.equal(function(*args), first) for _ in range(5))
