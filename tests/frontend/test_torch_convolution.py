"""Convolutions and pools of PyTorch, jitted: right, strided as eager's, in kernels of ours where these are expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aliasing import outcome
from jitted import plans
from oracle import assert_close_to_oracle
from torch import nn

import fusec

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
LARGEST = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEANS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def randn(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.contiguous(memory_format=LAST[x.dim()]) if last and x.dim() in LAST else x


def check(f: Callable[..., Any], *given: torch.Tensor, ours: bool = True) -> Any:
    """The jitted function, which gives what eager gives; in kernels of ``ours``, or else with the library's."""
    jitted: Any = fusec.jit(f, fallback="error" if ours else "eager")
    found, expected = jitted(*given), f(*given)
    exact = f(*(x.double() if x.is_floating_point() else x for x in given))
    for a, b, c in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected, exact)), strict=True):
        if b.dtype is torch.float64:  # exact is what eager gives
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        else:
            assert_close_to_oracle(a, c, b)
        assert a.stride() == b.stride()
    assert not jitted.dispatcher.eager_calls
    assert bool(calls(jitted)) != ours
    return jitted


def calls(jitted: Any) -> list[str]:
    """The library's calls of the last plan."""
    return [s.attributes.target for s in program(jitted).steps if type(s).__name__ == "Call"]


def program(jitted: Any) -> Any:
    return plans(jitted)[-1].executable.program


def image(rank: int, channels: int, batch: int = 2) -> tuple[int, ...]:
    return (batch, channels, *{1: (19,), 2: (9, 11), 3: (5, 6, 7)}[rank])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"padding": 1},
        {"padding": "same"},
        {"padding": "valid", "stride": 2},
        {"padding": 2, "dilation": 2, "stride": 2},
        {"padding": "same", "dilation": 2},
    ],
    ids=str,
)
def test_a_convolution(rank: int, last: bool, options: dict[str, Any]) -> None:
    x, w = randn(*image(rank, 5), last=last), randn(6, 5, *(3 for _ in range(rank)), last=last, seed=1)
    check(lambda x, w, b: CONVOLUTIONS[rank](x, w, b, **options), x, w, randn(6, seed=2))


@pytest.mark.parametrize("options", [{"stride": (2, 1), "padding": (0, 2)}, {"dilation": (1, 3), "padding": (2, 3)}])
@pytest.mark.parametrize("size", [(3, 5), (1, 4), (2, 1)])
def test_axes_that_are_unlike(options: dict[str, Any], size: tuple[int, int]) -> None:
    w = randn(6, 4, *size, seed=1)
    check(lambda x, w: F.conv2d(x, w, **options), randn(2, 4, 9, 13), w)
    check(lambda x, w: F.conv2d(x, w, **options), randn(2, 4, 9, 13, last=True), w)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 8, 33])
