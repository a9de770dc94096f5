"""Models of libraries at their published widths, with random weights and one usual call of each.

``layers`` and ``batch`` scale a model to the machine: a card takes all layers and a batch, a CPU's table fewer of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module and one call of it: positional and named arguments, on the CPU in float32."""


@dataclass(frozen=True)
class Scale:
    """layers: at most so many of a stack (0: all that the published model has). batch: texts or images a call."""

    layers: int
    batch: int
    tokens: int

    def of(self, published: int) -> int:
        return min(published, self.layers) if self.layers else published


CARD = Scale(0, 8, 512)
SMALL = Scale(2, 1, 128)


@dataclass(frozen=True)
class Subject:
    """``library``: what has to be installed. ``trains``: it has a row of training, too."""

    name: str
    library: str
    make: Callable[[Scale], Made]
    trains: bool = False


def subjects() -> list[Subject]:
    return [*_NN, *_TEXTS, *_IMAGES, *_SOUNDS, *_TIMM, *_TORCHVISION, *_DIFFUSERS]


# torch.nn


def _encoder(scale: Scale) -> Made:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
    made = nn.TransformerEncoder(layer, scale.of(12), enable_nested_tensor=False)
    return made, (torch.randn(scale.batch, scale.tokens, 768),), {}


def _recurrent(kind: type[nn.Module]) -> Callable[[Scale], Made]:
    def make(scale: Scale) -> Made:
        return kind(512, 512, num_layers=2, batch_first=True), (torch.randn(scale.batch, scale.tokens, 512),), {}

    return make


_NN = [
    Subject("nn.TransformerEncoder", "torch", _encoder, trains=True),
    Subject("nn.LSTM", "torch", _recurrent(nn.LSTM)),
    Subject("nn.GRU", "torch", _recurrent(nn.GRU)),
]


# transformers

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _hf(
    kind: str, config: str, inputs: Callable[[Scale, Any], dict[str, Any]], **sizes: Any
) -> Callable[[Scale], Made]:
    """A model of ``transformers`` with its configuration's defaults but for ``sizes``, its layers scaled."""

    def make(scale: Scale) -> Made:
        import transformers

        chosen = getattr(transformers, config)(**sizes)
        for name in _LAYERS:
            if name in chosen.to_dict():
                setattr(chosen, name, scale.of(getattr(chosen, name)))
        if "layer_types" in vars(chosen):
            chosen.layer_types = chosen.layer_types[: chosen.num_hidden_layers]
        return getattr(transformers, kind)(chosen), (), inputs(scale, chosen)

    return make


def _ids(scale: Scale, config: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, config.vocab_size, (scale.batch, scale.tokens))}


