"""Written attention becomes the library's where a gradient is needed, and only where both say the same."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusec.frontend.torch_attention import with_library_attention

BF16 = torch.bfloat16
Function = Callable[..., Any]


def causal(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def nanogpt(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    return F.softmax(scores.masked_fill(~causal(q.size(2)), float("-inf")), dim=-1) @ v


def upcast(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.125
    weights = F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def additive(q, k, v):
    mask = torch.full((q.shape[-2], q.shape[-2]), -1e30, dtype=q.dtype).triu(1)
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) / 3 + mask, 2), v)


def in_place(q, k, v):
    scores = q @ k.mT
    scores *= 0.3
    scores.masked_fill_(causal(q.shape[-2]).logical_not(), -torch.inf)
    return scores.softmax(-1) @ v


def heads_third(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.3
    places = torch.arange(q.shape[1])
    scores = torch.where(places[:, None] >= places[None], scores, float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def swapped(q, k, v):
    scores = torch.einsum("bhkd,bhqd->bhqk", k, q)
    return torch.einsum("bhkd,bhqk->bhqd", v, scores.softmax(-1))


TAKEN: dict[str, tuple[Function, tuple[int, ...]]] = {
    "causal, filled": (nanogpt, (2, 3, 20, 16)),
    "softmax of float32": (upcast, (2, 3, 20, 16)),
    "added mask, three axes": (additive, (6, 20, 16)),
    "in place": (in_place, (2, 3, 20, 16)),
    "einsum, heads third": (heads_third, (2, 20, 3, 16)),
    "einsum, operands swapped": (swapped, (2, 3, 20, 16)),
}


def traced(function: Function, *examples: Any) -> fx.GraphModule:
    """Dynamo's graph of a function."""
    torch._dynamo.reset()
    found: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        found.append(copy.deepcopy(module))
        return module.forward

    torch.compile(function, backend=keep, fullgraph=True, dynamic=False)(*examples)
    return found[0]


def replaced(function: Function, *examples: Any, device: str = "cpu") -> bool:
    module = traced(function, *examples)
    return with_library_attention(module, (device,)) is not module


def inputs(shape: tuple[int, ...], dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("name", TAKEN)
def test_results_and_gradients_are_at_least_as_near_as_eager_s(name):
    function, shape = TAKEN[name]
    given = inputs(shape)
    module = traced(function, *given)
    made = with_library_attention(module, ("cpu",))
    assert made is not module
    order = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    by_name = dict(zip(("q", "k", "v"), given, strict=True))
    (result,) = made(*(by_name[name.lower().strip("l_")] for name in order))
    sent = torch.randn_like(result)
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = function(*exact)
    wanted = [wanted, *torch.autograd.grad(wanted, exact, sent.double())]
    eager = function(*given)
    eager = [eager, *torch.autograd.grad(eager, given, sent)]
    for got, written, right in zip([result, *torch.autograd.grad(result, given, sent)], eager, wanted, strict=True):
        assert got.dtype == written.dtype
        assert got.shape == written.shape
        allowed = 2 * (written.double() - right).abs().max() + 2**-8 * right.abs().max()
        assert (got.double() - right).abs().max() <= allowed


def window(q, k, v):
    mask = causal(q.shape[-2]) & causal(q.shape[-2]).T.roll(3, 0)
    return (q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ v


def past(q, k, v):
    """Places that see what comes later."""
    return (q @ k.mT).masked_fill(causal(q.shape[-2]), float("-inf")).softmax(-1) @ v


def capped(q, k, v):
    return (20 * torch.tanh(q @ k.mT / 20)).softmax(-1) @ v


def weights_too(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def first_axis(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def weakly_hidden(q, k, v):
    return (q @ k.mT).masked_fill(~causal(q.shape[-2]), -10.0).softmax(-1) @ v


def hidden_then_scaled(q, k, v):
    return ((q @ k.mT).masked_fill(~causal(q.shape[-2]), -1e9) * 1e-8).softmax(-1) @ v


def dropping(q, k, v):
    return F.dropout((q @ k.mT).softmax(-1), 0.1) @ v


def written_between(q, k, v):
    k = k.clone()
    scores = q @ k.mT
    k.zero_()
    return scores.softmax(-1) @ v + k.sum()


def mask_written(q, k, v):
    mask = causal(q.shape[-2])
    mask[0] = True
    return (q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ v


def negative(q, k, v):
    return (-0.5 * (q @ k.mT)).softmax(-1) @ v


def gradient_off(q, k, v):
    scores = q @ k.mT
    with torch.no_grad():
        weights = scores.softmax(-1)
    return weights @ v


@pytest.mark.parametrize(
    "function",
    [
        *(window, past, capped, weights_too, first_axis, weakly_hidden, hidden_then_scaled, dropping, written_between),
        *(mask_written, negative, gradient_off),
    ],
)
def test_what_stays_as_written(function):
    assert not replaced(function, *inputs((2, 3, 16, 16)))


def test_a_mask_from_outside_stays_as_written():
    """A row of it may hide everything."""

    def masked(q, k, v, mask):
        return (q @ k.mT).masked_fill(mask, float("-inf")).softmax(-1) @ v

    assert not replaced(masked, *inputs((2, 3, 16, 16)), ~causal(16))


def test_other_dtypes_widths_and_devices_stay_as_written():
    assert replaced(nanogpt, *inputs((2, 3, 16, 16), torch.float16))
    assert not replaced(nanogpt, *inputs((2, 3, 16, 16), torch.float32))
    assert not replaced(nanogpt, *inputs((2, 3, 16, 12)))
    assert not replaced(nanogpt, *inputs((2, 3, 16, 16)), device="cuda")
