"""What a mask hides from one query is neither read nor seen; where that can't be told, nothing changes."""

from __future__ import annotations

import pytest
import torch
from programs import check
from torch import Tensor
from torch.nn import functional as F

import fusec
from fusec.ir.parse import parse
from fusec.passes.skip_masked import skip_masked
from fusec.tile.nodes import Reduce, statements
from fusec.torch_compile import gathering


def branches(function: object, *args: Tensor) -> int:
    """How many reductions of the lowered function branch."""
    lowered = fusec.lower(fusec.trace(function, *args))
    return sum(isinstance(s, Reduce) and s.branches for k in lowered.kernels for s in statements(k.kernel.body))


def token(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def shared(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def cache(dtype: torch.dtype, heads: int, keys: int, depth: int, queries: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    sizes = ((2, queries, 1, depth), (2, heads, keys, depth), (2, heads, keys, depth))
    return tuple(torch.randn(size).to(dtype) for size in sizes)  # type: ignore[return-value]


MASKS = {
    "filled up to a place": torch.arange(77)[None, None, None] <= 40,
    "holes": (torch.rand(2, 1, 1, 77, generator=torch.Generator().manual_seed(1)) < 0.5),
    "of each head": (torch.rand(2, 4, 1, 77, generator=torch.Generator().manual_seed(2)) < 0.5),
    "all": torch.ones(1, 1, 1, 77, dtype=torch.bool),
    "a row without": torch.stack([torch.zeros(77, dtype=torch.bool), torch.arange(77) < 3])[:, None, None],
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [4, 2])
def test_hidden_places_hold_anything(name: str, dtype: torch.dtype, heads: int) -> None:
    """NaN and infinities in places of the cache that nobody has written."""
    mask, function = MASKS[name], token if heads == 4 else shared
    q, k, v = cache(dtype, heads, 77, 64)
    assert branches(function, q, k, v, mask) == 2
    compiled = fusec.jit(function, fallback="error")
    exact = function(q.double(), k.double(), v.double(), mask)
    eager = function(q, k, v, mask)
    each = mask.expand(2, 4, 1, 77).reshape(2, heads, -1, 77).any(2)[..., None].expand(k.shape)
    for bad in (torch.nan, torch.inf, -torch.inf):
        got = compiled(q, k.where(each, bad), v.where(each, bad), mask)
        error, usual = (got.double() - exact).abs().max(), (eager.double() - exact).abs().max()
        assert error <= 2 * usual + torch.finfo(dtype).eps


def test_what_is_seen_is_seen() -> None:
    q, k, v = cache(torch.float32, 4, 77, 64)
    mask = MASKS["filled up to a place"]
    compiled = fusec.jit(token, fallback="error")
    for place, value in ((k, torch.nan), (v, torch.nan), (v, torch.inf)):
        before = place[1, 2, 40].clone()
        place[1, 2, 40] = value
        got, eager = compiled(q, k, v, mask), token(q, k, v, mask)
        assert torch.equal(got.isfinite(), eager.isfinite())
        assert not got[1, 2].isfinite().any()
        place[1, 2, 40] = before


@pytest.mark.parametrize("fill", [-torch.inf, -1e9])
def test_scores_that_plain_code_fills(fill: float) -> None:
    """Keys are not read where the fill stands; values are, whose weights the code multiplies with."""

    def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(mask.logical_not(), fill)
        return scores.softmax(-1) @ v

    q, k, v = cache(torch.float32, 4, 77, 64)
    for name, mask in MASKS.items():
        assert branches(plain, q, k, v, mask) == 1, name
        got, eager = fusec.jit(plain, fallback="error")(q, k, v, mask), plain(q, k, v, mask)
        torch.testing.assert_close(got, eager, equal_nan=True)


@pytest.mark.parametrize("last", [1, 31])
def test_short_terms_are_read(last: int) -> None:
    """Fewer bytes than a wrong guess costs."""
    q, k, v = cache(torch.float32, 4, 77, last)
    assert branches(token, q, k, v, MASKS["holes"]) == 0
    torch.testing.assert_close(fusec.jit(token)(q, k, v, MASKS["holes"]), token(q, k, v, MASKS["holes"]))


SCORES = """graph @scores(%q: f32[3, 77, 64], %k: f32[3, 77, 64], %m: bool[3, 1, 77]) {{
    %p = mul(%q, %k) : f32[3, 77, 64]
    %s = reduce_sum(%p) {{axes=[2]}} : f32[3, 77]
    %w = reshape(%s) : f32[3, 1, 77]
    %x = mul(%w, f32(0.125)) : f32[3, 1, 77]
    %f = select({sides}) : f32[3, 1, 77]
    return {outputs}
}}"""


@pytest.mark.parametrize("sides", ["%m, %x, f32(-inf)", "%m, f32(2.5), %x"])
def test_sums_that_are_seen_where_a_mask_holds(sides: str) -> None:
    text = SCORES.format(sides=sides, outputs="%f")
    run = check(text, slack=4)
    assert run.lowered.stages["vectors"].count("reduce_sum(%f_seen") == 1
    once = skip_masked(parse(text))
    assert skip_masked(once) is once


@pytest.mark.parametrize("outer", ["1, ", "1, 1, "])
@pytest.mark.parametrize("sides", ["%m, %s, f32(0.0)", "%m, f32(2.5), %s"])
def test_a_mask_with_more_axes_than_the_sum(outer: str, sides: str) -> None:
    """It is a mask of the sums where the axes that it adds are of extent 1."""
    text = f"""graph @f(%q: f32[3, 77, 64], %m: bool[{outer}3, 1]) {{
        %p = mul(%q, %q) : f32[3, 77, 64]
        %s = reduce_sum(%p) {{axes=[2]}} : f32[3, 77]
        %f = select({sides}) : f32[{outer}3, 77]
        return %f
    }}"""
    run = check(text, slack=4)
    assert run.lowered.stages["vectors"].count("reduce_sum(%f_seen") == 1


@pytest.mark.parametrize(("mask", "result"), [("5, 3, 77", "5, 3, 77"), ("2, 1, 1", "2, 3, 77"), ("3, 77", "3, 77")])
def test_a_sum_that_a_mask_picks_at_several_places_is_whole(mask: str, result: str) -> None:
    total = "f32[1, 77]" if mask == "3, 77" else "f32[3, 77]"
    rows = total[4:].split(",")[0]
    graph = parse(f"""graph @f(%q: f32[{rows}, 77, 64], %m: bool[{mask}]) {{
        %p = mul(%q, %q) : f32[{rows}, 77, 64]
        %s = reduce_sum(%p) {{axes=[2]}} : {total}
        %f = select(%m, %s, f32(0.0)) : f32[{result}]
        return %f
    }}""")
    assert skip_masked(graph) is graph


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.bool])
def test_sums_of_any_type(dtype: torch.dtype) -> None:
    def masked(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, (a * b).sum(-1), 0)

    a, b = (torch.arange(2 * 3 * 64).reshape(2, 3, 64) * k % 7 for k in (3, 5))
    a, b, mask = a.to(dtype), b.to(dtype), torch.tensor([True, False, True])
    assert torch.equal(fusec.jit(masked, fallback="error")(a, b, mask[None]), masked(a, b, mask[None]))


def test_gradients_of_places_that_each_row_shares() -> None:
    """What a table of places gets: a sum over rows, seen where an index is not the padding."""
    x = torch.randn(2, 16, 32)

    def places(p: Tensor) -> Tensor:
        return (x + F.embedding(torch.arange(16)[None], p)).sin()

    p = torch.randn(16, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(places(p).sum(), p)
    with gathering() as graphs:
        (found,) = torch.autograd.grad(torch.compile(places, backend="fusec")(p).sum(), p)
    torch.testing.assert_close(found, expected)
    assert {g.kind for g in graphs} == {"forward", "backward"}
    assert not any(g.cuts or g.eager_calls for g in graphs)


@pytest.mark.parametrize(
    ("sides", "outputs"),
    [("%m, %x, f32(-inf)", "%f, %s"), ("%m, %x, f32(-inf)", "%f, %x"), ("%m, %x, %w", "%f")],
    ids=["the sum is a result", "the score is a result", "seen on both sides"],
)
def test_sums_with_another_use_are_whole(sides: str, outputs: str) -> None:
    graph = parse(SCORES.format(sides=sides, outputs=outputs))
    assert skip_masked(graph) is graph


@pytest.mark.parametrize(
    ("shift", "seen"),
    [("%big", 0), ("%safe", 1)],
    ids=["a row without keys is NaN", "it is zeros"],
)
def test_weights_that_are_zero_without_the_mask(shift: str, seen: int) -> None:
    text = f"""graph @weighted(%s: f32[3, 77], %m: bool[3, 77], %v: f32[3, 77, 64]) {{
        %f = select(%m, %s, f32(-inf)) : f32[3, 77]
        %top = reduce_max(%f) {{axes=[1]}} : f32[3]
        %big = reshape(%top) : f32[3, 1]
        %low = eq(%big, f32(-inf)) : bool[3, 1]
        %safe = select(%low, f32(0.0), %big) : f32[3, 1]
        %d = sub(%f, {shift}) : f32[3, 77]
        %e = exp(%d) : f32[3, 77]
        %a = reshape(%e) : f32[3, 77, 1]
        %b = broadcast(%a) : f32[3, 77, 64]
        %t = mul(%b, %v) : f32[3, 77, 64]
        %o = reduce_sum(%t) {{axes=[1]}} : f32[3, 64]
        return %o
    }}"""
    run = check(text, slack=4)
    assert run.lowered.stages["vectors"].count("reduce_sum(%o_seen") == seen