def _padded(scale: Scale, config: Any) -> dict[str, Any]:
    """What a tokenizer gives for texts of several lengths."""
    mask = torch.ones(scale.batch, scale.tokens, dtype=torch.long)
    mask[-1, scale.tokens * 3 // 4 :] = 0
    return {**_ids(scale, config), "attention_mask": mask}


def _pair(scale: Scale, config: Any) -> dict[str, Any]:
    short = torch.randint(3, config.vocab_size, (scale.batch, scale.tokens // 4))
    return {**_padded(scale, config), "decoder_input_ids": short}


def _pixels(scale: Scale, config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(scale.batch, 3, 224, 224)}


def _captioned(scale: Scale, config: Any) -> dict[str, Any]:
    mask = torch.ones(scale.batch, 64, dtype=torch.long)
    ids = torch.randint(3, config.text_config.vocab_size, (scale.batch, 64))
    return {"input_ids": ids, "attention_mask": mask, **_pixels(scale, config)}


def _speech(scale: Scale, config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(scale.batch, 16000 * 4)}


def _heard(scale: Scale, config: Any) -> dict[str, Any]:
    sound = torch.randn(scale.batch, config.num_mel_bins, 3000)
    return {"input_features": sound, "decoder_input_ids": torch.randint(3, 1000, (scale.batch, 32))}


_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
_1B |= {"num_hidden_layers": 16, "vocab_size": 32000, "use_cache": False}
_SPARSE = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 8}
_SPARSE |= {"vocab_size": 32000, "use_cache": False}
_STATES = {"hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 32000, "use_cache": False}

_TEXTS = [
    Subject("bert-base", "transformers", _hf("BertModel", "BertConfig", _padded), trains=True),
    Subject("distilbert", "transformers", _hf("DistilBertModel", "DistilBertConfig", _padded)),
    Subject("roberta-base", "transformers", _hf("RobertaModel", "RobertaConfig", _padded)),
    Subject("deberta-v2", "transformers", _hf("DebertaV2Model", "DebertaV2Config", _padded, hidden_size=768,
            num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, relative_attention=True,
            pos_att_type="c2p|p2c", position_buckets=256)),
    Subject("modernbert", "transformers", _hf("ModernBertModel", "ModernBertConfig", _padded)),
    Subject("gpt2", "transformers", _hf("GPT2LMHeadModel", "GPT2Config", _ids, use_cache=False), trains=True),
    Subject("llama-1b", "transformers", _hf("LlamaForCausalLM", "LlamaConfig", _ids, **_1B), trains=True),
    Subject("qwen3", "transformers", _hf("Qwen3ForCausalLM", "Qwen3Config", _ids, **_1B, head_dim=64)),
    Subject("gemma2", "transformers", _hf("Gemma2ForCausalLM", "Gemma2Config", _ids, **_1B, head_dim=64)),
    Subject("phi3", "transformers", _hf("Phi3ForCausalLM", "Phi3Config", _ids, **_1B, pad_token_id=0)),
    Subject("mixtral", "transformers",
            _hf("MixtralForCausalLM", "MixtralConfig", _ids, **_SPARSE, intermediate_size=2048)),
    Subject("qwen3-moe", "transformers", _hf("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _ids, **_SPARSE, head_dim=64,
            num_experts=32, num_experts_per_tok=4, moe_intermediate_size=512)),
    Subject("mamba", "transformers", _hf("MambaForCausalLM", "MambaConfig", _ids, **_STATES)),
    Subject("mamba2", "transformers", _hf("Mamba2ForCausalLM", "Mamba2Config", _ids, **_STATES, num_heads=24,
            head_dim=64, n_groups=1)),
    Subject("t5-base", "transformers", _hf("T5ForConditionalGeneration", "T5Config", _pair, d_model=768, d_ff=3072,
            num_layers=12, num_heads=12), trains=True),
    Subject("bart-base", "transformers", _hf("BartModel", "BartConfig", _pair, d_model=768, encoder_layers=6,
            decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12,
            decoder_attention_heads=12)),
]  # fmt: skip
_IMAGES = [
    Subject("vit-base", "transformers", _hf("ViTForImageClassification", "ViTConfig", _pixels), trains=True),
    Subject("dinov2-base", "transformers", _hf("Dinov2Model", "Dinov2Config", _pixels, image_size=224)),
    Subject("swin-tiny", "transformers", _hf("SwinForImageClassification", "SwinConfig", _pixels)),
    Subject("segformer-b0", "transformers",
            _hf("SegformerForSemanticSegmentation", "SegformerConfig", _pixels)),
    Subject("convnext-tiny", "transformers", _hf("ConvNextForImageClassification", "ConvNextConfig", _pixels)),
    Subject("resnet-50", "transformers", _hf("ResNetForImageClassification", "ResNetConfig", _pixels), trains=True),
    Subject("clip", "transformers", _hf("CLIPModel", "CLIPConfig", _captioned)),
    Subject("siglip", "transformers", _hf("SiglipModel", "SiglipConfig", _captioned)),
]  # fmt: skip
_SOUNDS = [
    Subject("wav2vec2-base", "transformers", _hf("Wav2Vec2ForCTC", "Wav2Vec2Config", _speech)),
    Subject("whisper-base", "transformers", _hf("WhisperForConditionalGeneration", "WhisperConfig", _heard,
            d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
            encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False)),
]  # fmt: skip


# timm, torchvision, diffusers


def _timm(name: str) -> Callable[[Scale], Made]:
    def make(scale: Scale) -> Made:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(scale.batch, 3, 224, 224),), {}

    return make


def _torchvision(name: str) -> Callable[[Scale], Made]:
    def make(scale: Scale) -> Made:
        import torchvision

        return getattr(torchvision.models, name)(), (torch.randn(scale.batch, 3, 224, 224),), {}

    return make


_TIMM = [
    *(Subject(f"timm {n}", "timm", _timm(n)) for n in ("efficientnet_b0", "mobilenetv3_large_100", "mixer_b16_224")),
    *(Subject(f"timm {n}", "timm", _timm(n)) for n in ("convnext_tiny", "regnety_032", "swin_tiny_patch4_window7_224")),
    Subject("timm vit_base_patch16_224", "timm", _timm("vit_base_patch16_224"), trains=True),
]
_TORCHVISION = [
    *(Subject(f"torchvision {n}", "torchvision", _torchvision(n)) for n in ("densenet121", "mobilenet_v2", "vit_b_16")),
    Subject("torchvision resnet50", "torchvision", _torchvision("resnet50"), trains=True),
]


def _unet(scale: Scale) -> Made:
    from diffusers import UNet2DConditionModel

    made = UNet2DConditionModel(sample_size=32, cross_attention_dim=768)
    noise, text = torch.randn(scale.batch, 4, 32, 32), torch.randn(scale.batch, 77, 768)
    return made, (noise, torch.tensor(7), text), {}


def _dit(scale: Scale) -> Made:
    from diffusers import DiTTransformer2DModel

    made = DiTTransformer2DModel(num_attention_heads=16, attention_head_dim=72, num_layers=scale.of(28), sample_size=32)
    given = {"timestep": torch.arange(scale.batch), "class_labels": torch.arange(scale.batch)}
    return made, (torch.randn(scale.batch, 4, 32, 32),), given


def _autoencoder(scale: Scale) -> Made:
    from diffusers import AutoencoderKL

    stages = (128, 256, 512, 512)
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    made = AutoencoderKL(block_out_channels=stages, layers_per_block=2, **kinds)
    return made, (torch.randn(1, 3, 128, 128),), {}


_DIFFUSERS = [
    Subject("diffusers UNet, text", "diffusers", _unet),
    Subject("diffusers DiT-XL/2", "diffusers", _dit),
    Subject("diffusers AutoencoderKL", "diffusers", _autoencoder),
]
