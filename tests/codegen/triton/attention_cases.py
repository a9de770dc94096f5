"""Attention as users write it, in PyTorch: every kind of mask, bias and shape, and few queries against many keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusec.frontend.torch import capture

Function = Callable[..., Any]
HALF = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A function of q, k, v and ``more`` tensors, by shape and dtype."""

    function: Function
    q: tuple[int, ...]
    k: tuple[int, ...]
    more: tuple[tuple[tuple[int, ...], Any], ...] = ()
    dtype: Any = HALF
    transposed: bool = False

    def examples(self, device: str = "cpu") -> list[Any]:
        """Random tensors; integers are below 5."""
        generator = torch.Generator(device=device).manual_seed(0)
        made = [self._qkv(shape, generator, device) for shape in (self.q, self.k, self.k)]
        for shape, dtype in self.more:
            if dtype.is_floating_point:
                made.append(torch.randn(shape, generator=generator, device=device).to(dtype))
            else:
                made.append(torch.randint(0, 5, shape, generator=generator, device=device).to(dtype))
        return made

    def _qkv(self, shape: tuple[int, ...], generator: Any, device: str) -> Any:
        if self.transposed:
            b, h, n, d = shape
            return torch.randn(b, n, h, d, generator=generator, device=device).to(self.dtype).transpose(1, 2)
        return torch.randn(shape, generator=generator, device=device).to(self.dtype)

    def text(self) -> str:
        return str(capture(self.function, tuple(self.examples()), {}).graph)


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))


def finish(s: Any, v: Any) -> Any:
    return torch.softmax(s, -1).to(v.dtype) @ v


def indices(s: Any) -> tuple[Any, Any]:
    n, m = s.shape[-2:]
    return torch.arange(n, device=s.device)[:, None], torch.arange(m, device=s.device)[None, :]


def masked(kept: Callable[[Any, Any], Any], fill: float = -math.inf) -> Function:
    """Attention where ``kept(i, j)`` holds."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        return finish(s.masked_fill(~kept(*indices(s)), fill), v)

    return attention


def full(q: Any, k: Any, v: Any) -> Any:
    return finish(scores(q, k), v)


def enlarged(attention: Function) -> Function:
    return lambda q, k, v: attention(q * 1e5, k * 1e5, v)


def divided(q: Any, k: Any, v: Any) -> Any:
    s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(s, -1, dtype=torch.float32).to(v.dtype), v)


def scaled_queries(q: Any, k: Any, v: Any) -> Any:
    return finish((q * 0.3) @ k.transpose(-1, -2), v)


def rotated_queries(q: Any, k: Any, v: Any, angle: Any) -> Any:
    a, b = q.chunk(2, -1)
    return full(torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1), k, v)


def divided_queries(q: Any, k: Any, v: Any) -> Any:
    """The queries' padding must not become infinite."""
    return full(1 / (q.abs() + 1 / 4 * q.sign().abs()), k, v)


def rounded_by_the_user(q: Any, k: Any, v: Any) -> Any:
    return finish(((q @ k.transpose(-1, -2)).float() * 0.2).to(q.dtype).float(), v.float()).to(q.dtype)


def triangle(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return finish(s + torch.triu(torch.full(s.shape[-2:], -math.inf, device=s.device), 1).to(s.dtype), v)


def documents(q: Any, k: Any, v: Any, ids: Any) -> Any:
    s = scores(q, k)
    i, j = indices(s)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    return finish(s.masked_fill(~(same & (j <= i)), -math.inf), v)


def sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """As models write them: a logit of each head beside its keys', dropped again after the softmax."""
    s = scores(q, k)
    i, j = indices(s)
    s = s.masked_fill(j > i + k.shape[-2] - q.shape[-2], -math.inf)
    s = torch.cat((s, sink.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1)), -1)
    s = s - s.max(-1, keepdim=True).values
    return torch.softmax(s, -1)[..., :-1] @ v


def sinks_before(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s = scores(q, k)
    s = torch.cat((sink.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1), s), -1)
    return torch.softmax(s.float(), -1).to(v.dtype)[..., 1:] @ v


