"""The main example's model with its real weights: 32 texts of 128 tokens."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Array, Case, Faster, Session
from benchmarks.workloads.model import TEXTS, TOKENS, example, inputs


def flops() -> float:
    """Multiply-adds of all products, times two."""
    m = example()
    rows = TEXTS * TOKENS
    dense = 4 * m.WIDTH * m.WIDTH + 2 * m.WIDTH * m.HIDDEN
    return float(m.LAYERS * (2 * rows * dense + 4 * TEXTS * TOKENS * TOKENS * m.WIDTH))


def rows(session: Session) -> Iterator[Row]:
    model, tokenizer = example().load()
    ids, mask = inputs(tokenizer)
    weights = sum(p.numel() for p in model.layers.parameters()) * 4.0

    def exact() -> Array:
        double, _ = example().load()
        result: Array = double.double()(ids, mask).numpy()
        return result

    yield session.time(
        Case(
            f"MiniLM f32, {TEXTS} texts × {TOKENS} tokens",
            torch_peers(model, (ids, mask)),
            [Faster(1.3, ("eager", "compile"))],
            model,
            (ids, mask),
            exact=exact,
            flops=flops(),
            nbytes=weights,
        )
    )
