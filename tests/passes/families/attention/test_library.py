"""Which attention the library can compute as it is, and what it is told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusec  # noqa: E402
from fusec.errors import FusecError  # noqa: E402
from fusec.ir.attributes import ExternAttributes  # noqa: E402
from fusec.ir.graph import FusedAttributes  # noqa: E402
from fusec.ir.place import place  # noqa: E402
from fusec.passes.families.attention.library import attention_alternatives  # noqa: E402
from fusec.passes.lower.context import LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Pieces  # noqa: E402
from fusec.passes.outputs import memory_strides  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.runtime.attentions import attention_from_text  # noqa: E402
from fusec.runtime.matmuls import see  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402
from fusec.tile.views import strided_view  # noqa: E402


def scores(q: Any, k: Any) -> Any:
    return (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def distance(s: Any) -> Any:
    return torch.arange(s.shape[-1])[None, :] - torch.arange(s.shape[-2])[:, None]


def plain(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(scores(q, k), -1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return torch.softmax(s.masked_fill(distance(s) > 0, float("-inf")), -1) @ v


def kept(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k).float()
    return torch.softmax(torch.where(distance(s) <= 0, s, -1e38), -1).to(v.dtype) @ v


def grouped(q: Any, k: Any, v: Any) -> Any:
    b, h, n, _ = k.shape
    k, v = (t[:, :1, None].expand(b, 1, h, n, t.shape[-1]).reshape(b, h, n, -1) for t in (k, v))
    return plain(q, k, v)


def window(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return torch.softmax(s.masked_fill((distance(s) > 0) | (distance(s) < -16), float("-inf")), -1) @ v


def one_more(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return torch.softmax(s.masked_fill(distance(s) > 1, float("-inf")), -1) @ v


def one_hole(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    hole = (torch.arange(s.shape[-1])[None, :] == 5) & (torch.arange(s.shape[-2])[:, None] == 40)
    return torch.softmax(s.masked_fill((distance(s) > 0) | hole, float("-inf")), -1) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(20 * torch.tanh(scores(q, k) / 20), -1) @ v


def biased(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return torch.softmax(s + distance(s), -1) @ v


def doubled(q: Any, k: Any, v: Any) -> Any:
    return plain(q, k, v) * 2


def example(*shape: int) -> Any:
    return torch.randn(*shape).to(torch.bfloat16)


def calls(function: Any, *args: Any) -> list[tuple[ExternAttributes, list[Any]]]:
    """What the library may be told for the group of attention, and the operands: inputs, or slices of them."""
    graph = lower(place(fusec.trace(function, *args), "cuda:0"), "cuda:sm_90").graph
    producers, inputs = graph.producers(), dict(zip(graph.inputs, args, strict=True))
    found = []
    for op in graph.ops:
        if isinstance(op.attributes, FusedAttributes) and op.attributes.kind == "attention":
            views = {v: strided_view(v, producers, memory_strides(graph)) for v in (*op.operands, *op.results)}
            layouts = {v: view.strides for v, view in views.items() if view is not None}
            context = LoweringContext(op, layouts, "group")
            for alternative in attention_alternatives(context, gpu_target("cuda:sm_90")):
                pieces = alternative.lower(context)
                assert isinstance(pieces, Pieces)
                (call,) = pieces.ops
                assert isinstance(call.attributes, ExternAttributes)
                seen = [views[v] for v in call.operands]
                assert [view.base.name for view in seen if view is not None] == ["q", "k", "v"]
                operands = [
                    inputs[view.base].as_strided(v.type.static_shape, view.strides, view.offset)
                    for v, view in zip(call.operands, seen, strict=True)
                    if view is not None
                ]
                found.append((call.attributes, operands))
    return found


@pytest.mark.parametrize("function", [plain, causal, kept, grouped])
@pytest.mark.parametrize("keys", [64, 80])
def test_plain_attention_is_told_to_the_library(function: Any, keys: int) -> None:
    q, k, v = example(2, 3, 64, 32), example(2, 3, keys, 32), example(2, 3, keys, 16)
    made = calls(function, q, k, v)
    assert len(made) == 2
    for attributes, given in made:
        a, _ = attention_from_text(attributes.arguments)
        assert a.causal == (function in (causal, kept))
        operands = [see(m, given).float() for m in (a.query, a.key, a.value)]
        found = torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=a.causal, scale=a.scale)
        wanted = function(*(t.float() for t in (q, k, v)))
        torch.testing.assert_close(found.reshape(a.shape), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", [window, one_more, one_hole, capped, biased, doubled])
def test_any_other_is_not(function: Any) -> None:
    args = [example(2, 3, 64, 32) for _ in range(3)]
    assert calls(function, *args) == []


def test_single_precision_is_not() -> None:
    assert calls(plain, *(torch.randn(2, 3, 64, 32) for _ in range(3))) == []


def test_a_damaged_record_is_refused() -> None:
    text = calls(plain, *(example(2, 3, 64, 32) for _ in range(3)))[0][0].arguments
    for change in ({"backend": "none"}, {"query": [0]}, {"shape": "x"}):
        with pytest.raises(FusecError, match="library"):
            attention_from_text(json.dumps({**json.loads(text), **change}))
