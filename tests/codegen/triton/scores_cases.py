"""Score spaces without a softmax as users write them in PyTorch: sigmoid, powers, retention, attention's backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusec.frontend.torch import capture

Function = Callable[..., Any]
HALF = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A function of tensors of these shapes; those named in ``single`` are f32, those of one axis ids, the rest
    ``dtype``.

    transposed: heads lie beside each other, as a projection leaves them.
    """

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    single: tuple[int, ...] = ()
    dtype: Any = HALF
    transposed: bool = False

    def examples(self, device: str = "cpu") -> list[Any]:
        generator = torch.Generator(device=device).manual_seed(0)
        return [self._made(shape, k in self.single, generator, device) for k, shape in enumerate(self.shapes)]

    def _made(self, shape: tuple[int, ...], single: bool, generator: Any, device: str) -> Any:
        if len(shape) == 1:
            return torch.arange(shape[0], device=device) // 37
        if self.transposed and len(shape) == 4:
            b, h, n, d = shape
            made = torch.randn(b, n, h, d, generator=generator, device=device).transpose(1, 2)
        else:
            made = torch.randn(shape, generator=generator, device=device)
        # row vectors, such as log-sum-exps, are near those of normal scores
        return made + 4 if single else made.to(self.dtype)

    def text(self) -> str:
        return str(capture(self.function, tuple(self.examples()), {}).graph)


def indices(s: Any) -> tuple[Any, Any]:
    n, m = s.shape[-2:]
    return torch.arange(n, device=s.device)[:, None], torch.arange(m, device=s.device)[None, :]


def causal(s: Any) -> Any:
    i, j = indices(s)
    return j > i


def sigmoid(q: Any, k: Any, v: Any) -> Any:
    return torch.sigmoid(q @ k.mT / q.shape[-1] ** 0.5) @ v


