"""Models of other packages: what they are configured by, and what their caches hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec

transformers = pytest.importorskip("transformers")


def model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval().requires_grad_(False)


def test_a_changed_configuration_is_seen() -> None:
    made = model()
    fast = fusec.jit(made)
    tokens = torch.arange(4)[None]
    for use_cache in (False, True, False):
        made.config.use_cache = use_cache
        for _ in range(2):
            assert (fast(tokens).past_key_values is None) is not use_cache


def test_a_cache_that_grows_is_the_callers() -> None:
    from transformers.cache_utils import DynamicCache

    made = model()
    fast = fusec.jit(made)
    ours, theirs = DynamicCache(), DynamicCache()
    tokens = torch.arange(4)[None]
    for _ in range(3):
        found = fast(tokens, past_key_values=ours, use_cache=True).logits
        expected = made(tokens, past_key_values=theirs, use_cache=True).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert ours.get_seq_length() == theirs.get_seq_length()
        tokens = expected[:, -1:].argmax(-1)
