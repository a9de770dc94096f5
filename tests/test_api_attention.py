"""PyTorch's attention function, compiled: against eager on numbers that are none."""

from __future__ import annotations

from math import inf, nan

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import fusec  # noqa: E402

SIZES = [(2, 6, 6, 8), (1, 40, 600, 16), (1, 1, 70, 8)]
DTYPES = {torch.float32: SIZES, torch.bfloat16: SIZES, torch.float64: SIZES[:1], torch.float16: SIZES[:1]}


def mask_of(name: str, queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of half the keys, and of all keys of the first query."""
    kept = torch.ones(queries, keys, dtype=torch.bool)
    kept[:, keys // 2 :] = kept[0] = False
    made = {"bool": kept, "float": torch.zeros(kept.shape, dtype=dtype).masked_fill(~kept, -inf)}
    return made.get(name)


def spoil(kind: str, k: torch.Tensor, v: torch.Tensor) -> None:
    """Of positive queries: scores of -inf for all keys, all but the last, or half; values that are none beside them."""
    last = {"all": None, "all but three": -3, "half": k.shape[-2] // 2, "values": -3}[kind]
    k[..., :last, 0] = -inf
    if kind == "values":
        v[..., 0, 1], v[..., 1, 2] = nan, inf


def without_hidden(v: torch.Tensor, mask: str, queries: int) -> torch.Tensor:
    """Values with 0 where bools hide them from one query, which doesn't read them; more queries read theirs."""
    if queries > 1 or mask not in ("causal", "bool"):
        return v
    hidden = torch.arange(v.shape[-2]) > (0 if mask == "causal" else -1)
    return v.masked_fill(hidden[:, None], 0.0)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize(("dtype", "size"), [(d, size) for d, sizes in DTYPES.items() for size in sizes], ids=str)
def test_infinite_keys(mask: str, dtype: torch.dtype, size: tuple[int, ...]) -> None:
    heads, queries, keys, depth = size
    compiled = fusec.jit(F.scaled_dot_product_attention, fallback="error")
    torch.manual_seed(0)
    given = mask_of(mask, queries, keys, dtype)
    for kind in ("all", "all but three", "half", "values"):
        q, k, v = (torch.randn(1, heads, n, depth).to(dtype) for n in (queries, keys, keys))
        q = q.abs()
        spoil(kind, k, v)
        found = compiled(q, k, v, attn_mask=given, is_causal=mask == "causal")
        v = without_hidden(v, mask, queries)
        for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backend):
                wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=mask == "causal")
            tolerance = 2e-2 if dtype.itemsize == 2 else 1e-5
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sizes", [(3, 3, 128), (4, 4, 80), (8, 8, 64), (3, 100, 128)], ids=str)
@pytest.mark.parametrize("attends", [True, False], ids=["attention", "matmul"])
def test_few_rows_are_added_up_as_well_as_the_library_does(sizes: tuple[int, int, int], attends: bool) -> None:
    """Of few rows of few columns it keeps several sums for each result: one chain has up to 2.2 times its error."""
    n, m, depth = sizes

    def scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        product = q @ k.mT
        return torch.softmax(torch.sin(product), -1) @ v if attends else product

    compiled, errors = fusec.jit(scores), torch.zeros(2, dtype=torch.float64)
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 4, rows, depth, generator=generator) for rows in (n, m, m))
        exact = scores(q.double() * 3, k.double(), v.double())
        for which, function in enumerate((scores, compiled)):
            errors[which] += (function(q * 3, k, v) - exact).square().mean()
    eager, own = errors.sqrt().tolist()
    assert own <= 1.4 * eager


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (33, 70), (1, 40)])
def test_logarithms_of_its_sums_are_results_too(queries: int, keys: int, dtype: torch.dtype) -> None:
    """One kernel gives both, and infinities where a row has no key, or an infinite score."""

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        s = (q @ k.mT / 4).masked_fill(mask, -inf)
        return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 16, dtype=dtype) for n in (queries, keys, keys))
    mask = torch.rand(queries, keys) > 0.6
    mask[0] = queries > 1
    q[0, 0, -1] = inf
    compiled = fusec.jit(attention, fallback="error")
    wanted = attention(*(x.double() for x in (q, k, v)), mask)
    tolerance = 3e-2 if dtype.itemsize == 2 else 1e-5
    for found, right in zip(compiled(q, k, v, mask), wanted, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=tolerance, atol=tolerance, equal_nan=True)
    if queries > 1:
        assert "dot(softmax(maps(dot(q, k))), v) => attention" not in fusec.explain(compiled, q, k, v, mask)