def key_padding(q: Any, k: Any, v: Any, keep: Any) -> Any:
    s = scores(q, k)
    return finish(s.masked_fill(keep[:, None, None, :] == 0, -math.inf), v)


def an_empty_batch(q: Any, k: Any, v: Any, keep: Any) -> Any:
    s = scores(q, k)
    first = torch.arange(q.shape[0], device=q.device)[:, None, None, None] == 0
    return finish(s.masked_fill((keep[:, None, None, :] == 0) | first, -math.inf), v)


def lengths(q: Any, k: Any, v: Any, count: Any) -> Any:
    """Keys up to a loaded length, as a cache holds them."""
    s = scores(q, k)
    _, j = indices(s)
    return finish(torch.where(j < count[:, None, None, None] * 40 + 1, s, -math.inf), v)


def pages(window: int = 0, last: int = 1) -> Function:
    """Keys of sequences of so many positions (41 times a number, and one), in pages that a table of each names.

    Queries are the last of the positions: the first of ``last`` sees one key less than the next.
    """

    def attention(q: Any, k: Any, v: Any, table: Any, count: Any) -> Any:
        (b, h, n, d), (_, groups, size, _) = q.shape, k.shape
        j = torch.arange(table.shape[1] * size, device=q.device)
        k, v = (t[table[:, j // size], :, j % size] for t in (k, v))
        seen = (count * 41 + last)[:, None, None] - torch.arange(last - 1, -1, -1, device=q.device)[:, None]
        kept = (j < seen) & (j >= seen - window) if window else j < seen
        s = torch.einsum("bgrqd,bngd->bgrqn", q.reshape(b, groups, h // groups, n, d), k) / math.sqrt(d)
        s = s.masked_fill(~kept[:, None, None], -math.inf)
        return torch.einsum("bgrqn,bngd->bgrqd", torch.softmax(s, -1), v).reshape(q.shape)

    return attention


def whole_pages(q: Any, k: Any, v: Any, table: Any, count: Any) -> Any:
    """Pages with the heads behind the positions, taken whole, and numbered from the last."""
    b, d, groups = q.shape[0], q.shape[-1], k.shape[2]
    k, v = (t[table - len(t)].reshape(b, -1, groups, d).transpose(1, 2) for t in (k, v))
    kept = torch.arange(k.shape[2], device=q.device) < count[:, None] * 41
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=kept[:, None, None], enable_gqa=True)


def additive(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return finish(scores(q, k) + mask, v)


def additive_lowest(q: Any, k: Any, v: Any, keep: Any) -> Any:
    """Padding as a mask of the lowest number that is added, the first batch all padding."""
    first = torch.arange(q.shape[0], device=q.device)[:, None] == 0
    mask = torch.where((keep == 0) | first, torch.finfo(HALF).min, 0.0).to(q.dtype)
    return finish(scores(q, k) + mask[:, None, None, :], v)


def relative_bias(q: Any, k: Any, v: Any, table: Any) -> Any:
    s = scores(q, k)
    i, j = indices(s)
    return finish(s + table[:, (i - j).clamp(-16, 16) + 16], v)


def alibi(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    i, j = indices(s)
    slope = torch.exp2(-8.0 * (torch.arange(q.shape[1], device=q.device) + 1.0) / q.shape[1])
    return finish(s + slope[:, None, None] * (j - i), v)


def softcap_window(q: Any, k: Any, v: Any) -> Any:
    s = 20.0 * torch.tanh(scores(q, k).float() / 20.0)
    i, j = indices(s)
    s = s.masked_fill((j > i) | (i - j >= 33), -math.inf)
    return torch.softmax(s, -1).to(q.dtype) @ v


def library(causal: bool = False) -> Function:
    def attention(q: Any, k: Any, v: Any) -> Any:
        grouped = q.shape[1] != k.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return attention


def masked_library(q: Any, k: Any, v: Any, rows: Any) -> Any:
    """Some queries have no key. The mask has every element: of one column's, PyTorch's own kernel faults on a GPU."""
    mask = (rows > 1)[:, None] & (torch.arange(k.shape[-2], device=k.device) >= 0)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def repeated(attention: Function) -> Function:
    """Grouped heads as models write them: keys and values repeated to the queries' heads."""

    def grouped(q: Any, k: Any, v: Any, *more: Any) -> Any:
        b, h, n, d = k.shape
        times = q.shape[1] // h
        k, v = (t[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d) for t in (k, v))
        return attention(q, k, v, *more)

    return grouped


def interleaved(attention: Function) -> Function:
    """Grouped heads as rows of queries."""

    def grouped(q: Any, k: Any, v: Any) -> Any:
        return attention(q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1]), k, v).reshape(q.shape)

    return grouped


def causal(i: Any, j: Any) -> Any:
    return j <= i


def same(*shape: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return shape, shape


def _of_pages(sequences: int, pages: int, dtype: Any = torch.int64) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """A table of pages and the sequences' lengths."""
    return ((sequences, pages), dtype), ((sequences,), dtype)


_ONE_QUERY = ((2, 8, 1, 64), (2, 2, 1000, 64))
ATTENTION: dict[str, Case] = {
    "full_odd": Case(full, (1, 2, 77, 80), (1, 2, 130, 80)),
    "full_transposed": Case(full, *same(1, 2, 70, 64), transposed=True),
    "divided_f16": Case(divided, *same(1, 2, 90, 48), dtype=torch.float16),
    "scaled_queries": Case(scaled_queries, (1, 2, 5, 32), (1, 2, 130, 32)),
    "rotated_queries": Case(rotated_queries, (1, 2, 5, 64), (1, 2, 130, 64), (((5, 32), HALF),)),
    "divided_queries": Case(divided_queries, (1, 2, 5, 40), (1, 2, 130, 40)),
    "rounded_by_the_user": Case(rounded_by_the_user, *same(1, 2, 70, 32)),
    "f32": Case(masked(causal), *same(1, 2, 70, 40), dtype=torch.float32),
    "causal_96": Case(masked(causal), *same(1, 1, 101, 96)),
    "causal_256": Case(masked(causal), *same(1, 1, 70, 256)),
    "causal_32": Case(masked(causal), *same(1, 1, 200, 32)),
    "causal_of_a_longer_past": Case(masked(lambda i, j: j <= i + 60), (1, 2, 70, 64), (1, 2, 130, 64)),
    "causal_finite_fill": Case(masked(causal, -1e38), *same(1, 1, 130, 64)),
    "causal_triangle": Case(triangle, *same(1, 1, 130, 64)),
    "window": Case(masked(lambda i, j: (j <= i) & (i - j < 50)), *same(1, 1, 200, 64)),
    "window_both_sides": Case(masked(lambda i, j: (i - j).abs() < 30), *same(1, 1, 200, 64)),
    "window_large": Case(masked(lambda i, j: (j <= i) & (i - j < 150)), *same(1, 1, 400, 32)),
    "prefix_large": Case(masked(lambda i, j: (j <= i) | (j < 150)), *same(1, 1, 400, 32)),
    "prefix": Case(masked(lambda i, j: (j <= i) | (j < 40)), *same(1, 1, 200, 64)),
    "dilated": Case(masked(lambda i, j: (j <= i) & ((i - j) % 4 == 0)), *same(1, 1, 130, 64)),
    "rows_without_keys": Case(masked(lambda i, j: j < i - 70), *same(1, 1, 150, 64)),
    "rows_without_keys_finite": Case(masked(lambda i, j: j < i - 70, -1e38), *same(1, 1, 150, 64)),
    "rows_without_keys_lowest": Case(masked(lambda i, j: j < i - 70, torch.finfo(HALF).min), *same(1, 1, 150, 64)),
    "rows_without_keys_1e9": Case(masked(lambda i, j: j < i - 70, -1e9), *same(1, 1, 150, 64)),
    "documents": Case(documents, *same(2, 1, 130, 64), (((2, 130), torch.int64),)),
    "rows_without_keys_library": Case(masked_library, *same(1, 1, 150, 64), (((150,), torch.int64),)),
    "sinks": Case(sinks, *same(2, 3, 130, 64), (((3,), HALF),)),
    "sinks_of_one_query": Case(sinks, (1, 4, 1, 64), (1, 4, 1030, 64), (((4,), HALF),)),
    "sinks_before": Case(sinks_before, (1, 2, 70, 64), (1, 2, 130, 64), (((2,), torch.float32),)),
    "key_padding": Case(key_padding, (2, 1, 70, 64), (2, 1, 130, 64), (((2, 130), torch.int32),)),
    "an_empty_batch": Case(an_empty_batch, (2, 1, 70, 64), (2, 1, 130, 64), (((2, 130), torch.int64),)),
    "lengths": Case(lengths, (2, 1, 70, 64), (2, 1, 130, 64), (((2,), torch.int64),)),
    "additive_lowest": Case(additive_lowest, (2, 1, 70, 64), (2, 1, 130, 64), (((2, 130), torch.int64),)),
    "scores_of_1e11": Case(enlarged(full), *same(1, 2, 130, 32), dtype=torch.float32),
    "scores_of_1e11_causal": Case(enlarged(masked(lambda i, j: j <= i)), *same(1, 2, 130, 32)),
    "additive": Case(additive, (2, 1, 70, 64), (2, 1, 130, 64), (((2, 1, 70, 130), HALF),)),
    "additive_f32": Case(additive, (2, 1, 70, 64), (2, 1, 130, 64), (((70, 130), torch.float32),)),
    "relative_bias": Case(relative_bias, *same(1, 2, 130, 64), (((2, 33), HALF),)),
    "alibi": Case(alibi, *same(1, 2, 130, 64)),
    "softcap_window": Case(softcap_window, *same(1, 1, 130, 64)),
    "grouped": Case(repeated(masked(causal)), (1, 2, 130, 64), (1, 1, 130, 64)),
    "one_query": Case(full, (2, 2, 1, 128), (2, 2, 900, 128)),
    "one_query_repeated": Case(repeated(full), *_ONE_QUERY),
    "one_query_interleaved": Case(interleaved(full), *_ONE_QUERY),
    "one_query_library": Case(library(), *_ONE_QUERY),
    "one_query_lengths": Case(repeated(lengths), *_ONE_QUERY, (((2,), torch.int64),)),
    "one_query_key_padding": Case(repeated(key_padding), *_ONE_QUERY, (((2, 1000), torch.int32),)),
    "one_query_empty_batch": Case(repeated(an_empty_batch), *_ONE_QUERY, (((2, 1000), torch.int32),)),
    "one_query_alibi": Case(repeated(alibi), *_ONE_QUERY),
    "one_query_odd_head": Case(repeated(full), (1, 6, 1, 80), (1, 2, 777, 80), dtype=torch.float16),
    "one_query_f32": Case(repeated(full), (1, 6, 1, 32), (1, 2, 500, 32), dtype=torch.float32),
    "few_queries": Case(repeated(masked(lambda i, j: j <= i + 997)), (1, 8, 3, 64), (1, 2, 1000, 64)),
    "few_queries_window": Case(
        repeated(masked(lambda i, j: (j <= i + 997) & (j > i + 600))), (1, 8, 3, 64), (1, 2, 1000, 64)
    ),
    "some_queries": Case(full, (1, 1, 70, 64), (1, 1, 1000, 64)),
    "pages": Case(pages(), (3, 8, 1, 64), (5, 2, 16, 64), _of_pages(3, 12)),
    "pages_window": Case(pages(window=9), (3, 8, 1, 64), (5, 2, 7, 64), _of_pages(3, 27)),
    "pages_long": Case(pages(), (2, 4, 1, 32), (5, 4, 128, 32), _of_pages(2, 9)),
    "pages_few_queries": Case(pages(last=3), (2, 4, 3, 32), (5, 2, 16, 32), _of_pages(2, 70)),
    "pages_many_queries": Case(pages(last=70), (1, 2, 70, 32), (5, 2, 16, 32), _of_pages(1, 20)),
    "pages_f32": Case(pages(), (2, 4, 1, 32), (5, 2, 16, 32), _of_pages(2, 60), dtype=torch.float32),
    "whole_pages": Case(whole_pages, (3, 8, 1, 64), (5, 16, 2, 64), _of_pages(3, 12, torch.int32)),
}
"""``one_query`` to ``some_queries`` share the keys out over blocks; so do ``pages_long`` and ``pages_few_queries``."""
