"""Gradients lie as what they are gradients of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "a transposed operand": (lambda a, b: a @ b.mT, ((2, 40, 8), (2, 24, 8))),
    "of heads": (lambda a, b: torch.tanh(a @ b.transpose(-2, -1)), ((2, 3, 40, 8), (2, 3, 24, 8))),
    "both operands": (lambda a: a @ a.mT, ((2, 24, 8),)),
    "matrices": (lambda a, b: torch.relu(a @ b.t()), ((40, 8), (24, 8))),
    "a product that is read twice": (lambda a, b: (a @ b.mT).cos() @ b, ((2, 24, 8), (2, 24, 8))),
    "a transposed map": (lambda a: torch.sin(a.mT).exp(), ((5, 12, 7),)),
    "a permuted map": (lambda a: torch.sin(a.permute(2, 0, 1)), ((5, 12, 7),)),
    "a view of the result's gradient": (lambda a: a.mT, ((5, 12, 7),)),
    "one number for all": (lambda a: a.sum(), ((5, 12),)),
    "a row": (lambda a, b: a * b, ((5, 12), (12,))),
    "an axis of one": (lambda a, b: a @ b.mT, ((2, 40, 1), (2, 24, 1))),
    "nothing": (lambda a, b: a @ b.mT, ((2, 0, 8), (2, 24, 8))),
}


def gradients(function: Any, inputs: list[Any]) -> list[Any]:
    given = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    result = function(*given)
    weights = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).cos()
    return list(torch.autograd.grad(result, given, weights))


@pytest.mark.parametrize("name", list(CASES))
def test_they_are_eagers(name: str) -> None:
    function, shapes = CASES[name]
    inputs = [torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0)) for shape in shapes]
    wanted = gradients(function, inputs)
    found = gradients(torch.compile(function, backend="fusec"), inputs)
    for x, g, w in zip(inputs, found, wanted, strict=True):
        torch.testing.assert_close(g, w)
        if name not in ("a view of the result's gradient", "one number for all"):
            assert g.is_contiguous()
        assert g.shape == x.shape


def test_an_image_with_channels_last() -> None:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    (found,) = gradients(torch.compile(lambda x: torch.sin(x.permute(0, 3, 1, 2)), backend="fusec"), [image])
    torch.testing.assert_close(found, gradients(lambda x: torch.sin(x.permute(0, 3, 1, 2)), [image])[0])
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_an_input_that_is_transposed_itself() -> None:
    """Its gradient is left as the code makes it."""
    inputs = [torch.randn(2, 8, 24).mT, torch.randn(2, 24, 8)]
    function = lambda a, b: torch.tanh(a @ b.mT)  # noqa: E731
    found = gradients(torch.compile(function, backend="fusec"), inputs)
    for g, w in zip(found, gradients(function, inputs), strict=True):
        torch.testing.assert_close(g, w)
