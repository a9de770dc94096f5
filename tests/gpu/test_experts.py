"""Layers of experts whose rows data chooses: right, without a wait for the device, the same at every call."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.gpu


def by_where(x: Any, index: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(len(w)):
        tok, slot = torch.where(index == e)
        out.index_add_(0, tok, F.silu(x[tok] @ w[e].T) @ v[e].T * p[tok, slot, None])
    return out


def by_hits(x: Any, index: Any, p: Any, w: Any, v: Any) -> Any:
    """transformers' loop; gate and up are one array's halves."""
    out, both = torch.zeros_like(x), torch.cat([w, w * 0.5], 1)
    mask = F.one_hot(index, len(w) + 1).permute(2, 1, 0)
    for hit in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        e = hit[0]
        if e == len(w):
            continue
        slot, tok = torch.where(mask[e])
        gate, up = F.linear(x[tok], both[e]).chunk(2, dim=-1)
        out.index_add_(0, tok, F.linear(F.silu(gate) * up, v[e]) * p[tok, slot, None])
    return out


def by_mask(x: Any, index: Any, p: Any, w: Any, v: Any) -> Any:
    """A number and a row of each expert's own; what a row has twice it has once."""
    out = x.clone()
    for e in range(len(w)):
        mask = (index == e).any(-1)
        own = (p * (index == e)).sum(-1)
        out[mask] += ((x[mask] @ w[e].T + w[e, :, 0]).relu() * (e + 2) @ v[e].T) * own[mask, None]
    return out


def arguments(tokens: int, chosen: int, experts: int, k: int, n: int, dtype: Any) -> list[Any]:
    g = torch.Generator().manual_seed(tokens)
    p, index = torch.topk(torch.randn(tokens, experts, generator=g).softmax(-1), chosen)
    x, w, v = (torch.randn(*shape, generator=g) for shape in ((tokens, k), (experts, n, k), (experts, k, n)))
    return [t.to("cuda", dtype) if t.is_floating_point() else t.cuda() for t in (x, index, p, w / k**0.5, v / n**0.5)]


def check(f: Any, given: list[Any]) -> None:
    exact = f(*(t.double() if t.is_floating_point() else t for t in given))
    theirs = (f(*given).double() - exact).abs().max()
    jitted = fusec.jit(f)
    found = jitted(*given)
    assert (found.double() - exact).abs().max() <= 2 * theirs + 1e-6
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = jitted(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, again)


@pytest.mark.parametrize("f", [by_where, by_hits, by_mask], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "sizes", [(37, 2, 5, 64, 96), (2, 2, 8, 64, 64), (600, 8, 64, 64, 32), (3000, 2, 8, 40, 24), (20, 2, 6, 33, 17)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_layers(f: Any, sizes: tuple[int, ...], dtype: str) -> None:
    check(f, arguments(*sizes, getattr(torch, dtype)))


@pytest.mark.parametrize("f", [by_where, by_hits], ids=lambda f: f.__name__)
def test_one_token(f: Any) -> None:
    check(f, arguments(1, 2, 8, 64, 64, torch.bfloat16))


@pytest.mark.parametrize("number", [0, 3, 7, -1])
def test_all_rows_of_one_expert_or_of_none(number: int) -> None:
    given = arguments(50, 2, 4, 32, 48, torch.bfloat16)
    given[1] = torch.full_like(given[1], number)
    check(by_where, given)


def test_modules() -> None:
    """Each expert's matrices are arrays of their own."""
    experts = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(40, 72), torch.nn.SiLU(), torch.nn.Linear(72, 40)) for _ in range(6)
    )
    experts.cuda().requires_grad_(False)

    def f(x: Any, index: Any, p: Any) -> Any:
        out = torch.zeros_like(x)
        for e, expert in enumerate(experts):
            tok, slot = torch.where(index == e)
            out.index_add_(0, tok, expert(x[tok]) * p[tok, slot, None])
        return out

    given = arguments(100, 3, 6, 40, 72, torch.float32)[:3]
    torch.testing.assert_close(fusec.jit(f)(*given), f(*given), rtol=1e-4, atol=1e-5)


def test_a_graph_is_replayed_with_other_experts() -> None:
    given = arguments(64, 2, 4, 64, 64, torch.bfloat16)
    replayed = fusec.jit(by_where, graph=True)
    for _ in range(4):
        torch.testing.assert_close(replayed(*given), by_where(*given), rtol=0.05, atol=0.06)
        given[1].copy_(torch.randint(0, 4, given[1].shape, device="cuda"))


def test_ranges_of_tokens() -> None:
    jitted = fusec.jit(by_where, dynamic=True)
    for tokens in (3, 40, 700, 5, 2500):
        given = arguments(tokens, 2, 5, 64, 48, torch.bfloat16)
        torch.testing.assert_close(jitted(*given), by_where(*given), rtol=0.05, atol=0.06)


def gradients(f: Any, given: list[Any], upstream: Any) -> list[Any]:
    own = [t.detach().requires_grad_() if t.is_floating_point() else t for t in given]
    result = f(*own)
    result.backward(upstream)
    return [result.detach(), *(t.grad for t in own if t.is_floating_point())]


@pytest.mark.parametrize("f", [by_where, by_hits], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [(37, 2, 5, 64, 96), (600, 8, 64, 64, 32), (3000, 2, 8, 40, 24), (20, 2, 6, 33, 17)])
def test_gradients(f: Any, sizes: tuple[int, ...]) -> None:
    given = arguments(*sizes, torch.bfloat16)
    upstream = torch.randn_like(given[0])
    wide = [t.double() if t.is_floating_point() else t for t in given]
    exact, theirs = gradients(f, wide, upstream.double()), gradients(f, given, upstream)
    jitted = fusec.jit(f)
    ours = gradients(jitted, given, upstream)
    for x, found, eager in zip(exact, ours, theirs, strict=True):
        assert (found.double() - x).abs().max() <= 2 * (eager.double() - x).abs().max() + 1e-6
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = gradients(jitted, given, upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "p", "q", "ends"),
    [
        (4096, 512, 1024, [0, 70, 1000, 1000, 1064, 3001, 4000, 4001]),
        (2048, 1000, 520, [5, 64, 64, 1999]),
        (130, 136, 264, [0, 1, 130]),
    ],
)
def test_sums_of_outer_products(rows: int, p: int, q: int, ends: list[int], dtype: Any) -> None:
    """Groups of odd sizes, and rows behind the last one that are no numbers."""
    x, y = (torch.randn(rows, n, device="cuda", dtype=dtype) for n in (p, q))
    x[ends[-1] :], y[ends[-1] :] = torch.nan, torch.inf
    compiled = fusec.jit(lambda x, y, ends: torch._grouped_mm(x.t(), y, offs=ends))
    found = compiled(x, y, torch.tensor(ends, device="cuda", dtype=torch.int32))
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        wanted = x[start:stop].double().t() @ y[start:stop].double()
        torch.testing.assert_close(found[group].double(), wanted, rtol=2**-7, atol=2**-7)
