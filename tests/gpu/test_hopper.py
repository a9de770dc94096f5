"""Products on Hopper's tensor cores in CUDA C++, against the graph in float64. Skipped without such a card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no Hopper card", allow_module_level=True)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "codegen" / "cuda"), str(ROOT / "gpu"), str(ROOT)]
import on_device  # noqa: E402
from eight_bit_cases import EIGHT_BITS  # noqa: E402
from hopper_cases import CASES, lowered  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

import fusec  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402

pytestmark = pytest.mark.gpu


def run(text: str, schedule: Any, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    graph = parse(text)
    return on_device.run(graph, lowered(graph, schedule, "cuda:0"), arrays)


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_eight_bits_against_float64(name: str) -> None:
    text, schedule = EIGHT_BITS[name]
    arrays = on_device.given(parse(text))
    exact = interpret(parse(text), arrays, float64=True)
    assert_close_to_oracle(run(text, schedule, arrays), exact, interpret(parse(text), arrays))


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    text, schedule = CASES[name]
    arrays = on_device.given(parse(text))
    found = run(text, schedule, arrays)
    exact = interpret(parse(text), arrays, float64=True)
    assert_close_to_oracle(found, exact, with_tf32(arrays) if "tf32" in name else interpret(parse(text), arrays))


def with_tf32(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """What PyTorch gives for a linear layer with gelu, or a padded 3×3 convolution, where it may round operands to
    TF32."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = True
    try:
        x, w, *rest = map(on_device.to_device, arrays)
        if x.dim() == 4:
            image, weight = (t.permute(0, 3, 1, 2) for t in (x, w))
            return [torch.nn.functional.conv2d(image, weight, padding=1).permute(0, 2, 3, 1)]
        product = torch.nn.functional.linear(x, w, *rest)
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed
    return [torch.nn.functional.gelu(product, approximate="tanh")]


def test_the_same_each_time() -> None:
    text, schedule = CASES["many_tiles"]
    arrays = on_device.given(parse(text))
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
