"""Convolutions and pools on a CUDA device: errors against float64, special values, strides as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from jitted import plans  # noqa: E402
from oracle import assert_close_to_oracle  # noqa: E402

import fusec  # noqa: E402
from fusec.tile.templates import HopperGemm  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
is_hopper = torch.cuda.get_device_capability() == (9, 0)


def randn(*shape: int, dtype: Any = torch.float32, last: bool = True, seed: int = 0, scale: float = 1.0) -> Any:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype).to(DEVICE)
    return x.contiguous(memory_format=LAST[x.dim()]) if last and x.dim() in LAST else x


def check(f: Callable[..., Any], *given: Any) -> Any:
    """The jitted function, which gives twice what eager gives, within its errors."""
    jitted: Any = fusec.jit(f)
    expected = f(*given)
    exact = f(*(x.cpu().double() if x.is_floating_point() else x.cpu() for x in given))
    for _ in range(2):
        found = jitted(*given)
        for a, b, c in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected, exact)), strict=True):
            assert_close_to_oracle(a, c, b)
            assert a.stride() == b.stride()
    assert not jitted.dispatcher.eager_calls
    return jitted


def program(jitted: Any) -> Any:
    return plans(jitted)[-1].executable.program


def convolve(x: Any, w: Any, b: Any, **options: Any) -> Any:
    return {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()](x, w, b, **options)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((8, 64, 28, 28), (128, 64, 3, 3), {"padding": 1}),
    "3x3 of few pixels": ((2, 256, 7, 7), (256, 256, 3, 3), {"padding": 1}),
    "one image": ((1, 64, 30, 30), (64, 64, 3, 3), {"padding": 1}),
    "1x1 with steps": ((8, 64, 28, 28), (128, 64, 1, 1), {"stride": 2}),
    "1x1": ((8, 64, 14, 14), (256, 64, 1, 1), {}),
    "stem": ((4, 3, 64, 64), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "pairs of rows": ((4, 3, 64, 62), (64, 3, 4, 4), {"stride": 2, "padding": 1}),
    "24 channels": ((4, 24, 20, 20), (64, 24, 3, 3), {"padding": 1}),
    "30 channels": ((4, 30, 20, 20), (64, 30, 3, 3), {"padding": 1}),
    "96 channels": ((4, 96, 20, 20), (96, 96, 3, 3), {"padding": 1}),
    "one channel": ((4, 1, 28, 28), (32, 1, 3, 3), {"padding": 1}),
    "few columns": ((4, 64, 20, 20), (5, 64, 3, 3), {"padding": 1}),
    "unlike axes": ((4, 64, 29, 28), (96, 64, 3, 5), {"stride": (2, 1), "padding": (0, 2)}),
    "dilated": ((4, 64, 28, 28), (64, 64, 3, 3), {"padding": 4, "dilation": 4}),
    "steps that leave a rest": ((4, 64, 30, 29), (64, 64, 3, 3), {"stride": 3}),
    "same": ((4, 64, 15, 16), (64, 64, 4, 2), {"padding": "same"}),
    "signals": ((8, 64, 500), (128, 64, 5), {"padding": 6, "dilation": 3}),
    "volumes": ((2, 64, 9, 10, 11), (64, 64, 3, 3, 2), {"stride": (1, 2, 1), "padding": (1, 1, 0)}),
    "depthwise 3x3": ((4, 96, 28, 28), (96, 1, 3, 3), {"padding": 1, "groups": 96}),
    "depthwise 7x7": ((4, 96, 28, 28), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    "depthwise of two each": ((4, 40, 28, 28), (80, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 40}),
    "groups": ((4, 64, 28, 28), (64, 16, 3, 3), {"padding": 1, "groups": 4}),
    "wide groups": ((4, 168, 28, 30), (168, 56, 3, 3), {"padding": 1, "groups": 3}),
    "groups with steps": ((4, 192, 29, 28), (96, 48, 3, 3), {"padding": 1, "stride": 2, "groups": 4}),
    "groups of odd widths": ((4, 100, 20, 20), (60, 25, 3, 3), {"padding": 1, "groups": 4}),
    "volumes in groups": ((2, 96, 7, 9, 8), (96, 48, 3, 3, 3), {"padding": 1, "groups": 2}),
    "many groups": ((2, 2240, 7, 7), (2240, 56, 3, 3), {"padding": 1, "groups": 40}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_convolutions(name: str, kind: str) -> None:
    shape, weight, options = SHAPES[name]
    dtype, scale = KINDS[kind], (weight[1] * 9) ** -0.5
    w, b = randn(*weight, dtype=dtype, seed=1, scale=scale), randn(weight[0], dtype=dtype, seed=2)
    check(lambda x, w, b: torch.relu(convolve(x, w, b, **options)), randn(*shape, dtype=dtype), w, b)


@pytest.mark.parametrize("name", ["3x3", "stem", "30 channels", "signals", "depthwise 3x3", "groups"])
def test_images_and_weights_in_pytorch_s_order(name: str) -> None:
    shape, weight, options = SHAPES[name]
    given = (randn(*shape, dtype=torch.bfloat16, last=False), randn(*weight, dtype=torch.bfloat16, last=False, seed=1))
    check(lambda x, w: convolve(x, w, None, **options), *given)


@pytest.mark.parametrize("kind", KINDS)
def test_transposed(kind: str) -> None:
    dtype = KINDS[kind]
    x, w = randn(4, 32, 14, 14, dtype=dtype), randn(32, 24, 4, 4, dtype=dtype, seed=1, scale=0.05)
    check(lambda x, w: torch.relu(F.conv_transpose2d(x, w, stride=2, padding=1)), x, w)
    w, b = randn(32, 24, 2, 2, dtype=dtype, seed=1, scale=0.05), randn(24, dtype=dtype, seed=2)
    check(lambda x, w, b: torch.relu(F.conv_transpose2d(x, w, b, stride=2)), x, w, b)


@pytest.mark.parametrize("channels", [64, 96, 30, 3])
def test_special_values_reach_the_windows_that_show_them(channels: int) -> None:
    x = randn(2, channels, 20, 20, dtype=torch.bfloat16)
    w = randn(64, channels, 3, 3, dtype=torch.bfloat16, seed=1)
    x[0, 1, 0, 0], x[0, 2, 4, 5], x[1, channels - 1, 19, 19] = float("nan"), float("inf"), float("-inf")
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    check(lambda x, w: F.conv2d(x, w, padding=1, stride=2), x, w)


def normed(x: Any, w: Any, mean: Any, var: Any, gamma: Any, beta: Any, r: Any) -> Any:
    return torch.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, gamma, beta) + r)


@pytest.mark.parametrize("last", [False, True])
def test_what_follows(last: bool) -> None:
    channels = [randn(64, dtype=torch.bfloat16, seed=k) for k in range(4)]
    channels[1] = channels[1].abs() + 0.5
    x, r = (randn(4, 64, 20, 20, dtype=torch.bfloat16, last=last, seed=k) for k in (7, 8))
    check(normed, x, randn(64, 64, 3, 3, dtype=torch.bfloat16, last=last, seed=6, scale=0.04), *channels, r)


@pytest.mark.skipif(not is_hopper, reason="no Hopper GPU")
@pytest.mark.parametrize("channels", [64, 96])
def test_windows_are_fetched_by_tma(channels: int) -> None:
    x = randn(32, channels, 28, 28, dtype=torch.bfloat16)
    w = randn(128, channels, 3, 3, dtype=torch.bfloat16, seed=1, scale=0.05)
    jitted = check(lambda x, w: torch.relu(F.conv2d(x, w, padding=1)), x, w)
    made = program(jitted)
    (kernel,) = (k for k in made.kernels if k.kind == "gemm")
    assert isinstance(kernel.template, HopperGemm)
    assert kernel.template.nest.left.windows is not None
    assert not [s for s in made.steps if type(s).__name__ == "Call"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("size", "options"), [(7, {"padding": 3}), (5, {"padding": 2, "stride": 2}), (3, {"padding": 2, "dilation": 2})]
)
def test_each_channel_by_itself(kind: str, last: bool, size: int, options: dict[str, Any]) -> None:
    """Lanes with eight results, with fewer, and of an axis that they don't divide."""
    dtype = KINDS[kind]
    for shape in ((32, 72, 56, 56), (16, 96, 31, 29), (1, 30, 13, 14)):
        x = randn(*shape, dtype=dtype, last=last)
        w, b = randn(shape[1], 1, size, size, dtype=dtype, scale=0.2, last=False), randn(shape[1], dtype=dtype)
        check(lambda x, w, b: F.silu(F.conv2d(x, w, b, groups=w.shape[0], **options)), x, w, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_of_one_channel(value: float) -> None:
    x, w = randn(8, 64, 56, 56), randn(64, 1, 7, 7, last=False)
    x[1, 3, 0, 5] = x[2, 60, 55, 55] = x[7, 1, 20, 31] = value
    check(lambda x, w: F.conv2d(x, w, padding=3, groups=64), x, w)


def test_what_reduces_a_convolution_of_one_channel() -> None:
    """Squeeze-and-excite's mean and a norm over channels: kernels after that of the convolution."""

    def squeezed(x: Any, w: Any) -> Any:
        y = F.silu(F.conv2d(x, w, padding=2, groups=w.shape[0]))
        return y * torch.sigmoid(y.mean((2, 3), keepdim=True))

    def normed(x: Any, w: Any) -> Any:
        return F.layer_norm(F.conv2d(x, w, padding=2, groups=w.shape[0]).permute(0, 2, 3, 1), w.shape[:1])

    for kind in KINDS.values():
        x, w = randn(8, 96, 28, 28, dtype=kind), randn(96, 1, 5, 5, dtype=kind, scale=0.3, last=False)
        check(squeezed, x, w)
        check(normed, x, w)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"scale_factor": (4, 2)}, {"size": (41, 30)}], ids=str)
