"""Tensors of 8-bit floats: stored bit by bit as PyTorch does it, and nothing is computed with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.ir.interpret import interpret

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
BOTH = pytest.mark.parametrize("dtype", [E4, E5], ids=str)


def every() -> torch.Tensor:
    """All numbers with 16 bits, NaN of both signs and infinities among them."""
    return (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16).view(torch.float32)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8) if x.dtype in (E4, E5) else x


def same(f: Callable[..., Any], *args: torch.Tensor, kernels: int = 1) -> None:
    """The jitted function gives what it gives as written, by so many kernels and no library call."""
    program = fusec.lower(fusec.trace(f, *args)).program
    assert [type(step).__name__ for step in program.steps] == kernels * ["Launch"]
    found, wanted = (y if isinstance(y, tuple) else (y,) for y in (fusec.jit(f)(*args), f(*args)))
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(bits(a), bits(b)) or torch.equal(torch.nan_to_num(a.float()), torch.nan_to_num(b.float()))


@BOTH
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_casts_round_as_pytorch_does(dtype: torch.dtype, source: torch.dtype) -> None:
    x = every().to(source)
    (found,), wanted = (fusec.jit(lambda x: (x.to(dtype),))(x)), x.to(dtype)
    assert torch.equal(bits(found), bits(wanted))


@BOTH
def test_casts_of_integers_and_bools(dtype: torch.dtype) -> None:
    same(lambda x: x.to(dtype), torch.arange(-600, 600))
    same(lambda x: (x > 3).to(dtype), torch.arange(-600, 600))


@BOTH
@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_casts_from_8_bits(dtype: torch.dtype, to: torch.dtype) -> None:
    same(lambda x: x.to(to), torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype))


def test_rows_are_quantised_by_one_kernel() -> None:
    def quantise(x: torch.Tensor) -> Any:
        s = x.abs().amax(-1, keepdim=True) / 448
        return (x / s).to(E4), s

    x = torch.randn(37, 300)
    x[1], x[2, 5], x[3, 7] = 0, float("nan"), float("inf")
    same(quantise, x)


def test_what_is_stored_is_read_and_moved() -> None:
    x = torch.randn(7, 65).to(E4)
    same(lambda x, s: x.t().float() * s, x, torch.rand(7))
    same(lambda x: torch.cat([x.t(), x.t()], 1), x)
    same(lambda x: x.to(E5), x)


def test_what_pytorch_does_not_compute_is_its_own_error() -> None:
    x = torch.randn(7, 65).to(E4)
    with pytest.raises(NotImplementedError):
        fusec.jit(lambda x: x + x)(x)


SCALE, ROWS, COLUMNS = torch.tensor(0.5), torch.rand(40, 1), torch.rand(1, 48)


def multiplied(x: torch.Tensor, w: torch.Tensor, *scales: torch.Tensor, **more: Any) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), *scales, **more)


FOREIGN = {E4: (torch.uint8, "float8_e4m3fn"), torch.bfloat16: (torch.int16, "bfloat16")}


def as_array(x: torch.Tensor) -> Any:
    stored, name = FOREIGN.get(x.dtype, (x.dtype, None))
    array = x.view(stored).numpy()
    return array if name is None else array.view(name)


@pytest.mark.parametrize(
    "scales", [(SCALE, SCALE + 1), (SCALE, torch.ones(1, 1)), (ROWS, COLUMNS)], ids=["", "1x1", "rows"]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_scaled_mm_is_a_product_and_scales_on_a_gpu(scales: Any, biased: bool, dtype: torch.dtype) -> None:
    x, w, bias = torch.randn(40, 64).to(E4), torch.randn(48, 64).to(E4), torch.randn(48, dtype=torch.bfloat16)

    def called(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, t: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, w.t(), s, t, bias=b if biased else None, out_dtype=dtype)

    given = (x, w, *scales, bias)
    graph = fusec.trace(called, *given, target="cuda:sm_90")
    assert "extern" not in str(graph)
    (found,) = interpret(graph, [as_array(a) for a in given[: len(graph.inputs)]])
    exact = x.double() @ w.double().t() * scales[0].double() * scales[1].double() + (bias.double() if biased else 0)
    assert abs(found.astype("float64") - exact.numpy()).max() < (0.25 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize(
    ("scales", "more"),
    [
        ((SCALE, SCALE + 1), {"out_dtype": E4}),
        ((SCALE, SCALE + 1), {}),
    ],
    ids=["8 bits", "as the operands"],
)
def test_scaled_mm_that_is_the_librarys(scales: Any, more: dict[str, Any]) -> None:
    x, w = torch.randn(40, 64).to(E4), torch.randn(48, 64).to(E4)
    graph = fusec.trace(lambda x, w, *s: multiplied(x, w, *s, **more), x, w, *scales, target="cuda:sm_90")
    assert "aten._scaled_mm" in str(graph)
    on_cpu = fusec.trace(lambda x, w, *s: multiplied(x, w, *s, out_dtype=torch.float32), x, w, *scales)
    assert "aten._scaled_mm" in str(on_cpu)
