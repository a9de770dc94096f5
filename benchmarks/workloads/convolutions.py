"""What the table of convolutions measures on a GPU: plain PyTorch code and whole models, inputs of both memory
formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads.convnets import Csp, NormActConv, Up, trained
from benchmarks.workloads.modules import ConvNormAct

Function = Callable[..., Any]
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Work:
    """``function(*arguments())``. flops: of the work, 0 where memory bounds it. nbytes: what has to be moved. model:
    it is too much for max-autotune and for a float64 reference of the whole batch."""

    name: str
    function: Function
    arguments: Callable[[], tuple[Any, ...]]
    flops: float = 0.0
    nbytes: float = 0.0
    model: bool = False


def image(n: int, c: int, *pixels: int, dtype: torch.dtype = BF16, last: bool = True) -> Any:
    made = torch.randn(n, c, *pixels, device="cuda", dtype=dtype)
    return made.to(memory_format=torch.channels_last) if last and len(pixels) == 2 else made


def block(n: int, c: int, pixels: int, columns: int, size: int, stride: int = 1, dtype: torch.dtype = BF16) -> Work:
    out = -(-pixels // stride)
    module = ConvNormAct(c, columns, size, stride).cuda().to(dtype).eval().to(memory_format=torch.channels_last)
    flops = 2.0 * n * out**2 * columns * c * size**2
    moved = (n * c * pixels**2 + n * columns * out**2) * dtype.itemsize
    name = f"conv{size}×{size}/{stride}+bn+relu {n}×{c}×{pixels}²→{columns}{' f32' if dtype.itemsize == 4 else ''}"
    return Work(name, module, lambda: (image(n, c, pixels, pixels, dtype=dtype),), flops, moved)


def depthwise(n: int, c: int, pixels: int, size: int, stride: int) -> Work:
    out = -(-pixels // stride)
    weight = torch.randn(c, 1, size, size, device="cuda", dtype=BF16) / size
    bias = torch.randn(c, device="cuda", dtype=BF16)

    def run(x: Any) -> Any:
        return F.conv2d(x, weight, bias, stride, size // 2, 1, c)

    moved = 2.0 * n * c * (pixels**2 + out**2)
    return Work(
        f"depthwise {size}×{size}/{stride} {n}×{c}×{pixels}²", run, lambda: (image(n, c, pixels, pixels),), 0.0, moved
    )


def works(names: set[str]) -> Iterator[Work]:
    yield block(64, 256, 56, 256, 3)
    yield block(64, 512, 28, 512, 3)
    yield block(64, 64, 56, 64, 3)
    yield block(64, 96, 56, 96, 3)
    yield block(64, 256, 56, 256, 3, 2)
    yield block(64, 512, 7, 512, 3)
    yield block(1, 256, 56, 256, 3)
    yield pointwise()
    yield block(64, 3, 224, 64, 7, 2)
    yield depthwise(64, 96, 56, 7, 1)
    yield depthwise(64, 144, 56, 3, 2)
    yield depthwise(64, 240, 28, 5, 2)
    yield from others()
    yield block(32, 64, 128, 128, 3, dtype=torch.float32)
    yield from windows()
    yield from blocks()
    yield from models(names)


def pointwise() -> Work:
    weight = torch.randn(256, 1024, 1, 1, device="cuda", dtype=BF16) / 32

    def run(x: Any, r: Any) -> Any:
        return F.relu(F.conv2d(x, weight) + r)

    flops, moved = 2.0 * 64 * 196 * 1024 * 256, 2.0 * 64 * 196 * (1024 + 2 * 256)
    return Work(
        "1×1 64×1024×14²→256+residual", run, lambda: (image(64, 1024, 14, 14), image(64, 256, 14, 14)), flops, moved
    )


def others() -> Iterator[Work]:
    """Transposed, of three axes, dilated, in groups."""
    up = torch.randn(256, 128, 4, 4, device="cuda", dtype=BF16) / 64
    yield Work(
        "transposed 4×4/2 32×256×28²→128",
        lambda x: F.relu(F.conv_transpose2d(x, up, None, 2, 1)),
        lambda: (image(32, 256, 28, 28),),
        2.0 * 32 * 56**2 * 128 * 256 * 4,
    )
    deep = torch.randn(128, 64, 3, 3, 3, device="cuda", dtype=BF16) / 40
    yield Work(
        "conv 3×3×3 4×64×32³→128",
        lambda x: F.relu(F.conv3d(x, deep, None, 1, 1)),
        lambda: (image(4, 64, 32, 32, 32),),
        2.0 * 4 * 32**3 * 128 * 64 * 27,
    )
    far = torch.randn(256, 256, 3, 3, device="cuda", dtype=BF16) / 48
    yield Work(
        "dilated 3×3 (2) 32×256×56²",
        lambda x: F.relu(F.conv2d(x, far, None, 1, 2, 2)),
        lambda: (image(32, 256, 56, 56),),
        2.0 * 32 * 56**2 * 256**2 * 9,
    )
    apart = torch.randn(256, 8, 3, 3, device="cuda", dtype=BF16) / 8
    yield Work(
        "32 groups 3×3 64×256×56²",
        lambda x: F.relu(F.conv2d(x, apart, None, 1, 1, 1, 32)),
        lambda: (image(64, 256, 56, 56),),
        2.0 * 64 * 56**2 * 256 * 8 * 9,
    )


def windows() -> Iterator[Work]:
    """Pooling, resampling and norms, which memory bounds."""
    n, c, h = 64, 64, 112
    size = 2.0 * n * c * h * h
    norm = nn.GroupNorm(32, 256).cuda().to(BF16)
    made = (
        ("max pool 3×3/2", lambda x: F.max_pool2d(x, 3, 2, 1), size * 1.25),
        ("average pool 2×2", lambda x: F.avg_pool2d(x, 2), size * 1.25),
        ("adaptive average to 1", lambda x: F.adaptive_avg_pool2d(x, 1), size),
        ("bilinear ×2", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), size * 5),
    )
    for name, run, moved in made:
        yield Work(f"{name} {n}×{c}×{h}²", run, lambda: (image(n, c, h, h),), 0.0, moved)
    yield Work(
        "group norm+silu 32×256×56²",
        lambda x: F.silu(norm(x)),
        lambda: (image(32, 256, 56, 56),),
        0.0,
        4.0 * 32 * 256 * 56**2,
    )


class Residual(nn.Module):
    """A residual block of a diffusion U-Net, and of a VAE's decoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = NormActConv(channels, channels), NormActConv(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x))


