"""A BERT encoder to deploy, with random weights; ``config.json``'s numbers make it the real one."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertModel


def encoder(width: int = 768, layers: int = 12, heads: int = 12, words: int = 30522) -> Any:
    """An encoder without its pooler: hidden states of tokens, whose mask says which are there."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=words,
    )
    return Encoder(BertModel(config, add_pooling_layer=False)).eval().requires_grad_(False)


class Encoder(torch.nn.Module):
    """Takes ids and mask of ``[texts, tokens]``, gives the last hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.model(ids, attention_mask=mask).last_hidden_state