def test_dtypes_and_channels(dtype: torch.dtype, bias: bool, channels: int) -> None:
    x, w = randn(2, channels, 8, 8, dtype=dtype), randn(9, channels, 3, 3, dtype=dtype, seed=1)
    given = [x, w / 8, randn(9, dtype=dtype, seed=2)][: 2 + bias]
    check(lambda *given: F.conv2d(*given, padding=1), *given)


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_one_place_are_a_matmul(stride: int) -> None:
    x, w, b = randn(2, 6, 7, 8, last=True), randn(9, 6, 1, 1, seed=1), randn(9, seed=2)
    jitted = check(lambda x, w, b: F.conv2d(x, w, b, stride=stride), x, w, b)
    assert [k.kind for k in program(jitted).kernels if k.kind != "pack"] == ["gemm"]


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("kind", ["bf16", "groups", "transposed", "wide depthwise"])
def test_what_is_the_library_s_on_a_cpu(kind: str, last: bool) -> None:
    """In eager's layout, what follows in kernels."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    x, b = randn(2, 8, 9, 10, dtype=dtype, last=last), randn(8, dtype=dtype, seed=2)
    shapes = {"bf16": (8, 8, 3, 3), "groups": (8, 2, 3, 3), "transposed": (8, 8, 3, 3), "wide depthwise": (8, 1, 9, 9)}
    w = randn(*shapes[kind], dtype=dtype, seed=1) / 8
    functions: dict[str, Callable[..., Any]] = {
        "bf16": lambda x, w, b: F.conv2d(x, w, b, padding=1),
        "groups": lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, groups=4)),
        "transposed": lambda x, w, b: F.relu(F.conv_transpose2d(x, w, b, 3, 1, (1, 0), dilation=2)),
        "wide depthwise": lambda x, w, b: F.conv2d(x, w, b, padding=4, groups=8),
    }
    jitted = check(functions[kind], x, w, b, ours=False)
    assert calls(jitted) == ["fusec.convolution"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 3, "padding": 2, "output_padding": 2},
        {"stride": 5, "padding": 1},
        {"dilation": 2, "padding": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [3, 4])
def test_transposed_convolutions(rank: int, last: bool, options: dict[str, Any], size: int) -> None:
    x, b = randn(*image(rank, 4), last=last), randn(3, seed=2)
    w = randn(4, 3, *(size for _ in range(rank)), last=last, seed=1)
    check(lambda x, w, b: F.relu(TRANSPOSED[rank](x, w, b, **options)), x, w, b)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 33])
def test_dtypes_and_channels_of_transposed_convolutions(dtype: torch.dtype, channels: int) -> None:
    x, w = randn(2, channels, 8, 7, dtype=dtype), randn(channels, 9, 4, 3, dtype=dtype, seed=1) / 8
    check(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=(1, 0)), x, w)


def test_phases_of_a_transposed_convolution_are_one_matmul() -> None:
    x, w = randn(2, 8, 9, 10, last=True), randn(8, 6, 4, 4, seed=1)
    jitted = check(lambda x, w: F.relu(F.conv_transpose2d(x, w, stride=2, padding=1)), x, w)
    assert [k.kind for k in program(jitted).kernels if k.kind == "gemm"] == ["gemm"]
    x, w = randn(2, 8, 9, 10, last=True), randn(8, 6, 2, 2, seed=1)
    jitted = check(lambda x, w: F.relu(F.conv_transpose2d(x, w, stride=2)), x, w)
    assert [k.kind for k in program(jitted).kernels if k.kind != "pack"] == ["gemm"]


def test_places_of_a_transposed_convolution_that_nothing_reaches() -> None:
    x, w, b = randn(2, 4, 3, 1), randn(4, 3, 2, 1, seed=1), randn(3, seed=2)
    check(lambda x, w, b: F.conv_transpose2d(x, w, b, stride=4, output_padding=3), x, w, b)
    check(lambda x, w, b: F.conv_transpose2d(x, w, b, stride=4, padding=(4, 0)), x, w, b)


def test_each_channel_by_itself_transposed() -> None:
    x, w = randn(2, 6, 9, 8), randn(6, 2, 3, 3, seed=1)
    check(lambda x, w: F.conv_transpose2d(x, w, padding=1, dilation=2, groups=6), x, w)
    check(lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=6), x, w, ours=False)


def test_special_values_reach_what_a_transposed_convolution_makes_of_them() -> None:
    for size in (3, 4):
        x, w = randn(2, 4, 9, 9), randn(4, 5, size, size, seed=1)
        x[0, 1, 0, 0], x[0, 2, 4, 5], x[1, 3, 8, 8] = float("nan"), float("inf"), float("-inf")
        check(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), x, w)
        check(lambda x, w: F.conv_transpose2d(x, w, padding=1), x, w)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "beyond"), [(1, 1), (2, 2)])
def test_output_padding_that_eager_refuses(rank: int, stride: int, beyond: int) -> None:
    x, w = torch.randn(1, 2, *[5] * rank), torch.randn(2, 3, *[3] * rank)

    @fusec.jit(cache=False)
    def upsampled(x: Any, w: Any) -> Any:
        return TRANSPOSED[rank](x, w, stride=stride, output_padding=beyond)

    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        upsampled(x, w)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_that_are_the_library_s(rank: int) -> None:
    x, w = randn(*image(rank, 4)), randn(4, 3, *(3 for _ in range(rank)), seed=1)
    check(
        lambda x, w, b: TRANSPOSED[rank](x, w, b, stride=2, padding=1, output_padding=1, dilation=2, groups=2),
        x,
        w,
        randn(6, seed=2),
        ours=False,
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", [1, 2])
def test_each_channel_by_itself(times: int, dtype: torch.dtype, rank: int) -> None:
    x, w = randn(*image(rank, 6), dtype=dtype), randn(6 * times, 1, *(3 for _ in range(rank)), dtype=dtype, seed=1)
    b = randn(6 * times, dtype=dtype, seed=2)
    check(lambda x, w, b: CONVOLUTIONS[rank](x, w, b, padding=1, stride=2, groups=6), x, w, b)
    check(lambda x, w: CONVOLUTIONS[rank](x, w, dilation=2, groups=6), x, w)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("options", [{}, {"padding": 3}, {"padding": 2, "stride": 2}, {"padding": (0, 3)}], ids=str)
def test_windows_of_49_places_of_each_channel(last: bool, dtype: torch.dtype, options: dict[str, Any]) -> None:
    x, w, b = (
        randn(2, 21, 15, 13, dtype=dtype, last=last),
        randn(21, 1, 7, 7, dtype=dtype, seed=1) / 7,
        randn(21, seed=2),
    )
    check(lambda x, w, b: F.gelu(F.conv2d(x, w, b, groups=21, **options)), x, w, b.to(dtype))


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_one_image_without_a_batch(last: bool) -> None:
    x = randn(1, 5, 9, 11, last=last)[0]
    check(lambda x, w: F.conv2d(x, w, padding=1), x, randn(6, 5, 3, 3, seed=1))
    check(lambda x: F.max_pool2d(x, 3, return_indices=True), x)
    check(lambda x: F.avg_pool2d(x, 3), x)


def test_weights_and_images_that_lie_otherwise() -> None:
    x = randn(2, 5, 9, 22)[..., ::2]
    w = randn(3, 3, 5, 6, seed=1).permute(3, 2, 0, 1)
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    check(lambda x, w: F.conv2d(x, w, padding=1), x[:1].expand(2, -1, -1, -1), w)


def test_special_values_reach_the_windows_that_show_them() -> None:
    x, w = randn(2, 4, 9, 9), randn(5, 4, 3, 3, seed=1)
    x[0, 1, 0, 0], x[0, 2, 4, 5], x[1, 3, 8, 8] = float("nan"), float("inf"), float("-inf")
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    check(lambda x, w: F.conv2d(x, w, padding=1, groups=4), x, w[:4, :1])
    w[2, 1, 1, 1] = float("nan")
    check(lambda x, w: F.conv2d(x, w, stride=2), x, w)


def test_of_no_images() -> None:
    f = fusec.jit(lambda x, w: F.relu(F.conv2d(x, w, padding=1)))
    x, w = randn(0, 3, 5, 5), randn(4, 3, 3, 3)
    assert f(x, w).shape == (0, 4, 5, 5)
    assert fusec.jit(lambda x: F.max_pool2d(x, 2))(x).shape == (0, 3, 2, 2)
    assert fusec.jit(lambda x: F.avg_pool2d(x, 2))(x).shape == (0, 3, 2, 2)


def normed(x: Any, w: Any, mean: Any, var: Any, gamma: Any, beta: Any, r: Any) -> Any:
    y = F.batch_norm(F.conv2d(x, w, padding=1), mean, var, gamma, beta)
    return F.relu(y + r)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_what_follows_is_in_the_same_kernel(last: bool) -> None:
    per_channel = [randn(8, seed=k) for k in range(4)]
    per_channel[1] = per_channel[1].abs() + 0.5
    given = (randn(2, 8, 9, 9, last=last), randn(8, 8, 3, 3, seed=5) / 8, *per_channel, randn(2, 8, 9, 9, last=last))
    jitted = check(normed, *given)
    assert [k.kind for k in program(jitted).kernels].count("gemm") == 1


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + x)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_a_residual_network_is_a_matmul_for_each_convolution(last: bool) -> None:
    """Between them an image is put in a frame of zeros, and nothing else: none is copied into another layout."""
    torch.manual_seed(0)
    module = nn.Sequential(Block(32), Block(32)).eval().requires_grad_(False)
    jitted: Any = fusec.jit(module, fallback="error")
    x = randn(2, 32, 9, 9, last=last)
    found, expected = jitted(x), module(x)
    assert_close_to_oracle(found, module.double()(x.double()), expected)
    assert found.stride() == expected.stride()
    module.float()
    reports = program(jitted).reports
    assert [r.kind for r in reports].count("gemm") == 4
    assert not calls(jitted)
    assert "library" not in str(fusec.explain(jitted, x))
    between = {o.op for r in reports if r.kind == "map" for o in r.fused}
    assert between == {"pad", "add", "rsqrt", "mul"}  # these of the norms' variances


TIES = torch.tensor([1.0, 3.0, 3.0, 2.0, float("nan"), 3.0, float("-inf"), float("-inf"), float("-inf"), 0.0])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2, "stride": 1},
    ],
    ids=str,
)
def test_the_largest_of_windows(rank: int, last: bool, options: dict[str, Any]) -> None:
    x = randn(*image(rank, 3), last=last)
    check(lambda x: LARGEST[rank](x, **options), x)
    if rank > 1:
        check(lambda x: LARGEST[rank](x, **options, return_indices=True), x)


@pytest.mark.parametrize("padding", [0, 1])
def test_the_place_of_the_largest_where_several_are(padding: int) -> None:
    """The first; of several NaN the last; where all are -inf the first in the image, no padding."""
    torch.manual_seed(0)
    for _ in range(4):
        x = TIES[torch.randint(0, len(TIES), (2, 3, 9, 11))]
        check(lambda x: F.max_pool2d(x, 3, 2, padding, return_indices=True), x)
        check(lambda x: F.max_pool2d(x, 2, 1, padding, dilation=2, return_indices=True), x)
    nothing = torch.full((1, 2, 5, 5), float("-inf"))
    check(lambda x: F.max_pool2d(x, 3, 2, padding, return_indices=True), nothing)
    check(lambda x: F.max_pool2d(x, 3, 2, padding, return_indices=True), torch.full((1, 2, 5, 5), float("nan")))


@pytest.mark.parametrize("last", [False, True])
def test_the_place_in_windows_of_padding_alone(last: bool) -> None:
    """Where PyTorch begins to look, which may lie behind the image."""
    x = randn(2, 3, 1, 4, last=last)
    check(lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2, return_indices=True), x)
    tall = randn(2, 3, 2, 4, last=last)
    check(lambda x: F.max_pool2d(x, 2, (1, 2), 1, dilation=(3, 1), return_indices=True), tall)
    if not last:  # PyTorch's other kernel of three axes begins elsewhere
        check(lambda x: F.max_pool3d(x, 2, (2, 1, 1), (1, 0, 1), (2, 1, 2), return_indices=True), randn(1, 2, 1, 5, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_pools_of_other_dtypes(dtype: torch.dtype) -> None:
    x = randn(2, 3, 9, 11, dtype=dtype)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
        {"kernel_size": 3, "divisor_override": 5},
    ],
    ids=str,
)
def test_the_mean_of_windows(rank: int, last: bool, options: dict[str, Any]) -> None:
    options = {k: v for k, v in options.items() if rank > 1 or k != "divisor_override"}  # avg_pool1d has none
    check(lambda x: MEANS[rank](x, **options), randn(*image(rank, 3), last=last))


X, W, B = randn(2, 4, 5, 6), randn(6, 4, 3, 3), randn(6)
WRONG: dict[str, Callable[[], Any]] = {
    "channels": lambda: (lambda x: F.conv2d(x, W[:, :3]), X),
    "rank": lambda: (lambda x: F.conv2d(x, W[..., 0]), X),
    "window larger than the image": lambda: (lambda x: F.conv2d(x, W), X[:, :, :2]),
    "bias": lambda: (lambda x: F.conv2d(x, W, B[:5]), X),
    "groups": lambda: (lambda x: F.conv2d(x, W, groups=3), X),
    "dtype": lambda: (lambda x: F.conv2d(x, W.double()), X),
    "stride": lambda: (lambda x: F.conv2d(x, W, stride=0), X),
    "padding": lambda: (lambda x: F.conv2d(x, W, padding=-1), X),
    "same with a stride": lambda: (lambda x: F.conv2d(x, W, padding="same", stride=2), X),
    "a pool's padding": lambda: (lambda x: F.max_pool2d(x, 2, padding=2), X),
    "a pool's size": lambda: (lambda x: F.avg_pool2d(x, 9), X),
    "a divisor": lambda: (lambda x: F.avg_pool2d(x, 2, divisor_override=0), X),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_eager_s_error(name: str) -> None:
    f, x = WRONG[name]()
    _, error, said = outcome(f, (x,))
    _, raised, message = outcome(fusec.jit(f), (x,))
    assert error is not None
    assert raised is error
    assert message == said


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_the_largest_s_gradient_is_the_library_s(last: bool) -> None:
    """PyTorch's decomposition adds each of its elements to zeros by itself."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 9)
    x = x.to(memory_format=torch.channels_last) if last else x
    y, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    gradient = torch.randn_like(y)

    def backward(gradient: Any, x: Any, places: Any) -> Any:
        whole = torch.ops.aten.max_pool2d_with_indices_backward
        return whole(gradient, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places) * 2

    text = str(fusec.trace(backward, gradient, x, places))
    assert "aten.max_pool2d_with_indices_backward" in text
    assert "scatter" not in text
    found, wanted = fusec.jit(backward)(gradient, x, places), backward(gradient, x, places)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
