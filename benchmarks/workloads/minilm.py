"""The main example's model with its real weights: 32 texts of 128 tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Array, Case, Faster, Session
from benchmarks.workloads.model import TEXTS, TOKENS, example, inputs


def flops() -> float:
    """Multiply-adds of all matmuls, times two."""
    m = example()
    rows = TEXTS * TOKENS
    dense = 4 * m.WIDTH * m.WIDTH + 2 * m.WIDTH * m.HIDDEN
    return float(m.LAYERS * (2 * rows * dense + 4 * TEXTS * TOKENS * TOKENS * m.WIDTH))


def rows(session: Session) -> Iterator[Row]:
    for name, dtype, factor in (("f32", torch.float32, 1.3), ("bf16", torch.bfloat16, 1.5)):
        yield session.time(case(name, dtype, factor))


def case(name: str, dtype: torch.dtype, factor: float) -> Case:
    model, tokenizer = example().load()
    model.to(dtype)
    ids, mask = inputs(tokenizer)
    weights = float(dtype.itemsize * sum(p.numel() for p in model.layers.parameters()))

    def exact() -> Array:
        double, _ = example().load()
        result: Array = double.to(dtype).double()(ids, mask).numpy()
        return result

    return Case(
        f"MiniLM {name}, {TEXTS} texts × {TOKENS} tokens",
        torch_peers(model, (ids, mask)),
        [Faster(factor, ("eager", "compile"))],
        model,
        (ids, mask),
        exact=exact,
        flops=flops(),
        nbytes=weights,
        multiplies=name,
    )
