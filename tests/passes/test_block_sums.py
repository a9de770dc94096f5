"""Loops over blocks of K that become one matmul of scaled operands, and sums that stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.ir.attributes import DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.passes.block_sums import sum_blocks
from fusec.passes.canonicalize import canonicalize
from fusec.target.gpu import gpu_target

torch = pytest.importorskip("torch")

HOPPER = partial(sum_blocks, target=gpu_target("cuda:sm_90"))
BF16, E4 = torch.bfloat16, torch.float8_e4m3fn
B = 128
Function = Callable[..., Any]


def part(a: Any, b: Any, block: int) -> Any:
    inside = slice(block * B, (block + 1) * B)
    return a[:, inside].float() @ b[:, inside].float().T


def blocks(a: Any) -> range:
    return range(-(-a.shape[1] // B))


def repeated(t: Any, n: int) -> Any:
    return t.repeat_interleave(B)[:n]


def updated(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        total += part(a, b, n) * s[:, n : n + 1] * repeated(t[:, n], b.shape[0])
    return total.to(BF16)


def scales_first(a: Any, s: Any, b: Any, t: Any) -> Any:
    total: Any = 0.0
    for n in blocks(a):
        total = repeated(t[:, n], b.shape[0]) * s[:, n, None] * part(a, b, n) + total
    return total.to(BF16)


def of_a_list(a: Any, s: Any, b: Any, t: Any) -> Any:
    return sum(part(a, b, n) * (s[:, n, None] * repeated(t[:, n], b.shape[0])) for n in blocks(a)).to(BF16)


def rows_alone(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        total += s[:, n : n + 1] * part(a, b, n)
    return total.to(BF16)


def laid_otherwise(a: Any, s: Any, b: Any, t: Any) -> Any:
    """Scales that lie along rows, weights along columns."""
    s, b = s.T.contiguous(), b.T.contiguous()
    total = torch.zeros(a.shape[0], b.shape[1])
    for n in blocks(a):
        product = a[:, n * B : (n + 1) * B].float() @ b[n * B : (n + 1) * B].float()
        total += product * s[n][:, None] * repeated(t[:, n], b.shape[1])
    return total.to(BF16)


def in_f32(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        total += part(a, b, n) * s[:, n : n + 1]
    return total


def backwards(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in reversed(blocks(a)):
        total += part(a, b, n) * s[:, n : n + 1]
    return total.to(BF16)


def other_blocks(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        product = part(a, b, n) if n else part(a, b, 1)
        total += product * s[:, n : n + 1]
    return total.to(BF16)


def unlike_sides(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        last = len(blocks(a)) - 1 - n
        total += (a[:, n * B : (n + 1) * B].float() @ b[:, last * B : (last + 1) * B].float().T) * s[:, n : n + 1]
    return total.to(BF16)


def other_scales(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        total += part(a, b, n) * s[:, n // 2 : n // 2 + 1]
    return total.to(BF16)


def of_elements(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in blocks(a):
        total += part(a, b, n) * part(a, b, n).abs()
    return total.to(BF16)


def shown(a: Any, s: Any, b: Any, t: Any) -> Any:
    total, seen = torch.zeros(a.shape[0], b.shape[0]), []
    for n in blocks(a):
        total = total + part(a, b, n) * s[:, n : n + 1]
        seen.append(total)
    return total.to(BF16), seen[0]


def short(a: Any, s: Any, b: Any, t: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[0])
    for n in range(a.shape[1] // 64):
        inside = slice(n * 64, (n + 1) * 64)
        total += (a[:, inside].float() @ b[:, inside].float().T) * s[:, n // 2 : n // 2 + 1]
    return total.to(BF16)


def arguments(m: int = 96, k: int = 384, n: int = 256) -> tuple[Any, ...]:
    torch.manual_seed(0)
    rows, columns = -(-k // B), -(-n // B)
    a, b = (torch.randn(size, k).to(E4) for size in (m, n))
    return a, torch.rand(m, rows), b, torch.rand(columns, rows)


def traced(function: Function, args: tuple[Any, ...]) -> Graph:
    return canonicalize(fusec.trace(function, *args))


def dots(graph: Graph) -> list[DotAttributes]:
    """Of those that an output needs."""
    needed, found = set(graph.outputs), []
    for op in reversed(graph.ops):
        if needed.isdisjoint(op.results):
            continue
        needed.update(op.operands)
        found += [op.expect(DotAttributes)] if op.name == "dot" else []
    return found


@pytest.mark.parametrize("function", [updated, scales_first, of_a_list, rows_alone, backwards, laid_otherwise])
@pytest.mark.parametrize("shape", [(96, 384, 256), (100, 300, 200)], ids=["whole", "ragged"])
def test_loops_are_one_matmul(function: Function, shape: tuple[int, int, int]) -> None:
    args = arguments(*shape)
    before = traced(function, args)
    after = HOPPER(before)
    (dot,) = dots(after)
    assert dot.scaled
    assert dot.scales_sums
    given = [x.float().numpy().astype(v.type.dtype.numpy) for x, v in zip(args, before.inputs)]
    (wanted,), (found,) = interpret(before, given), interpret(after, given)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("function", [in_f32, other_blocks, unlike_sides, other_scales, of_elements, shown, short])
def test_other_sums_stay(function: Function) -> None:
    graph = traced(function, arguments())
    assert not any(dot.scaled for dot in dots(HOPPER(graph)))


def test_few_rows_stay() -> None:
    graph = traced(updated, arguments(m=16))
    assert HOPPER(graph) is graph or not any(dot.scaled for dot in dots(HOPPER(graph)))


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_100", "hip:gfx942"])
def test_other_gpus_multiply_as_written(target: str) -> None:
    graph = traced(updated, arguments())
    assert sum_blocks(graph, gpu_target(target)) is graph
