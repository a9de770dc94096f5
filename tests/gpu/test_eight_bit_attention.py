"""Attention of 8-bit floats on a CUDA device: as exact as the code as written, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("no CUDA device that has Hopper's tensor cores", allow_module_level=True)
from torch.nn import functional as F  # noqa: E402

import fusec  # noqa: E402

pytestmark = pytest.mark.gpu

E4, E5, BF16, F32, F64 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.float64


def heads(*shape: int, dtype: Any = E4, size: float = 1.0) -> Any:
    return (torch.randn(*shape, device="cuda") * size).to(dtype)


def scale(*shape: int) -> Any:
    return torch.rand(shape, device="cuda") + 0.5


def end(y: Any, wide: Any) -> Any:
    return y.to(BF16) if wide is F32 else y


def weighted(s: Any, v: Any, wide: Any) -> Any:
    return torch.softmax(s, -1) @ v.to(wide)


def plain(q: Any, k: Any, v: Any, wide: Any) -> Any:
    return end(weighted(q.to(wide) @ k.to(wide).mT / math.sqrt(q.shape[-1]), v, wide), wide)


def scaled(q: Any, k: Any, v: Any, s: Any, t: Any, u: Any, wide: Any) -> Any:
    scores = (q.to(wide) @ k.to(wide).mT) * (s.to(wide) * t.to(wide) / math.sqrt(q.shape[-1]))
    return end(weighted(scores, v, wide) * u.to(wide), wide)


def scaled_causal(q: Any, k: Any, v: Any, s: Any, wide: Any) -> Any:
    n = q.shape[-2]
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    scores = (q.to(wide) @ k.to(wide).mT) * s.to(wide)
    return end(weighted(scores.masked_fill(~seen, -math.inf), v, wide), wide)


def factors(*numbers: float) -> Any:
    return torch.tensor(numbers, device="cuda")[None, :, None, None]


def causal(q: Any, k: Any, v: Any, wide: Any) -> Any:
    n = q.shape[-2]
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    scores = q.to(wide) @ k.to(wide).mT / math.sqrt(q.shape[-1])
    return end(weighted(scores.masked_fill(~seen, -math.inf), v, wide), wide)


def library(q: Any, k: Any, v: Any, wide: Any) -> Any:
    return end(F.scaled_dot_product_attention(q.to(wide), k.to(wide), v.to(wide), is_causal=True), wide)


def of_halves(q: Any, k: Any, v: Any, wide: Any) -> Any:
    half = BF16 if wide is F32 else wide
    return F.scaled_dot_product_attention(q.to(half), k.to(half), v.to(half))


def grouped(q: Any, k: Any, v: Any, wide: Any) -> Any:
    b, h, n, d = k.shape
    times = q.shape[1] // h
    k, v = (x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d) for x in (k, v))
    return plain(q, k, v, wide)


def wide_result(q: Any, k: Any, v: Any, wide: Any) -> Any:
    return weighted(q.to(wide) @ k.to(wide).mT / math.sqrt(q.shape[-1]), v, wide)


def half_values(q: Any, k: Any, v: Any, wide: Any) -> Any:
    half = BF16 if wide is F32 else wide
    s = (q.to(half) @ k.to(half).mT) / math.sqrt(q.shape[-1])
    return torch.softmax(s, -1) @ v.to(half)


def of_one_array(x: Any, wide: Any) -> Any:
    b, n, _ = x.shape
    q, k, v = x.view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
    return plain(q, k, v, wide).transpose(1, 2).reshape(b, n, -1)


def three(b: int, h: int, n: int, d: int, m: int = 0, values: int = 0, **more: Any) -> tuple[Any, ...]:
    m, values = m or n, values or d
    return heads(b, h, n, d, **more), heads(b, h, m, d, **more), heads(b, h, m, values, **more)


def special() -> tuple[Any, ...]:
    q, k, v = torch.randn(3, 2, 40, 512, 128, device="cuda")
    q[0, 0, 5, 7], v[0, 1, 9, 3], k[1, 2, 100, 0] = float("nan"), float("nan"), float("nan")
    q[1, 3], k[1, 4] = 448.0, 0.0
    return q.to(E4), k.to(E4), v.to(E4)


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "plain": (plain, lambda: three(2, 40, 512, 128)),
    "narrow heads": (plain, lambda: three(2, 40, 2048, 64)),
    "short narrow heads": (plain, lambda: three(2, 40, 512, 64)),
    "widest heads": (plain, lambda: three(1, 40, 512, 256)),
    "heads of 96": (plain, lambda: three(2, 40, 512, 96)),
    "heads of 80": (plain, lambda: three(2, 40, 512, 80)),
    "other values": (plain, lambda: three(2, 40, 512, 128, values=64)),
    "odd rows": (plain, lambda: three(2, 40, 500, 128)),
    "few queries": (plain, lambda: three(2, 40, 16, 128, m=512)),
    "other keys": (plain, lambda: three(2, 40, 256, 128, m=777)),
    "scaled": (scaled, lambda: (*three(2, 40, 512, 128), scale(), scale(), scale())),
    "scaled heads": (scaled, lambda: (*three(2, 40, 512, 128), *(scale(1, 40, 1, 1) for _ in range(3)))),
    "scaled, causal": (scaled_causal, lambda: (*three(2, 40, 700, 128), scale(1, 40, 1, 1) / 8)),
    "odd factors": (
        scaled_causal,
        lambda: (*three(10, 8, 512, 128), factors(0.1, -0.1, 0.0, -0.0, math.inf, math.nan, 1e-30, -1e-30)),
    ),
    "causal": (causal, lambda: three(2, 40, 768, 128)),
    "causal odd": (causal, lambda: three(2, 40, 700, 128)),
    "library": (library, lambda: three(2, 40, 768, 128)),
    "of halves": (of_halves, lambda: three(2, 40, 512, 128)),
    "half values": (half_values, lambda: three(2, 40, 512, 128)),
    "grouped": (grouped, lambda: (heads(2, 32, 512, 128), heads(2, 8, 512, 128), heads(2, 8, 512, 128))),
    "wide result": (wide_result, lambda: three(2, 40, 512, 128)),
    "e5m2": (plain, lambda: three(2, 40, 512, 128, dtype=E5)),
    "mixed": (plain, lambda: (*three(2, 40, 512, 128)[:1], *three(2, 40, 512, 128, dtype=E5)[1:])),
    "large": (plain, lambda: three(2, 40, 512, 128, size=3.0)),
    "of one array": (of_one_array, lambda: (heads(8, 512, 3 * 8 * 64),)),
    "special": (plain, special),
}


@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_written(name: str) -> None:
    torch.manual_seed(0)
    function, arguments = CASES[name]
    args = arguments()
    eager = lambda *args: function(*args, F32)  # noqa: E731
    found, wanted, exact = fusec.jit(eager, fallback="error")(*args), eager(*args), function(*args, F64)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.isnan(), wanted.isnan())
    known = exact.isfinite()
    ulp = torch.finfo(found.dtype).eps * float(exact[known].abs().max())
    mine, other = (float((x.double() - exact)[known].abs().max()) for x in (found, wanted))
    assert mine <= 2 * other + 2 * ulp


@pytest.mark.parametrize("name", ["plain", "narrow heads", "scaled", "causal", "library", "of halves", "grouped"])
def test_scores_are_multiplied_in_8_bits(name: str) -> None:
    function, arguments = CASES[name]
    text = str(fusec.explain(lambda *args: function(*args, F32), *arguments()))
    assert "attention" in text
    assert "consumers=" in text
