"""Matmuls of few rows with packed weights, against the graph in float64. Skipped without a GPU that has mma.sync."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("no GPU with mma.sync and clusters", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT / "gpu"), str(ROOT)]
import on_device  # noqa: E402
import skinny_cases  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

import fusec  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402

pytestmark = pytest.mark.gpu


def run(name: str, arrays: list[Any], shift: int = 0) -> list[Any]:
    return on_device.run(skinny_cases.graph_of(name), skinny_cases.kernel_of(name, "cuda:0"), arrays, shift)


@pytest.mark.parametrize("name", skinny_cases.CASES)
@pytest.mark.parametrize(("shift", "special"), [(0, False), (1, False), (0, True)])
def test_against_float64(name: str, shift: int, special: bool) -> None:
    graph, arrays = skinny_cases.graph_of(name), skinny_cases.arrays_of(name, special=special)
    found = run(name, arrays, shift)
    assert_close_to_oracle(found, interpret(graph, arrays, float64=True), interpret(graph, arrays))


def test_the_same_each_time() -> None:
    arrays = skinny_cases.arrays_of("groups_ring")
    first = run("groups_ring", arrays)[0]
    for _ in range(5):
        assert torch.equal(first, run("groups_ring", arrays)[0])


@pytest.mark.parametrize("rows", [1, 5, 16, 40, 130])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_through_jit(rows: int, dtype: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(rows, 1024, device="cuda", generator=generator).to(dtype)
    w = torch.randint(0, 256, (777, 512), device="cuda", dtype=torch.uint8, generator=generator)
    s = torch.rand(777, 8, device="cuda", generator=generator).to(dtype)
    made = fusec.jit(skinny_cases.groups, fallback="error", cache=False)(x, w, s)
    exact = skinny_cases.groups(x.double(), w, s.double())
    assert_close_to_oracle(made, exact, skinny_cases.groups(x, w, s))
