# SPDX-License-Identifier: Apache-2.0
"""transformers' mixtures of experts: a model is one program, its loops over experts in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from fusec.frontend.torch import capture

transformers = pytest.importorskip("transformers", minversion="5")

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4))


def gpt_oss() -> Any:
    """Experts with biases, whose gates are every second column."""
    config = transformers.GptOssConfig(**SIZES, num_local_experts=4, head_dim=8)
    return transformers.GptOssForCausalLM(config)


@pytest.mark.parametrize("make", [mixtral, gpt_oss], ids=lambda f: f.__name__)
def test_models_are_one_program(make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    model.set_experts_implementation("eager")
    tokens = torch.arange(12)[None]

    def run(tokens: Any) -> Any:
        return model(tokens, use_cache=False).logits

    graph = capture(run, (tokens,), {}).graph
    assert sum(op.name == "scatter_add_where" for op in graph.ops) == 4
    torch.testing.assert_close(fusec.jit(run)(tokens), run(tokens), rtol=1e-4, atol=1e-5)
