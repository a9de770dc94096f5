"""Products by mma.sync, against the graph in float64. Skipped without a card that has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("no card with mma.sync", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT / "gpu"), str(ROOT)]
import on_device  # noqa: E402
from mma_cases import CASES, lowered  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

import fusec  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402

pytestmark = pytest.mark.gpu


def run(text: str, schedule: Any, arrays: list[np.ndarray[Any, Any]], shift: int = 0) -> list[Any]:
    graph = parse(text)
    return on_device.run(graph, lowered(graph, schedule, "cuda:0"), arrays, shift)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shift", [0, 1])
def test_against_float64(name: str, shift: int) -> None:
    text, schedule = CASES[name]
    arrays = on_device.given(parse(text))
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
    arrays = on_device.given(parse(text))
    first = run(text, schedule, arrays)[0]
    for _ in range(5):
        assert torch.equal(first.nan_to_num(), run(text, schedule, arrays)[0].nan_to_num())


@pytest.mark.parametrize("shift", [0, 1])
def test_through_jit(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    """Odd rows, which no TMA copy takes, through all passes and the launcher."""
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
