"""One layer of BERT-base as ``transformers`` writes it, with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session
from benchmarks.workloads.modules import exact

TOKENS = (128, 512)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def layer(attention: str, dtype: torch.dtype) -> nn.Module:
    """The layer with BERT-base's sizes; the same weights each time. attention: ``eager`` or ``sdpa``."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig()
    config._attn_implementation = attention
    torch.manual_seed(0)
    made: nn.Module = BertLayer(config).eval().requires_grad_(False).to(dtype)
    return made


def rows(session: Session) -> Iterator[Row]:
    yield from session.time_all(partial(case, name, tokens) for name in DTYPES for tokens in TOKENS)


def case(name: str, tokens: int) -> Case:
    """fusec gets the code that transformers chooses itself, with SDPA; eager and compile the plain one, too."""
    dtype = DTYPES[name]
    module, plain = layer("sdpa", dtype), layer("eager", dtype)
    x = torch.randn(1, tokens, 768).to(dtype)
    width, hidden = 768, 3072
    dense = width * (4 * width + 2 * hidden)
    return Case(
        f"BERT-base layer {name}, {tokens} tokens",
        with_plain_attention(torch_peers(module, (x,)), torch_peers(plain, (x,))),
        [Faster(1.25, ("eager", "compile", "eager, plain attention", "compile, plain attention"))],
        module,
        (x,),
        exact=lambda: exact(module, x),
        flops=2.0 * tokens * dense + 4.0 * tokens * tokens * width,
        nbytes=float(dtype.itemsize * (dense + 2 * tokens * width)),
        multiplies=name,
    )


def with_plain_attention(peers: dict, plain: dict) -> dict:  # type: ignore[type-arg]
    """The peers, and those but for fusec that got the code with attention written out."""
    return {**peers, **{f"{name}, plain attention": peer for name, peer in plain.items() if name != FUSEC}}
