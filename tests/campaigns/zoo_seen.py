"""Models of ``transformers`` of images, of sound, and of several kinds of input at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .zoo import Model, Table
from .zoo_text import model, padded

_BLOCK = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGE = {**_BLOCK, "image_size": 32, "patch_size": 8}
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 32, 64], "num_labels": 5}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
_TEXT = {**_BLOCK, "vocab_size": 99, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 98}
_SPEECH = {
    **_BLOCK,
    "vocab_size": 32,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_adapter_layers": 1,
}
_WHISPER = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": 99,
    "num_mel_bins": 20,
    "max_source_positions": 50,
    "max_target_positions": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def pixels(size: int = 32) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def captioned(size: int = 32) -> Callable[[], dict[str, Any]]:
    return lambda: {**padded(), "pixel_values": torch.randn(2, 3, size, size)}


def speech() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 2000)}


def heard() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 20, 100), "decoder_input_ids": torch.randint(3, 99, (2, 9))}


IMAGES: Table = {
    "vit": Model(model("ViTModel", "ViTConfig", pixels(), **_IMAGE), trains=True),
    "vit-classes": Model(model("ViTForImageClassification", "ViTConfig", pixels(), **_IMAGE)),
    "deit": Model(model("DeiTModel", "DeiTConfig", pixels(), **_IMAGE)),
    "beit": Model(model("BeitModel", "BeitConfig", pixels(), **_IMAGE, use_relative_position_bias=True)),
    "dinov2": Model(model("Dinov2Model", "Dinov2Config", pixels(), **_IMAGE)),
    "swin": Model(model("SwinForImageClassification", "SwinConfig", pixels(64), **_SWIN)),
    "swinv2": Model(model("Swinv2Model", "Swinv2Config", pixels(64), **_SWIN)),
    "segformer": Model(
        model(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            pixels(64),
            depths=[1, 1, 1, 1],
            hidden_sizes=[16, 32, 32, 64],
            decoder_hidden_size=32,
            num_attention_heads=[1, 2, 2, 4],
        )
    ),
    "convnext": Model(model("ConvNextForImageClassification", "ConvNextConfig", pixels(64), **_STAGES)),
    "convnextv2": Model(model("ConvNextV2ForImageClassification", "ConvNextV2Config", pixels(64), **_STAGES)),
    "resnet": Model(model("ResNetForImageClassification", "ResNetConfig", pixels(64), **_STAGES, embedding_size=16)),
    "regnet": Model(
        model("RegNetForImageClassification", "RegNetConfig", pixels(64), **_STAGES, embedding_size=16, groups_width=8)
    ),
    "mobilenet-v2": Model(model("MobileNetV2ForImageClassification", "MobileNetV2Config", pixels(64), image_size=64)),
    "poolformer": Model(model("PoolFormerModel", "PoolFormerConfig", pixels(64), **_STAGES)),
    "vit-mae": Model(model("ViTMAEModel", "ViTMAEConfig", pixels(), **_IMAGE, mask_ratio=0.0)),
    "yolos": Model(
        model(
            "YolosForObjectDetection",
            "YolosConfig",
            pixels(),
            **{**_IMAGE, "image_size": [32, 32]},
            num_detection_tokens=10,
        )
    ),
    "dpt": Model(
        model(
            "DPTForDepthEstimation",
            "DPTConfig",
            pixels(),
            **{**_IMAGE, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 32, 32, 32],
            fusion_hidden_size=16,
            is_hybrid=False,
        )
    ),
    "hiera": Model(
        model(
            "HieraModel",
            "HieraConfig",
            pixels(64),
            image_size=[64, 64],
            embed_dim=16,
            depths=[1, 1, 1],
            num_heads=[1, 2, 4],
            query_stride=[2, 2],
            num_query_pool=2,
            mask_unit_size=[4, 4],
            masked_unit_attention=[True, True, False],
        )
    ),
}
SOUNDS: Table = {
    "wav2vec2": Model(model("Wav2Vec2ForCTC", "Wav2Vec2Config", speech, **_SPEECH), trains=True),
    "hubert": Model(model("HubertModel", "HubertConfig", speech, **_SPEECH)),
    "wavlm": Model(model("WavLMModel", "WavLMConfig", speech, **_SPEECH)),
    "whisper": Model(model("WhisperForConditionalGeneration", "WhisperConfig", heard, **_WHISPER)),
    "ast": Model(
        model(
            "ASTForAudioClassification",
            "ASTConfig",
            lambda: {"input_values": torch.randn(2, 64, 32)},
            **_BLOCK,
            patch_size=8,
            max_length=64,
            num_mel_bins=32,
        )
    ),
}
_TWO = {"text_config": _TEXT, "vision_config": _IMAGE, "projection_dim": 32}
SEVERAL: Table = {
    "clip": Model(model("CLIPModel", "CLIPConfig", captioned(), **_TWO), trains=True),
    "clip-text": Model(model("CLIPTextModel", "CLIPTextConfig", padded, **_TEXT)),
    "siglip": Model(model("SiglipModel", "SiglipConfig", captioned(), text_config=_TEXT, vision_config=_IMAGE)),
    "blip": Model(
        model(
            "BlipForConditionalGeneration",
            "BlipConfig",
            captioned(),
            text_config={**_TEXT, "encoder_hidden_size": 64, "sep_token_id": 97, "pad_token_id": 0},
            vision_config=_IMAGE,
        )
    ),
    "clipseg": Model(model("CLIPSegModel", "CLIPSegConfig", captioned(), **_TWO)),
    "vilt": Model(
        model(
            "ViltModel",
            "ViltConfig",
            lambda: {**captioned()(), "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)},
            **_IMAGE,
            vocab_size=99,
        ),
        as_written="value of a tensor",  # the sizes of the images, from their masks
        breaks=8,
    ),
}
SEEN: Table = {**IMAGES, **SOUNDS, **SEVERAL}
