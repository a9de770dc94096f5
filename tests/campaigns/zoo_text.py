"""Language models of ``transformers``: decoders, encoders, both, and those that keep a state.

Dynamo breaks the graph where GPT-2 with labels warns of its loss, and where DeBERTa asks for a tensor's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from .zoo import Made, Model, Table

TOKENS = 99
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_SIZES, "vocab_size": TOKENS, "max_position_embeddings": 64}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SHARED = {"num_key_value_heads": 2}
_BOTH = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": TOKENS,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    **_ENDS,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_STATE = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": TOKENS, "state_size": 8}


def ids(length: int = 17) -> torch.Tensor:
    return torch.randint(3, TOKENS, (2, length))


def padded(length: int = 17) -> dict[str, torch.Tensor]:
    """What a tokenizer gives for two texts, one of which is shorter."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return {"input_ids": ids(length) * mask, "attention_mask": mask}


def whole(length: int = 17) -> dict[str, torch.Tensor]:
    """What a tokenizer gives for two texts of one length."""
    return {"input_ids": ids(length), "attention_mask": torch.ones(2, length, dtype=torch.long)}


def model(kind: str, config: str, inputs: Callable[[], dict[str, Any]] = whole, **sizes: Any) -> Callable[[], Made]:
    """Makes a model of ``transformers`` by the names of its class and of its configuration's."""

    def make() -> Made:
        return getattr(hf, kind)(getattr(hf, config)(**sizes)), (), inputs()

    return make


def decoder(family: str, head: str = "ForCausalLM", **sizes: Any) -> Callable[[], Made]:
    return model(f"{family}{head}", f"{family}Config", **{**_TEXT, **_ENDS, **sizes})


def encoder(family: str, head: str = "Model", **sizes: Any) -> Callable[[], Made]:
    return model(f"{family}{head}", f"{family}Config", padded, **{**_TEXT, "pad_token_id": 0, **sizes})


def state(family: str, head: str = "ForCausalLM", **sizes: Any) -> Callable[[], Made]:
    return model(f"{family}{head}", f"{family}Config", lambda: {"input_ids": ids()}, **{**_STATE, **_ENDS, **sizes})


def _pair() -> dict[str, Any]:
    return {**padded(), "decoder_input_ids": ids(9)}


def _labelled() -> dict[str, Any]:
    return {**whole(), "labels": ids()}


def _classes() -> dict[str, Any]:
    return {**padded(), "labels": torch.tensor([0, 1])}


def both(family: str, head: str = "ForConditionalGeneration", **sizes: Any) -> Callable[[], Made]:
    return model(f"{family}{head}", f"{family}Config", _pair, **{**_BOTH, **sizes})


_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": TOKENS}
_GPT = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": TOKENS, **_ENDS}
_MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}