def sigmoid_causal(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT / q.shape[-1] ** 0.5
    return torch.sigmoid(s.masked_fill(causal(s), -torch.inf)) @ v


def sigmoid_zeroed(q: Any, k: Any, v: Any) -> Any:
    s = torch.sigmoid(q @ k.mT / q.shape[-1] ** 0.5 - 2.0)
    return s.masked_fill(causal(s), 0.0) @ v


def relu_squared(q: Any, k: Any, v: Any) -> Any:
    return (torch.relu(q @ k.mT) ** 2 / k.shape[-2]) @ v


def polynomial_windowed(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT / q.shape[-1]
    i, j = indices(s)
    return torch.where((j <= i) & (i - j < 40), (1 + s) ** 2, 0.0) @ v


def retention(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT
    i, j = indices(s)
    decay = torch.where(i >= j, 0.97 ** (i - j).float(), 0.0)
    return (s * decay.to(q.dtype)) @ v


def retention_per_head(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT
    i, j = indices(s)
    heads = torch.arange(q.shape[1], device=q.device, dtype=torch.float32)
    decay = torch.log(1 - 2.0 ** (-5 - heads))[:, None, None]
    weights = torch.exp(decay * (i - j)).masked_fill(j > i, 0.0)
    return (s * weights.to(q.dtype)) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.sigmoid(q @ k.mT + bias) @ v


def difference(q1: Any, q2: Any, k1: Any, k2: Any, v: Any) -> Any:
    """Two score products a point."""
    a, b = torch.sigmoid(q1 @ k1.mT / 4), torch.sigmoid(q2 @ k2.mT / 4)
    s = a - 0.3 * b
    return s.masked_fill(causal(s), 0.0) @ v


def normalized(q: Any, k: Any, v: Any) -> Any:
    """Scores in proportion to the sum of their sizes."""
    s = retained(q, k)
    return (s / s.abs().sum(-1, keepdim=True)) @ v


def normalized_at_least(q: Any, k: Any, v: Any) -> Any:
    """Retention's normaliser, given too."""
    s = retained(q, k)
    size = s.float().sum(-1, keepdim=True).abs().clamp(min=1)
    return (s / size).to(v.dtype) @ v, size


def beside_sums(q: Any, k: Any, v: Any) -> Any:
    """The sum of the weights, and how many are large, beside what they weigh."""
    s = torch.sigmoid(q @ k.mT / 4)
    return s @ v, s.float().sum(-1), (s > 0.5).float().sum(-1)


def retained(q: Any, k: Any) -> Any:
    s = q @ k.mT
    i, j = indices(s)
    return s * torch.where(i >= j, 0.97 ** (i - j).float(), 0.0).to(q.dtype)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Query heads that share keys and values."""
    heads = q.shape[1] // k.shape[1]
    k, v = (x[:, :, None].expand(-1, -1, heads, -1, -1).flatten(1, 2) for x in (k, v))
    return sigmoid_causal(q, k, v)


def _weights(q: Any, k: Any, lse: Any, masked: bool) -> Any:
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if masked:
        s = s.masked_fill(causal(s), -torch.inf)
    return torch.exp(s - lse[..., None])


def backward_queries(masked: bool) -> Function:
    def dq(q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any) -> Any:
        p = _weights(q, k, lse, masked)
        ds = p * ((do @ v.mT).float() - delta[..., None]) * q.shape[-1] ** -0.5
        return ds.to(q.dtype) @ k

    return dq


def backward_keys(masked: bool) -> Function:
    def dkv(q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any) -> Any:
        p = _weights(q, k, lse, masked)
        dv = p.to(q.dtype).mT @ do
        ds = p * ((do @ v.mT).float() - delta[..., None]) * q.shape[-1] ** -0.5
        return ds.to(q.dtype).mT @ q, dv

    return dkv


def backward(q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any) -> Any:
    """All three gradients: the scores are consumed along both axes."""
    p = _weights(q, k, lse, True)
    ds = (p * ((do @ v.mT).float() - delta[..., None]) * q.shape[-1] ** -0.5).to(q.dtype)
    return ds @ k, ds.mT @ q, p.to(q.dtype).mT @ do


def documents(function: Function, causal: bool = True) -> Function:
    """A function of scores under a mask of documents, whose ids come last."""

    def masked(q: Any, k: Any, *rest: Any) -> Any:
        *others, doc = rest
        s = q @ k.mT
        i, j = indices(s)
        seen = doc[: s.shape[-2], None] == doc[None, : s.shape[-1]]
        seen = seen & (j <= i) if causal else seen
        return function(q, k, s, seen, *others)

    return masked


def _sigmoid_seen(q: Any, k: Any, s: Any, seen: Any, v: Any) -> Any:
    return torch.sigmoid(s.masked_fill(~seen, -torch.inf)) @ v


def _backward_seen(q: Any, k: Any, s: Any, seen: Any, v: Any, do: Any, lse: Any, delta: Any) -> Any:
    p = torch.exp((s.float() * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf) - lse[..., None])
    ds = (p * ((do @ v.mT).float() - delta[..., None]) * q.shape[-1] ** -0.5).to(q.dtype)
    return ds @ k, ds.mT @ q, p.to(q.dtype).mT @ do


def _padded(q: Any, k: Any, v: Any, length: Any) -> Any:
    """Keys beyond a length that is data."""
    s = q @ k.mT
    return torch.relu(s.masked_fill(torch.arange(s.shape[-1], device=s.device) >= length, -torch.inf)) @ v


def sigmoid_and_weights(q: Any, k: Any, v: Any) -> Any:
    """The weights are a result, too."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    p = torch.sigmoid(s.masked_fill(causal(s), -torch.inf))
    return p @ v, p


def relu_turned(q: Any, k: Any, v: Any) -> Any:
    """Rows of the space are columns of the weights in memory, which are read as sums over heads."""
    p = torch.relu(q @ k.mT)
    return p.mT @ v, p.sum(1)


def trained_bias(masked: bool, axes: tuple[int, ...], flat: bool = False) -> Function:
    """All gradients of an attention with a bias, whose own is a sum over some axes of the scores' gradient."""

    def backward_of_bias(q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any, bias: Any) -> Any:
        shape = (*q.shape[:3], k.shape[2])
        if flat:
            q, k, v, do = (x.flatten(0, 1) for x in (q, k, v, do))
        s = (q @ k.mT).view(shape).float() * q.shape[-1] ** -0.5 + bias
        if masked:
            s = s.masked_fill(causal(s), -torch.inf)
        p = torch.exp(s - lse[..., None])
        dp = (do @ v.mT).view(shape).float()
        ds = (p * (dp - delta[..., None])).to(q.dtype)
        scaled, p = ((x.to(q.dtype).flatten(0, 1) if flat else x.to(q.dtype)) for x in (ds * q.shape[-1] ** -0.5, p))
        return scaled @ k, scaled.mT @ q, p.mT @ do, ds.sum(axes) if axes else ds

    return backward_of_bias


def _stored_seen(q: Any, k: Any, s: Any, seen: Any, v: Any) -> Any:
    p = torch.sigmoid(s.masked_fill(~seen, -torch.inf))
    return p @ v, p


def shapes(n: int, m: int, d: int, heads: int = 2, values: int | None = None) -> tuple[tuple[int, ...], ...]:
    return (1, heads, n, d), (1, heads, m, d), (1, heads, m, values or d)


def backward_shapes(n: int, m: int, d: int, values: int | None = None) -> tuple[tuple[int, ...], ...]:
    return *shapes(n, m, d, values=values), (1, 2, n, values or d), (1, 2, n), (1, 2, n)


SCORES = {
    "sigmoid": Case(sigmoid, shapes(100, 130, 16)),
    "sigmoid, f32": Case(sigmoid, shapes(100, 130, 16), dtype=torch.float32),
    "sigmoid, causal": Case(sigmoid_causal, shapes(300, 300, 64)),
    "sigmoid, causal, f16": Case(sigmoid_causal, shapes(256, 256, 32), dtype=torch.float16),
    "sigmoid, causal, more keys": Case(sigmoid_causal, shapes(100, 300, 16)),
    "sigmoid, causal, more queries": Case(sigmoid_causal, shapes(300, 100, 16)),
    "sigmoid, causal, heads beside each other": Case(sigmoid_causal, shapes(260, 260, 64), transposed=True),
    "sigmoid, zeroed": Case(sigmoid_zeroed, shapes(160, 160, 32)),
    "relu squared": Case(relu_squared, shapes(90, 110, 20)),
    "polynomial, windowed": Case(polynomial_windowed, shapes(300, 300, 16)),
    "retention": Case(retention, shapes(256, 256, 64, values=40)),
    "retention, f32": Case(retention, shapes(130, 130, 24), dtype=torch.float32),
    "retention, per head": Case(retention_per_head, shapes(128, 128, 32)),
    "biased": Case(biased, (*shapes(100, 130, 16), (2, 100, 130))),
    "difference": Case(difference, (*shapes(160, 160, 16)[:1] * 2, *shapes(160, 160, 16)[:1] * 2, (1, 2, 160, 32))),
    "normalized": Case(normalized, shapes(160, 160, 32)),
    "normalized, at least": Case(normalized_at_least, shapes(160, 160, 32)),
    "normalized, f32": Case(normalized_at_least, shapes(100, 130, 16), dtype=torch.float32),
    "beside sums": Case(beside_sums, shapes(100, 130, 16)),
    "grouped heads": Case(grouped, ((2, 4, 130, 32), (2, 2, 130, 32), (2, 2, 130, 32))),
    "backward, queries": Case(backward_queries(False), backward_shapes(150, 130, 32), single=(4, 5)),
    "backward, queries, causal": Case(backward_queries(True), backward_shapes(300, 300, 64), single=(4, 5)),
    "backward, keys": Case(backward_keys(False), backward_shapes(130, 150, 32, 16), single=(4, 5)),
    "backward, keys, causal": Case(backward_keys(True), backward_shapes(300, 300, 64), single=(4, 5)),
    "backward": Case(backward, backward_shapes(160, 160, 32), single=(4, 5)),
    "sigmoid, documents": Case(documents(_sigmoid_seen), (*shapes(300, 300, 32), (300,))),
    "documents, backward": Case(
        documents(_backward_seen, False), (*backward_shapes(280, 280, 32), (280,)), single=(4, 5)
    ),
    "length": Case(_padded, (*shapes(100, 300, 16), (1,))),
    "backward, keys, f32": Case(backward_keys(True), backward_shapes(70, 70, 16), (4, 5), torch.float32),
}
"""Every form."""

BIASED = ((2, 2, 140, 32),) * 4 + ((2, 2, 140),) * 2
STORED = {
    "sigmoid and weights": Case(sigmoid_and_weights, shapes(150, 130, 32)),
    "relu, turned": Case(relu_turned, ((1, 2, 150, 32), (1, 2, 130, 32), (1, 2, 150, 16))),
    "trained bias": Case(trained_bias(False, (0,)), (*BIASED, (2, 140, 140)), single=(4, 5)),
    "trained bias, causal": Case(trained_bias(True, (0,)), (*BIASED, (2, 140, 140)), single=(4, 5)),
    "trained bias, one of all heads": Case(trained_bias(True, (0, 1)), (*BIASED, (140, 140)), single=(4, 5)),
    "trained bias, of each row": Case(trained_bias(False, ()), (*BIASED, (2, 2, 140, 140)), single=(4, 5)),
    "trained bias, heads flat": Case(trained_bias(False, (0,), True), (*BIASED, (2, 140, 140)), single=(4, 5)),
    "documents and weights": Case(documents(_stored_seen), (*shapes(300, 300, 32), (300,))),
}
"""Those with values of the space that are results."""
