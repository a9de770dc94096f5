"""``torch.compile(backend="fusec")`` on a CUDA device: forward, backward, attention, random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusec import torch_compile  # noqa: E402
from fusec.torch_compile import gathering  # noqa: E402
from fusec.torch_graphs import CompiledGraph  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=torch_compile.backend)


def kinds(graphs: list[CompiledGraph]) -> list[str]:
    return [report.kind for graph in graphs for exe in graph.executables for report in exe.program.reports]


def ran_compiled(graphs: list[CompiledGraph]) -> bool:
    called = [graph for graph in graphs if graph.parts]
    return bool(called) and not any(graph.cuts or graph.eager_calls for graph in called)


def block(dtype: Any) -> Any:
    layers = [torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 64)]
    return torch.nn.Sequential(*layers).to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_module(dtype: Any) -> None:
    module, x = block(dtype), torch.randn(96, 128, device="cuda", dtype=dtype)
    with torch.no_grad(), gathering() as graphs:
        found, expected = compiled(module)(x), module(x)
    loose = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found, expected, **loose or {"rtol": 1e-3, "atol": 1e-3})
    assert ran_compiled(graphs)
    assert "gemm" in kinds(graphs)


def test_attention_as_a_user_writes_it() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        i, j = torch.arange(200, device="cuda")[:, None], torch.arange(200, device="cuda")[None, :]
        scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(j > i, float("-inf"))
        return torch.softmax(scores, -1) @ v

    q, k, v = (torch.randn(2, 4, 200, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    with torch.no_grad(), gathering() as graphs:
        torch.testing.assert_close(compiled(attend)(q, k, v), attend(q, k, v), rtol=2e-2, atol=2e-2)
    assert kinds(graphs) == ["attention"]


def test_gradients() -> None:
    module, x = block(torch.float32), torch.randn(96, 128, device="cuda", requires_grad=True)
    inputs = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x).square().sum(), inputs)
    with gathering() as graphs:
        found = torch.autograd.grad(compiled(module)(x).square().sum(), inputs)
    for mine, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-3 * float(eager.abs().max()))
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert ran_compiled(graphs)


def test_gradients_of_attention() -> None:
    inputs = [torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True) for _ in range(3)]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sin()

    expected = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    found = torch.autograd.grad(compiled(attend)(*inputs).square().sum(), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 256, 64), (1, 3, 77, 128), (2, 2, 3, 32)])
def test_gradients_of_attention_that_is_written_out(shape: tuple[int, ...], causal: bool) -> None:
    """The library's kernels, with no probabilities in memory."""
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT * 0.2
        if causal:
            n = q.shape[-2]
            scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool, device=q.device).tril(), -torch.inf)
        return scores.softmax(-1) @ v

    exact = [t.detach().double().requires_grad_() for t in inputs]
    sent = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    eager = torch.autograd.grad(attend(*inputs), inputs, sent)
    right = torch.autograd.grad(attend(*exact), exact, sent.double())
    with gathering() as graphs:
        found = torch.autograd.grad(compiled(attend)(*inputs), inputs, sent)
    assert ran_compiled(graphs)
    assert all("_attention" in graph.report() for graph in graphs)
    for mine, written, wanted in zip(found, eager, right, strict=True):
        allowed = 2 * float((written - wanted).abs().max()) + 2**-8 * float(wanted.abs().max())
        assert float((mine - wanted).abs().max()) <= allowed


def scores_of(q: Any, k: Any) -> tuple[Any, Any, Any]:
    n = torch.arange(q.shape[-2], device=q.device)
    return q @ k.mT / q.shape[-1] ** 0.5, n[:, None], n[None, :]


def with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(scores_of(q, k)[0] + bias, -1) @ v


def with_bias_and_mask(q: Any, k: Any, v: Any, bias: Any) -> Any:
    s, i, j = scores_of(q, k)
    return torch.softmax((s + bias).masked_fill(j > i, -torch.inf), -1) @ v


def in_a_window(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores_of(q, k)
    s = 20 * torch.tanh(s / 20) - (0.1 * (i - j)).to(s.dtype)
    return torch.softmax(s.masked_fill((j > i) | (i - j >= 60), -torch.inf), -1) @ v


def by_documents(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores_of(q, k)
    document = torch.arange(q.shape[-2], device=q.device) // 37
    seen = (document[:, None] == document[None, :]) & (j <= i)
    return torch.softmax(s.masked_fill(~seen, -torch.inf), -1) @ v


def with_weights(q: Any, k: Any, v: Any) -> Any:
    p = torch.sigmoid(scores_of(q, k)[0] - 4)
    return torch.cat([p @ v, p[..., :8]], -1)


LONG = 1000
"""Positions for which kernels that compute scores again are predicted to be the faster."""
ATTENTIONS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "a bias of each head": (with_bias, ((3, LONG, LONG),)),
    "a bias of all heads": (with_bias, ((LONG, LONG),)),
    "a bias of each row": (with_bias, ((2, 3, LONG, LONG),)),
    "a bias under a mask": (with_bias_and_mask, ((3, LONG, LONG),)),
    "a cap, a slope and a window": (in_a_window, ()),
    "documents": (by_documents, ()),
    "weights that are read again": (with_weights, ()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_gradients_of_changed_attention(name: str, dtype: Any) -> None:
    """Those of a bias as well; errors are at most twice eager's."""
    function, more = ATTENTIONS[name]
    made = torch.Generator(device="cuda").manual_seed(0)
    shapes = (*((2, 3, LONG, 64),) * 3, *more)
    inputs = [torch.randn(s, device="cuda", dtype=dtype, generator=made).requires_grad_() for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    sent = torch.randn(function(*inputs).shape, device="cuda", dtype=dtype, generator=made)
    eager = torch.autograd.grad(function(*inputs), inputs, sent)
    right = torch.autograd.grad(function(*exact), exact, sent.double())
    with gathering() as graphs:
        found = torch.autograd.grad(compiled(function)(*inputs), inputs, sent)
    assert ran_compiled(graphs)
    for mine, written, wanted in zip(found, eager, right, strict=True):
        size = float(wanted.norm())
        allowed = 2 * float((written - wanted).norm()) + size * (2**-22 if dtype is torch.float32 else 2**-11)
        assert float((mine - wanted).norm()) <= allowed


def test_random_numbers_are_the_librarys() -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, training=True) * 2 + torch.rand_like(x)

    x = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        torch.manual_seed(7)
        expected = f(x)
        torch.manual_seed(7)
        torch.testing.assert_close(compiled(f)(x), expected)


def test_inputs_changed_in_place_and_sizes_that_change() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        return torch.softmax(x, -1)

    fast = compiled(f)
    with torch.no_grad():
        for rows in (3, 7, 64):
            mine = torch.randn(rows, 100, device="cuda")
            eager = mine.clone()
            torch.testing.assert_close(fast(mine), f(eager))
            torch.testing.assert_close(mine, eager)