def test_bilinear(kind: str, options: dict[str, Any]) -> None:
    for last in (False, True):
        x = randn(4, 24, 20, 21, dtype=KINDS[kind], last=last)
        check(lambda x: F.interpolate(x, mode="bilinear", **options), x)
    x[0, 0, 0, 1] = x[1, 2, 19, 19] = float("inf")
    check(lambda x: F.interpolate(x, mode="bilinear", **options), x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [False, True])
def test_pools(kind: str, last: bool) -> None:
    x = randn(4, 24, 21, 20, dtype=KINDS[kind], last=last)
    check(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 2, ceil_mode=True, dilation=2), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
    check(lambda x: F.adaptive_avg_pool2d(x, 1), x)
    check(lambda x: F.max_pool3d(x, 2), randn(2, 8, 6, 7, 8, dtype=KINDS[kind], last=last))


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_variances_of_parts(kind: str) -> None:
    x = randn(2, 64, 96, 93, dtype=KINDS[kind]) + 3
    check(lambda x: F.silu(F.group_norm(x, 8)), x)
    check(lambda x: F.relu(F.batch_norm(x, None, None, training=True)), x)
    x[0, 1, 0, 0] = float("inf")
    check(lambda x: F.group_norm(x, 8), x)


def test_the_largest_of_special_values() -> None:
    values = torch.tensor([1.0, 3.0, 3.0, float("nan"), float("-inf"), float("-inf"), float("-inf")], device=DEVICE)
    x = values[torch.randint(0, len(values), (2, 3, 17, 18), generator=torch.Generator().manual_seed(0)).to(DEVICE)]
    check(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1].clone(), torch.nan_to_num(x, nan=5.0))