def blocks() -> Iterator[Work]:
    """Of U-Nets, decoders and detectors."""
    made: tuple[tuple[str, Callable[[], nn.Module], tuple[int, int, int]], ...] = (
        ("U-Net residual", lambda: Residual(320), (2, 320, 64)),
        ("U-Net residual", lambda: Residual(640), (8, 640, 32)),
        ("VAE residual", lambda: Residual(128), (1, 128, 512)),
        ("nearest ×2 + 3×3", lambda: Up(256), (1, 256, 256)),
        ("YOLO block", lambda: Csp(128), (16, 128, 80)),
    )
    for name, make, (n, c, pixels) in made:
        module = trained(make()).cuda().to(BF16).to(memory_format=torch.channels_last)
        yield Work(f"{name} {n}×{c}×{pixels}²", module, lambda n=n, c=c, h=pixels: (image(n, c, h, h),))


def models(names: set[str]) -> Iterator[Work]:
    import timm

    for name in ("resnet50", "convnext_tiny", "efficientnet_b0", "regnety_080", "mobilenetv3_large_100"):
        if names and not any(n in name for n in names):
            continue
        for last in (False, True):
            model = timm.create_model(name).cuda().to(BF16).eval()
            if last:
                model = model.to(memory_format=torch.channels_last)
            form = "channels last" if last else "contiguous"
            yield Work(
                f"{name} 64×224² {form}", model, lambda last=last: (image(64, 3, 224, 224, last=last),), model=True
            )
