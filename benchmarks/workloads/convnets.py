"""Convolutional blocks and networks on a CPU: plain modules of ``torch.nn``, timm and diffusers, random weights.

``compile`` and ``eager`` are given the modules in both memory formats, fusec in the one that the row names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusec
from benchmarks.harness import Peer
from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session
from benchmarks.workloads.modules import ConvNormAct, exact, in_format

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Stem(nn.Module):
    """What resnet begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = ConvNormAct(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(x))


class Bottleneck(nn.Module):
    """A block of resnet50 that keeps its size."""

    def __init__(self, channels: int, inner: int, groups: int = 1) -> None:
        super().__init__()
        self.reduce, self.conv = ConvNormAct(channels, inner, 1), ConvNormAct(inner, inner, 3, groups=groups)
        self.expand = ConvNormAct(inner, channels, 1, act=nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(self.conv(self.reduce(x))) + x)


class InvertedBottleneck(nn.Module):
    """A block of mobilenet and efficientnet, with squeeze and excite."""

    def __init__(self, channels: int, size: int, stride: int = 1) -> None:
        super().__init__()
        wide = 6 * channels
        self.expand, self.reduce = ConvNormAct(channels, wide, 1, act=F.silu), ConvNormAct(wide, channels, 1)
        self.conv = ConvNormAct(wide, wide, size, stride, act=F.silu, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, channels // 4, 1), nn.Conv2d(channels // 4, wide, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.expand(x))
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return self.reduce(y * scale)


class ConvNext(nn.Module):
    """A block of ConvNeXt as its paper writes it: depthwise 7×7, layer norm over the channels, two linear layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)


class NormActConv(nn.Module):
    """Half a residual block of a diffusion U-Net."""

    def __init__(self, channels: int, columns: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(32, channels), nn.Conv2d(channels, columns, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.silu(self.norm(x)))


class Up(nn.Module):
    """Nearest ×2, then 3×3, as decoders of images write it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Csp(nn.Module):
    """A block of the YOLO family: split, two residual bottlenecks of 3×3, join, 1×1; silu."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first, self.last = (ConvNormAct(c, channels, 1, act=F.silu) for c in (channels, 2 * channels))
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvNormAct(half, half, 3, act=F.silu), ConvNormAct(half, half, 3, act=F.silu))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Deep(nn.Module):
    """3×3×3, group norm, silu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(32, 64, 3, 1, 1), nn.GroupNorm(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


Make = Callable[[], nn.Module]


def blocks() -> Iterator[tuple[str, Make, tuple[int, ...]]]:
    """Name, module and shape of its image."""
    yield "3×3+bn+relu 64×56²", lambda: ConvNormAct(64, 64, 3), (1, 64, 56, 56)
    yield "3×3+bn+relu 128×28²", lambda: ConvNormAct(128, 128, 3), (1, 128, 28, 28)
    yield "3×3+bn+relu 256×14²", lambda: ConvNormAct(256, 256, 3), (1, 256, 14, 14)
    yield "3×3+bn+relu 512×7²", lambda: ConvNormAct(512, 512, 3), (1, 512, 7, 7)
    yield "3×3/2+bn+relu 96→160×33²", lambda: ConvNormAct(96, 160, 3, 2), (2, 96, 33, 33)
    yield "stem 7×7/2+bn+relu+max pool 224²", Stem, (1, 3, 224, 224)
    yield "bottleneck 256×56²", lambda: Bottleneck(256, 64), (1, 256, 56, 56)
    yield "bottleneck of 32 groups 256×28²", lambda: Bottleneck(256, 256, 32), (1, 256, 28, 28)
    yield "inverted bottleneck 5×5 40×28²", lambda: InvertedBottleneck(40, 5), (1, 40, 28, 28)
    yield "inverted bottleneck 3×3/2 24×56²", lambda: InvertedBottleneck(24, 3, 2), (1, 24, 56, 56)
    yield "convnext block 96×56²", lambda: ConvNext(96), (1, 96, 56, 56)
    yield "depthwise 7×7 384×14²", lambda: nn.Conv2d(384, 384, 7, 1, 3, groups=384), (1, 384, 14, 14)
    yield "group norm+silu+3×3 128×64²", lambda: NormActConv(128, 128), (1, 128, 64, 64)
    yield "nearest ×2+3×3 128×32²", lambda: Up(128), (1, 128, 32, 32)
    yield "CSP block 64×80²", lambda: Csp(64), (1, 64, 80, 80)
    yield "transposed 4×4/2 128→64×28²", lambda: nn.ConvTranspose2d(128, 64, 4, 2, 1), (1, 128, 28, 28)
    yield "1d dilated (2) 5 64×4096", lambda: nn.Conv1d(64, 64, 5, 1, 4, 2), (1, 64, 4096)
    yield "3×3×3+group norm+silu 32→64×16³", Deep, (1, 32, 16, 16, 16)
    yield "max pool 3×3/2 64×112²", lambda: nn.MaxPool2d(3, 2, 1), (4, 64, 112, 112)
    yield "average pool 2×2 64×112²", lambda: nn.AvgPool2d(2), (4, 64, 112, 112)
    yield "adaptive average to 1 512×14²", lambda: nn.AdaptiveAvgPool2d(1), (4, 512, 14, 14)
    yield "bilinear ×2 64×56²", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (4, 64, 56, 56)


def trained(module: nn.Module) -> nn.Module:
    """For inference, with statistics of batch norms that change the numbers."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0.0, 0.1)  # type: ignore[union-attr]
            part.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return module.eval().requires_grad_(False)


def case(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: str, factor: float, form: str
) -> Case:
    """form: of fusec's module and image, ``""`` where it is contiguous."""
    module = trained(make()).to(DTYPES[dtype])
    x = torch.randn(shape).to(DTYPES[dtype])
    other, moved = in_format(module), in_format(x)
    peers = torch_peers(module, (x,))
    eager = ["eager", "compile"]
    if len(shape) > 3:
        peers["eager, channels last"] = Peer(other, (moved,))
        peers["compile, channels last"] = Peer(torch.compile(other), (moved,))
        eager += ["eager, channels last", "compile, channels last"]
    if form:
        peers[FUSEC] = Peer(fusec.jit(other), (moved,))
        module, x = other, moved
    return Case(
        title(name, dtype, form),
        peers,
        [Faster(factor, tuple(eager))],
        module,
        (x,),
        exact=lambda: exact(module, x),
        nbytes=float(x.nbytes + sum(p.nbytes for p in module.parameters())),
        multiplies=dtype,
        flops=flops(module, x),
    )


def flops(module: nn.Module, x: Tensor) -> float:
    """Of the convolutions and matmuls of a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(x)
    return float(counter.get_total_flops())


def networks() -> Iterator[tuple[str, Make, tuple[int, ...]]]:
    """Name, module and shape of its image. They need what the campaigns do (``.[campaigns]``)."""
    import timm

    for name in ("resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "regnety_008"):
        for batch in (1, 16):
            yield f"{name} {batch}×224²", partial(timm.create_model, name), (batch, 3, 224, 224)
    yield "U-Net 1×64²", unet, (1, 4, 64, 64)
    yield "VAE decoder 1×32²", decoder, (1, 4, 32, 32)


def unet() -> nn.Module:
    """diffusers' U-Net without text, a quarter of Stable Diffusion's width."""
    from diffusers import UNet2DModel

    made = UNet2DModel(
        sample_size=64,
        in_channels=4,
        out_channels=4,
        block_out_channels=(64, 128, 256),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=32,
    )

    class Step(nn.Module):
        """One step at a time that is given."""

        def __init__(self) -> None:
            super().__init__()
            self.net = made

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(x, 10, return_dict=False)[0]
            return result

    return Step()


def decoder() -> nn.Module:
    """The decoder of diffusers' VAE at half its width."""
    from diffusers.models.autoencoders.vae import Decoder

    made: nn.Module = Decoder(
        in_channels=4,
        out_channels=3,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=2,
    )
    return made


def rows(session: Session) -> Iterator[Row]:
    found = [(*block, dtype, 1.0, "") for block in blocks() for dtype in DTYPES]
    for network in networks():
        found += [(*network, dtype, 1.3, form) for form in ("", "channels last") for dtype in DTYPES]
    made = [partial(case, *given) for given in found if session.wants(title(given[0], *given[3::2]))]
    yield from session.time_all(made)


def title(name: str, dtype: str, form: str) -> str:
    return f"{name} {dtype}{form and ', ' + form}"
