"""Models of ``timm``, ``diffusers`` and ``x_transformers``. A library that can't be imported is left out, and said."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from .zoo import Made, Model, Table


def timm_model(name: str, size: int = 64, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False, **options), (torch.randn(2, 3, size, size),), {}

    return make


TIMM: Table = {
    "timm-resnet18": Model(timm_model("resnet18"), trains=True),
    "timm-resnext": Model(timm_model("resnext26ts", 64)),
    "timm-efficientnet": Model(timm_model("efficientnet_b0")),
    "timm-mobilenetv3": Model(timm_model("mobilenetv3_small_050")),
    "timm-convnext": Model(timm_model("convnext_atto")),
    "timm-vit": Model(timm_model("vit_tiny_patch16_224", img_size=64)),
    "timm-swin": Model(
        timm_model("swin_tiny_patch4_window7_224", 112, img_size=112, embed_dim=24, depths=(1, 1), num_heads=(2, 4))
    ),
    "timm-mixer": Model(timm_model("mixer_s32_224", img_size=64)),
    "timm-regnet": Model(timm_model("regnetx_002")),
    "timm-densenet": Model(timm_model("densenet121", growth_rate=8, block_config=(2, 2))),
    "timm-coatnet": Model(timm_model("coatnet_pico_rw_224", 224)),
    "timm-deit3": Model(timm_model("deit3_small_patch16_224", img_size=64, depth=2)),
    "timm-beit": Model(timm_model("beit_base_patch16_224", img_size=64, depth=2)),
    "timm-xcit": Model(timm_model("xcit_nano_12_p16_224", depth=2)),
    "timm-edgenext": Model(timm_model("edgenext_xx_small")),
    "timm-repvgg": Model(timm_model("repvgg_a0")),
    "timm-ghostnet": Model(timm_model("ghostnet_050")),
    "timm-gmlp": Model(timm_model("gmlp_ti16_224", img_size=64)),
}


def _unet() -> Made:
    from diffusers import UNet2DModel

    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    made = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        **kinds,
    )
    return made, (torch.randn(2, 3, 16, 16), 7), {}


def _unet_with_text() -> Made:
    from diffusers import UNet2DConditionModel

    kinds = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    made = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        cross_attention_dim=24,
        **kinds,
    )
    return made, (torch.randn(2, 4, 16, 16), torch.tensor(7), torch.randn(2, 5, 24)), {}


def _autoencoder() -> Made:
    from diffusers import AutoencoderKL

    made = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    return made, (torch.randn(2, 3, 16, 16),), {}


def _dit() -> Made:
    from diffusers import DiTTransformer2DModel

    made = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, num_layers=2, sample_size=8, norm_num_groups=8
    )
    given = {"timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([1, 2])}
    return made, (torch.randn(2, 4, 8, 8),), given


def _transformer_2d() -> Made:
    from diffusers import Transformer2DModel

    made = Transformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=16, norm_num_groups=8, cross_attention_dim=24
    )
    return made, (torch.randn(2, 16, 8, 8),), {"encoder_hidden_states": torch.randn(2, 5, 24)}


def _sd3() -> Made:
    from diffusers import SD3Transformer2DModel

    made = SD3Transformer2DModel(
        sample_size=8,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
        in_channels=4,
        out_channels=4,
    )
    given = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.tensor([3, 7]),
    }
    return made, (), given


def _flux() -> Made:
    from diffusers import FluxTransformer2DModel

    made = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    given = {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.zeros(5, 3),
    }
    return made, (), given


DIFFUSERS: Table = {
    "unet": Model(_unet, trains=True),
    "unet-text": Model(_unet_with_text),
    "autoencoder-kl": Model(_autoencoder),
    "dit": Model(_dit),
    "transformer-2d": Model(_transformer_2d, breaks=2),  # it warns at each call
    "sd3": Model(_sd3),
    "flux": Model(_flux),
}


def x_decoder(**options: Any) -> Callable[[], Made]:
    def make() -> Made:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **options)
        return (
            TransformerWrapper(num_tokens=99, max_seq_len=64, attn_layers=layers),
            (torch.randint(0, 99, (2, 17)),),
            {},
        )

    return make


def _x_vision() -> Made:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=64, depth=2, heads=4, attn_dim_head=16)
    made = ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=layers)
    return made, (torch.randn(2, 3, 32, 32),), {}


def _x_both() -> Made:
    from x_transformers import XTransformer

    sizes = {f"{side}_{name}": n for side in ("enc", "dec") for name, n in _X_SIDE.items()}
    made = XTransformer(dim=64, tie_token_emb=True, **sizes)
    mask = torch.ones(2, 17, dtype=torch.bool)
    return made, (torch.randint(0, 99, (2, 17)), torch.randint(0, 99, (2, 9))), {"mask": mask}


_X_SIDE = {"num_tokens": 99, "depth": 2, "heads": 4, "max_seq_len": 64}
X_TRANSFORMERS: Table = {
    "x-decoder": Model(x_decoder(), trains=True),
    "x-rotary": Model(x_decoder(rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)),
    "x-alibi": Model(x_decoder(alibi_pos_bias=True, attn_kv_heads=2)),
    "x-vision": Model(_x_vision),
    "x-both": Model(_x_both, as_written="einx.backend.get"),  # einx's registry gets a new state at each call
}


def tables() -> tuple[Table, list[str]]:
    """The models of the libraries that are here, and a line for each library that is not."""
    found: Table = {}
    missing = []
    for library, table in (("timm", TIMM), ("diffusers", DIFFUSERS), ("x_transformers", X_TRANSFORMERS)):
        try:
            importlib.import_module(library)
        except Exception as error:  # an optional dependency of theirs may fail in any way
            missing.append(f"{library} is left out: {type(error).__name__}: {error}")
        else:
            found |= table
    return found, missing
