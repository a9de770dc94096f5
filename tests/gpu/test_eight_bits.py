"""Products of 8 bits as code writes them, on a CUDA device: as exact as the code as written, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("no CUDA device that multiplies 8-bit floats", allow_module_level=True)
from torch.nn import functional as F  # noqa: E402

import fusec  # noqa: E402

pytestmark = pytest.mark.gpu

E4, E5, BF16, F16, F32 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bfloat16,
    torch.float16,
    torch.float32,
)


def floats(*shape: int, dtype: Any = E4) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def integers(*shape: int) -> Any:
    return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)


def numbers(*shape: int) -> Any:
    return torch.rand(*shape, device="cuda") / 8


def special(*shape: int, dtype: Any = E4) -> Any:
    """The largest numbers, zeros, some NaN; of e5m2 infinities, too."""
    x = torch.randn(*shape, device="cuda")
    x[0], x[1], x[2, ::2], x[2, 1::2] = 448.0, 0.0, -448.0, 448.0
    x[3, 5] = float("nan")
    x[4, 7] = float("inf") if dtype is E5 else 1.0
    return x.to(dtype)


def multiply(a: Any, b: Any, wide: Any) -> Any:
    return a.to(wide) @ b.to(wide).T


def rounded(a: Any, b: Any, wide: Any) -> Any:
    return multiply(a, b, wide).to(BF16 if wide is F32 else wide)


def scaled(a: Any, b: Any, s: Any, t: Any, bias: Any, wide: Any) -> Any:
    y = F.gelu(multiply(a, b, wide) * s.to(wide) * t.to(wide) + bias.to(wide), approximate="tanh")
    return y.to(BF16) if wide is F32 else y


def wide_result(a: Any, b: Any, s: Any, wide: Any) -> Any:
    return multiply(a, b, wide) * s.to(wide)


def halves(a: Any, b: Any, r: Any, wide: Any) -> Any:
    half = BF16 if wide is F32 else wide
    return F.linear(a.to(half), b.to(half)) + r.to(half)


def of_f16(a: Any, b: Any, wide: Any) -> Any:
    return multiply(a, b, wide).to(F16 if wide is F32 else wide)


def quantised(a: Any, b: Any, s: Any, wide: Any) -> Any:
    y = (multiply(a, b, wide) * s.to(wide)).clamp(-448, 448)
    return y.to(E4) if wide is F32 else y


def quantised_by(s: float) -> Callable[..., Any]:
    def function(a: Any, b: Any, wide: Any) -> Any:
        y = (multiply(a, b, wide) * s).clamp(-448, 448)
        return y.to(E4) if wide is F32 else y

    return function


def wide_result_by(s: float) -> Callable[..., Any]:
    return lambda a, b, wide: multiply(a, b, wide) * s


def gated(a: Any, g: Any, u: Any, s: Any, wide: Any) -> Any:
    y = (F.silu(multiply(a, g, wide) * s.to(wide)) * multiply(a, u, wide) * s.to(wide)).clamp(-448, 448)
    return y.to(E4) if wide is F32 else y


def by_rows(x: Any, b: Any, wide: Any) -> Any:
    """What is quantised by a kernel before is the same numbers in both."""
    s = x.float().abs().amax(-1, keepdim=True) / 448
    y = multiply((x.float() / s).to(E4), b, wide) * s.to(wide)
    return y.to(BF16) if wide is F32 else y


def columns_adjoin(a: Any, b: Any, wide: Any) -> Any:
    return rounded(a, b.T, wide)


def rows_adjoin(a: Any, b: Any, wide: Any) -> Any:
    return rounded(a.T, b.T, wide)


def of_itself(a: Any, wide: Any) -> Any:
    return rounded(a, a, wide)


def parts(a: Any, b: Any, wide: Any) -> Any:
    return rounded(a[8:, 32:544], b[::2, 32:544], wide)


def odd_parts(a: Any, b: Any, wide: Any) -> Any:
    return rounded(a[1:, 3:520], b[2:, 3:520], wide)


def three_axes(a: Any, b: Any, wide: Any) -> Any:
    y = torch.einsum("abk,nk->abn", a.to(wide), b.to(wide))
    return y.to(BF16) if wide is F32 else y


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "rounded": (rounded, lambda: (floats(640, 2048), floats(1024, 2048))),
    "many tiles": (rounded, lambda: (floats(4096, 1024), floats(4608, 1024))),
    "special": (rounded, lambda: (special(640, 2048), special(1024, 2048))),
    "special e5m2": (rounded, lambda: (special(640, 2048, dtype=E5), floats(1024, 2048, dtype=E5))),
    "scaled": (
        scaled,
        lambda: (floats(1000, 2048), floats(1032, 2048), numbers(1000, 1), numbers(1032), numbers(1032)),
    ),
    "one scale": (scaled, lambda: (floats(1000, 528), floats(1032, 528), numbers(1)[0], numbers(1), numbers(1032))),
    "mixed": (rounded, lambda: (floats(640, 1040), floats(1024, 1040, dtype=E5))),
    "wide": (wide_result, lambda: (floats(640, 2048), floats(1024, 2048), numbers(1)[0])),
    "wide few": (wide_result, lambda: (floats(20, 2048), floats(1024, 2048), numbers(1)[0])),
    "one row": (wide_result, lambda: (floats(1, 2048), floats(1024, 2048), numbers(1)[0])),
    "of f16": (of_f16, lambda: (floats(640, 2048), floats(1024, 2048))),
    "halves": (halves, lambda: (floats(640, 2048), floats(1024, 2048), floats(640, 1024, dtype=BF16))),
    "quantised": (quantised, lambda: (floats(640, 2048), floats(1024, 2048), numbers(1)[0])),
    "quantised odd": (quantised, lambda: (floats(643, 2064), floats(1027, 2064), numbers(1)[0])),
    "gated": (gated, lambda: (floats(640, 2048), floats(1024, 2048), floats(1024, 2048), numbers(1)[0])),
    "by rows": (by_rows, lambda: (floats(640, 2048, dtype=BF16), floats(1024, 2048))),
    "columns adjoin": (columns_adjoin, lambda: (floats(640, 2048), floats(2048, 1024))),
    "rows adjoin": (rows_adjoin, lambda: (floats(2048, 640), floats(2048, 1024))),
    "of itself": (of_itself, lambda: (floats(1024, 1024),)),
    "parts": (parts, lambda: (floats(1024, 1024), floats(2048, 1024))),
    "odd parts": (odd_parts, lambda: (floats(1024, 1024), floats(1027, 1024))),
    "three axes": (three_axes, lambda: (floats(4, 256, 1024), floats(1024, 1024))),
    "few tiles": (rounded, lambda: (floats(128, 4096), floats(4096, 4096))),
    "small": (rounded, lambda: (floats(96, 250), floats(80, 250))),
    "bytes": (
        scaled,
        lambda: (integers(1000, 2048), integers(1032, 2048), numbers(1000, 1), numbers(1032), numbers(1032)),
    ),
    "bytes wide": (wide_result, lambda: (integers(640, 2048), integers(1024, 2048), numbers(1)[0])),
    "bytes quantised": (quantised, lambda: (integers(640, 2048), integers(1024, 2048), numbers(1)[0] / 4096)),
    "bytes otherwise": (columns_adjoin, lambda: (integers(640, 2048), integers(2048, 1024))),
    "bytes small": (rounded, lambda: (integers(96, 250), integers(80, 250))),
}


def error(found: Any, exact: Any) -> float:
    known = exact.isfinite()
    return float((found.double() - exact)[known].abs().max())


@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_written(name: str) -> None:
    torch.manual_seed(0)
    function, arguments = CASES[name]
    given = arguments()
    eager = lambda *args: function(*args, F32)  # noqa: E731
    found, wanted, exact = fusec.jit(eager, fallback="error")(*given), eager(*given), function(*given, torch.float64)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.isnan() if found.dtype not in (E4, E5) else found.float().isnan(), wanted.float().isnan())
    ulp = torch.finfo(found.dtype).eps * float(exact[exact.isfinite()].abs().max())
    assert error(found, exact) <= 2 * error(wanted, exact) + 2 * ulp


def test_int_mm_is_exact() -> None:
    a, b = integers(640, 4096), integers(1024, 4096)
    for given in ((a, b.T), (a, b.T.contiguous()), (a[:90, :250], b.T[:250, :81])):
        found = fusec.jit(lambda a, b: torch._int_mm(a, b), fallback="error")(*given)
        assert torch.equal(found.double(), given[0].double() @ given[1].double())


@pytest.mark.parametrize("rows", [16, 640])
@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_mm(rows: int, by_row: bool) -> None:
    a, b = floats(rows, 2048), floats(1024, 2048)
    s, t = (numbers(rows, 1), numbers(1, 1024)) if by_row else (numbers(1)[0], numbers(1)[0])
    bias = floats(1024, dtype=BF16)
    multiplied = lambda a, b, s, t, c: torch._scaled_mm(a, b.T, s, t, bias=c, out_dtype=BF16)  # noqa: E731
    found = fusec.jit(multiplied, fallback="error")(a, b, s, t, bias)
    exact = (a.double() @ b.double().T) * s.double() * t.double() + bias.double()
    ulp = torch.finfo(BF16).eps * float(exact.abs().max())
    assert error(found, exact) <= 2 * error(multiplied(a, b, s, t, bias), exact) + ulp


@pytest.mark.parametrize("function", [rounded, quantised_by(0.125), wide_result_by(0.125)], ids=["", "8 bits", "f32"])
def test_rows_of_any_number(function: Callable[..., Any]) -> None:
    """The second number of rows gets a program for ranges."""
    compiled = fusec.jit(lambda a, b: function(a, b, F32), fallback="error")
    b = floats(1024, 2048)
    for rows in (640, 300, 65, 1000, 7, 129):
        a = floats(rows, 2048)
        found, wanted, exact = compiled(a, b), function(a, b, F32), function(a, b, torch.float64)
        ulp = torch.finfo(found.dtype).eps * float(exact.abs().max())
        assert error(found, exact) <= 2 * error(wanted, exact) + 2 * ulp
