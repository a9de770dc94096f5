"""Models of other packages: what they are configured by, and what their caches hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from fusec.runtime.dispatch import GROWING

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


def plain_parts(value: Any) -> list[Any]:
    """The tensors in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [part for inner in value for part in plain_parts(inner)]
    held = value.values() if isinstance(value, dict) else getattr(value, "__dict__", {}).values()
    return [part for inner in held for part in plain_parts(inner)]


def bert() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50)).eval().requires_grad_(False)


def llama() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=50)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def vit() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    return transformers.ViTModel(config).eval().requires_grad_(False)


TOKENS = (torch.arange(5)[None],)
DEFAULT_CALLS: dict[str, Any] = {
    "gpt2": (model, TOKENS),
    "bert": (bert, TOKENS),
    "llama": (llama, TOKENS),
    "vit": (vit, (torch.ones(1, 3, 16, 16),)),
}


@pytest.mark.parametrize("name", DEFAULT_CALLS)
def test_the_default_call_of_a_model_is_captured(name: str) -> None:
    make, args = DEFAULT_CALLS[name]
    made = make()
    fast = fusec.jit(made)
    expected, given = made(*args), fast(*args)
    assert type(given) is type(expected)
    assert list(given) == list(expected)
    for one, other in zip(plain_parts(given), plain_parts(expected), strict=True):
        torch.testing.assert_close(one, other)
    assert fast(*args) is not given
    assert not fast._fusec.dispatcher.eager_calls
    assert "kernels" in fusec.explain(fast, *args)


def test_a_cache_that_a_call_made_can_be_called_on_with() -> None:
    made = model()
    fast = fusec.jit(made)
    tokens = torch.arange(4)[None]
    ours, theirs = fast(tokens).past_key_values, made(tokens).past_key_values
    assert type(ours) is type(theirs)
    for _ in range(2):
        one, other = fast(tokens[:, :1], past_key_values=ours), made(tokens[:, :1], past_key_values=theirs)
        torch.testing.assert_close(one.logits, other.logits)
        assert one.past_key_values is ours
        assert ours.get_seq_length() == theirs.get_seq_length()
    assert fast(tokens).past_key_values.get_seq_length() == 4


def test_hooks_that_a_model_puts_into_itself_are_a_part_of_it() -> None:
    """The first call puts them there: what a capture of it changes is taken back, all of it."""
    made, other = bert(), bert()
    fast = fusec.jit(made)
    expected = plain_parts(other(*TOKENS, output_hidden_states=True))
    for _ in range(3):
        given = plain_parts(fast(*TOKENS, output_hidden_states=True))
        assert len(given) == len(expected)
        for one, then in zip(given, expected, strict=True):
            torch.testing.assert_close(one, then)
    assert sum(fast._fusec.dispatcher.eager_calls.values()) == 1
    hooks = [sum(len(m._forward_hooks) for m in which.modules()) for which in (made, other)]
    assert hooks[0] == hooks[1] > 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("way", ["forward", "module"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_token_but_one_of_a_default_generate_is_compiled(name: str, way: str) -> None:
    """A program for the prompt, and one for all lengths of the cache that grows."""
    made = DEFAULT_CALLS[name][0]()
    given = {"do_sample": False, "max_new_tokens": 6, "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = None, 0
    expected = made.generate(TOKENS[0], **given)
    if way == "forward":
        made.forward = fusec.jit(made.forward)
        found, dispatcher = made.generate(TOKENS[0], **given), made.forward.dispatcher
    else:
        fast = fusec.jit(made)
        found, dispatcher = fast.generate(TOKENS[0], **given), fast._fusec.dispatcher
    assert found.tolist() == expected.tolist()
    assert dispatcher.eager_calls == {GROWING: 1}
    assert [plan.is_compiled for plan in dispatcher.plans] == [True, True]


def test_every_token_but_one_with_a_preallocated_cache_is_compiled() -> None:
    """Its layouts are the same at each token: the second call of a kind is compiled for them."""
    made = DEFAULT_CALLS["llama"][0]()
    given = {"do_sample": False, "max_new_tokens": 6, "cache_implementation": "static"}
    given["attention_mask"] = torch.ones(1, 5, dtype=torch.long)
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = None, 0
    expected = made.generate(TOKENS[0], **given)
    made.forward = fusec.jit(made.forward)
    for _ in range(2):
        assert made.generate(TOKENS[0], **given).tolist() == expected.tolist()
    assert made.forward.dispatcher.eager_calls == {GROWING: 1}
    assert [plan.is_compiled for plan in made.forward.dispatcher.plans] == [True, True]
