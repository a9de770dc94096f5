"""Products of 8-bit floats times scales of blocks, on a CUDA device: as exact as written, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("no CUDA device that scales sums of 8-bit products", allow_module_level=True)
from torch.nn import functional as F  # noqa: E402

import fusec  # noqa: E402

pytestmark = pytest.mark.gpu

E4, E5, BF16, F32, F64 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.float64
B = 128


def floats(*shape: int, dtype: Any = E4) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def numbers(*shape: int) -> Any:
    return torch.rand(*shape, device="cuda") / 8


def signed(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def blocks(n: int) -> int:
    return -(-n // B)


def rows_by_view(a: Any, s: Any, wide: Any) -> Any:
    m, k = a.shape
    return (a.to(wide).view(m, k // B, B) * s.to(wide)[..., None]).view(m, k)


def blocks_by_view(b: Any, s: Any, wide: Any) -> Any:
    n, k = b.shape
    return (b.to(wide).view(n // B, B, k // B, B) * s.to(wide)[:, None, :, None]).view(n, k)


def rows_repeated(a: Any, s: Any, wide: Any) -> Any:
    return a.to(wide) * s.to(wide).repeat_interleave(B, 1)[:, : a.shape[1]]


def blocks_repeated(b: Any, s: Any, wide: Any) -> Any:
    n, k = b.shape
    return b.to(wide) * s.to(wide).repeat_interleave(B, 0)[:n].repeat_interleave(B, 1)[:, :k]


def end(y: Any, wide: Any) -> Any:
    return y.to(BF16) if wide is F32 else y


def by_view(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    return end(rows_by_view(a, s, wide) @ blocks_by_view(b, t, wide).T, wide)


def repeated(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    return end(rows_repeated(a, s, wide) @ blocks_repeated(b, t, wide).T, wide)


def with_bias(a: Any, s: Any, b: Any, t: Any, bias: Any, wide: Any) -> Any:
    y = rows_by_view(a, s, wide) @ blocks_by_view(b, t, wide).T + bias.to(wide)
    return end(F.gelu(y, approximate="tanh"), wide)


def with_residual(a: Any, s: Any, b: Any, t: Any, r: Any, wide: Any) -> Any:
    y = end(F.linear(rows_by_view(a, s, wide), blocks_by_view(b, t, wide)), wide)
    return y + r.to(y.dtype)


def written_over(a: Any, s: Any, b: Any, t: Any, r: Any, wide: Any) -> Any:
    r = r.to(BF16 if wide is F32 else wide, copy=True)
    r += end(rows_by_view(a, s, wide) @ blocks_by_view(b, t, wide).T, wide)
    return r


def quantised(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    y = (rows_by_view(a, s, wide) @ blocks_by_view(b, t, wide).T).clamp(-448, 448)
    return y.to(E4) if wide is F32 else y


def gated(a: Any, s: Any, g: Any, t: Any, u: Any, v: Any, wide: Any) -> Any:
    x = rows_by_view(a, s, wide)
    return end(F.silu(x @ blocks_by_view(g, t, wide).T) * (x @ blocks_by_view(u, v, wide).T), wide)


def unlike(a: Any, s: Any, b: Any, t: Any, c: Any, u: Any, wide: Any) -> Any:
    """Two matmuls of one left operand that are no kernel together, and another reader of it."""
    x = rows_by_view(a, s, wide)
    y, z = x @ blocks_by_view(b, t, wide).T, x @ blocks_by_view(c, u, wide).T
    return torch.cat([end(y, wide), end(z, wide), end(x.amax(-1, keepdim=True), wide)], 1)


def by_rows_and_columns(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    return end((a.to(wide) * s.to(wide)) @ (b.to(wide) * t.to(wide)).T, wide)


def one_side(a: Any, b: Any, t: Any, wide: Any) -> Any:
    return end(a.to(wide) @ blocks_by_view(b, t, wide).T, wide)


def along_k_first(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    """Scales that lie along the rows."""
    return end(rows_by_view(a, s.T, wide) @ blocks_by_view(b, t.T, wide).T, wide)


def by_einsum(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    m, k = a.shape
    n = b.shape[0]
    x = a.to(wide).view(m, k // B, B) * s.to(wide)[..., None]
    w = b.to(wide).view(n // B, B, k // B, B) * t.to(wide)[:, None, :, None]
    return end(torch.einsum("mkj,nkj->mn", x, w.view(n, k // B, B)), wide)


def by_loop(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    """Block after block of K; scales multiply the sums."""
    n, k = b.shape
    total = torch.zeros(a.shape[0], n, device=a.device, dtype=wide)
    for block in range(blocks(k)):
        inside = slice(block * B, (block + 1) * B)
        part = a[:, inside].to(wide) @ b[:, inside].to(wide).T
        total += part * s[:, block : block + 1].to(wide) * t[:, block].to(wide).repeat_interleave(B)[:n]
    return end(total, wide)


def by_loop_of_products(a: Any, s: Any, b: Any, t: Any, wide: Any) -> Any:
    total: Any = 0.0
    for block in range(blocks(b.shape[1])):
        inside = slice(block * B, (block + 1) * B)
        scales = s[:, block, None].to(wide) * t[:, block].to(wide).repeat_interleave(B)
        total = total + (a[:, inside].to(wide) @ b[:, inside].to(wide).T) * scales
    return end(total, wide)


def quantised_here(x: Any, b: Any, t: Any, wide: Any) -> Any:
    """What is quantised by a kernel before is the same numbers in both."""
    m, k = x.shape
    parts = x.float().view(m, k // B, B)
    s = parts.abs().amax(-1) / 448
    a = (parts / s[..., None]).to(E4).view(m, k)
    return end(rows_by_view(a, s, wide) @ blocks_by_view(b, t, wide).T, wide)


def given(m: int, k: int, n: int, dtype: Any = E4, scales: Callable[..., Any] = numbers) -> tuple[Any, ...]:
    return floats(m, k, dtype=dtype), scales(m, blocks(k)), floats(n, k, dtype=dtype), scales(blocks(n), blocks(k))


def odd_scales(m: int, k: int, n: int, dtype: Any = E4) -> tuple[Any, ...]:
    """Infinite, huge, tiny and zero scales, and NaN: each of some rows, and of a block."""
    a, s, b, t = given(m, k, n, dtype)
    s[3, 1], s[70, 0], s[130, 2], s[131], s[200, 3] = float("inf"), 3e38, 1e-42, 0.0, float("nan")
    t[1, 1], t[2, 2] = float("inf"), 3e38
    a.view(torch.uint8)[3, 128:160] = 0
    return a, s, b, t


def infinite(m: int, k: int, n: int) -> tuple[Any, ...]:
    _, s, b, t = given(m, k, n, E5)
    x = torch.randn(m, k, device="cuda")
    x[5, 7], x[9, 300], x[9, 301] = float("inf"), float("nan"), 0.0
    s[5, 0] = 0.0
    return x.to(E5), s, b, t


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "view": (by_view, lambda: given(640, 2048, 1024)),
    "repeated": (repeated, lambda: given(640, 2048, 1024)),
    "many tiles": (by_view, lambda: given(4096, 1024, 4608)),
    "signed": (by_view, lambda: given(640, 1024, 1024, scales=signed)),
    "odd rows": (by_view, lambda: given(643, 2048, 1024)),
    "odd columns": (repeated, lambda: given(643, 2064, 1032)),
    "columns of no eights": (repeated, lambda: given(130, 1040, 131)),
    "e5m2": (by_view, lambda: given(384, 1024, 512, E5)),
    "bias": (with_bias, lambda: (*given(640, 2048, 1024), numbers(1024))),
    "residual": (with_residual, lambda: (*given(640, 2048, 1024), floats(640, 1024, dtype=BF16))),
    "written over": (written_over, lambda: (*given(640, 2048, 1024), floats(640, 1024, dtype=BF16))),
    "to 8 bits": (quantised, lambda: given(640, 2048, 1024)),
    "gated": (gated, lambda: (*given(640, 2048, 1024), floats(1024, 2048), numbers(8, 16))),
    "unlike": (unlike, lambda: (*given(640, 2048, 1024), floats(256, 2048), numbers(2, 16))),
    "rows and columns": (
        by_rows_and_columns,
        lambda: (floats(640, 2048), numbers(640, 1), floats(1032, 2048), numbers(1032, 1)),
    ),
    "one scale": (by_rows_and_columns, lambda: (floats(640, 2048), numbers(1)[0], floats(1032, 2048), numbers(1)[0])),
    "one side": (one_side, lambda: (floats(640, 2048), floats(1024, 2048), numbers(8, 16))),
    "along k first": (along_k_first, lambda: (floats(640, 2048), numbers(16, 640), floats(1024, 2048), numbers(16, 8))),
    "einsum": (by_einsum, lambda: given(640, 2048, 1024)),
    "quantised here": (quantised_here, lambda: (floats(640, 2048, dtype=BF16), floats(1024, 2048), numbers(8, 16))),
    "loop": (by_loop, lambda: given(640, 1024, 1024)),
    "loop odd": (by_loop, lambda: given(643, 1040, 1032)),
    "loop of products": (by_loop_of_products, lambda: given(640, 1024, 1024)),
    "loop, odd scales": (by_loop, lambda: odd_scales(384, 1024, 512)),
    "few tiles": (by_view, lambda: given(128, 4096, 4096)),
    "one step": (by_view, lambda: given(256, 128, 256)),
    "odd scales": (by_view, lambda: odd_scales(384, 1024, 512)),
    "odd scales e5m2": (by_view, lambda: odd_scales(384, 1024, 512, E5)),
    "odd scales many": (by_view, lambda: odd_scales(2048, 1024, 4608)),
    "infinite": (by_view, lambda: infinite(384, 1024, 512)),
}


def error(found: Any, exact: Any) -> float:
    known = exact.isfinite()
    return float((found.double() - exact)[known].abs().max())


@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_written(name: str) -> None:
    torch.manual_seed(0)
    function, arguments = CASES[name]
    args = arguments()
    eager = lambda *args: function(*args, F32)  # noqa: E731
    found, wanted, exact = fusec.jit(eager, fallback="error")(*args), eager(*args), function(*args, F64)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.float().isnan(), wanted.float().isnan())
    assert torch.equal(found.float().isinf(), wanted.float().isinf())
    known = exact.isfinite() & wanted.float().isfinite()
    rows = exact.where(known, 0).abs().amax(1, keepdim=True)  # some scales are huge: each row by itself
    ulp = torch.finfo(found.dtype).eps * rows
    mine, other = ((x.double() - exact).where(known, 0).abs() for x in (found, wanted))
    assert ((mine <= 2 * other.amax(1, keepdim=True) + 2 * ulp) | ~known).all()


@pytest.mark.parametrize(
    "name", ["view", "repeated", "odd columns", "gated", "unlike", "einsum", "rows and columns", "loop"]
)
def test_sums_are_scaled(name: str) -> None:
    """No kernel makes an operand, and none multiplies in f32."""
    function, arguments = CASES[name]
    text = str(fusec.explain(lambda *args: function(*args, F32), *arguments()))
    assert "promotes=1" in text
    assert "thread=" not in text