DECODERS: Table = {
    "gpt2": Model(model("GPT2LMHeadModel", "GPT2Config", **_GPT), trains=True),
    "gpt2-labels": Model(model("GPT2LMHeadModel", "GPT2Config", _labelled, **_GPT), trains=True, breaks=2),
    "gpt-neo": Model(
        decoder("GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8)
    ),
    "gptj": Model(model("GPTJForCausalLM", "GPTJConfig", **_GPT, rotary_dim=8)),
    "gpt-neox": Model(decoder("GPTNeoX")),
    "codegen": Model(model("CodeGenForCausalLM", "CodeGenConfig", **_GPT, rotary_dim=8)),
    "llama": Model(decoder("Llama", **_SHARED), trains=True),
    "llama-body": Model(decoder("Llama", "Model", **_SHARED)),
    "mistral": Model(decoder("Mistral", **_SHARED, sliding_window=8)),
    "qwen2": Model(decoder("Qwen2", **_SHARED)),
    "qwen3": Model(decoder("Qwen3", **_SHARED, head_dim=16), trains=True),
    "qwen2-moe": Model(decoder("Qwen2Moe", **_SHARED, **_EXPERTS, shared_expert_intermediate_size=32)),
    "qwen3-moe": Model(decoder("Qwen3Moe", **_SHARED, **_EXPERTS, head_dim=16)),
    "gemma": Model(decoder("Gemma", **_SHARED, head_dim=16)),
    "gemma2": Model(decoder("Gemma2", **_SHARED, head_dim=16, sliding_window=8)),
    "gemma3": Model(model("Gemma3ForCausalLM", "Gemma3TextConfig", **_TEXT, **_ENDS, **_SHARED, head_dim=16)),
    "phi": Model(decoder("Phi")),
    "phi3": Model(decoder("Phi3", **_SHARED)),
    "mixtral": Model(decoder("Mixtral", **_SHARED, num_local_experts=4)),
    "falcon": Model(decoder("Falcon")),
    "falcon-alibi": Model(decoder("Falcon", alibi=True, new_decoder_architecture=True, num_kv_heads=2)),
    "bloom": Model(decoder("Bloom", n_layer=2, n_head=4)),
    "mpt": Model(decoder("Mpt", d_model=64, n_heads=4, n_layers=2, max_seq_len=64)),
    "opt": Model(decoder("OPT", ffn_dim=96, word_embed_proj_dim=64)),
    "stablelm": Model(decoder("StableLm", **_SHARED)),
    "cohere": Model(decoder("Cohere", **_SHARED)),
    "olmo2": Model(decoder("Olmo2", **_SHARED)),
    "starcoder2": Model(decoder("Starcoder2", **_SHARED)),
    "granite": Model(decoder("Granite", **_SHARED)),
    "glm": Model(decoder("Glm", **_SHARED, head_dim=16)),
    "smollm3": Model(decoder("SmolLM3", **_SHARED)),
    "gpt-oss": Model(decoder("GptOss", **_SHARED, head_dim=16, num_local_experts=4, num_experts_per_tok=2)),
    "deepseek-v3": Model(
        decoder("DeepseekV3", **_MLA, n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1)
    ),
    "persimmon": Model(decoder("Persimmon")),
    "xlnet": Model(
        model("XLNetLMHeadModel", "XLNetConfig", d_model=64, n_layer=2, n_head=4, d_inner=96, vocab_size=99)
    ),
}
ENCODERS: Table = {
    "bert": Model(encoder("Bert"), trains=True),
    "bert-classes": Model(model("BertForSequenceClassification", "BertConfig", _classes, **_TEXT), trains=True),
    "roberta": Model(encoder("Roberta")),
    "xlm-roberta": Model(encoder("XLMRoberta", "ForTokenClassification")),
    "distilbert": Model(
        model(
            "DistilBertModel", "DistilBertConfig", padded, dim=64, n_layers=2, n_heads=4, hidden_dim=96, vocab_size=99
        )
    ),
    "albert": Model(encoder("Albert", embedding_size=32)),
    "electra": Model(encoder("Electra", embedding_size=32)),
    "deberta": Model(encoder("Deberta", pos_att_type="c2p|p2c", relative_attention=True), breaks=5),
    "deberta-v2": Model(encoder("DebertaV2", pos_att_type="c2p|p2c", relative_attention=True)),
    "mpnet": Model(encoder("MPNet")),
    "camembert": Model(encoder("Camembert", "ForMaskedLM")),
    "modernbert": Model(encoder("ModernBert", local_attention=8, cls_token_id=1, sep_token_id=2)),
    "squeezebert": Model(encoder("SqueezeBert", embedding_size=64)),
    "layoutlm": Model(encoder("LayoutLM")),
    "convbert": Model(encoder("ConvBert", embedding_size=64)),
    "roformer": Model(encoder("RoFormer")),
    "megatron-bert": Model(encoder("MegatronBert")),
    "ernie": Model(encoder("Ernie")),
    "fnet": Model(model("FNetModel", "FNetConfig", lambda: {"input_ids": ids()}, **_TEXT)),
}
BOTH: Table = {
    "t5": Model(model("T5ForConditionalGeneration", "T5Config", _pair, **_T5), trains=True),
    "t5-gated": Model(model("T5ForConditionalGeneration", "T5Config", _pair, **_T5, feed_forward_proj="gated-gelu")),
    "t5-encoder": Model(model("T5EncoderModel", "T5Config", padded, **_T5)),
    "mt5": Model(model("MT5ForConditionalGeneration", "MT5Config", _pair, **_T5)),
    "bart": Model(both("Bart", forced_eos_token_id=2), trains=True),
    "mbart": Model(both("MBart")),
    "marian": Model(both("Marian", "MTModel")),
    "pegasus": Model(both("Pegasus")),
    "blenderbot": Model(both("BlenderbotSmall")),
    "m2m100": Model(both("M2M100")),
}
STATES: Table = {
    "mamba": Model(state("Mamba")),
    "mamba2": Model(state("Mamba2", num_heads=8, head_dim=16, n_groups=2, chunk_size=8)),
    "falcon-mamba": Model(state("FalconMamba")),
    "rwkv": Model(state("Rwkv", context_length=64, attention_hidden_size=64)),
    "recurrent-gemma": Model(
        decoder("RecurrentGemma", num_hidden_layers=3, **_SHARED, attention_window_size=8), as_written="conv1d_state"
    ),
}
TEXT: Table = {**DECODERS, **ENCODERS, **BOTH, **STATES}
