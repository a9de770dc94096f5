"""``im2col`` and average pooling by views: the captured graph computes what eager does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_harness import check

import fusec
from fusec.errors import UnsupportedOpError

torch.manual_seed(0)
IMAGE = torch.randn(2, 3, 7, 9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "stride": (1, 2)},
        {"kernel_size": 2, "dilation": (2, 3), "padding": (1, 2)},
        {"kernel_size": (7, 1)},
    ],
)
@pytest.mark.parametrize("image", [IMAGE, IMAGE[0]])
def test_columns_of_windows(arguments, image):
    check(lambda x: F.unfold(x, **arguments), image)


@pytest.mark.parametrize(
    ("arguments", "extern"),
    [
        ({"kernel_size": 2}, 0),
        ({"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)}, 0),
        ({"kernel_size": 3, "padding": 1, "divisor_override": 5}, 0),
        ({"kernel_size": 3, "padding": 1, "count_include_pad": False}, 0),
        ({"kernel_size": 2, "ceil_mode": True}, 0),
        ({"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True}, 0),
        ({"kernel_size": (4, 2), "stride": 3, "padding": (2, 1), "ceil_mode": True, "count_include_pad": False}, 0),
        ({"kernel_size": 4, "stride": 3, "padding": 1, "ceil_mode": True, "divisor_override": 3}, 0),
    ],
)
def test_average_pooling(arguments, extern):
    check(lambda x: F.avg_pool2d(x, **arguments), IMAGE, extern=extern)


def test_average_pooling_of_halves():
    check(lambda x: F.avg_pool2d(x, 3), IMAGE.bfloat16())


@pytest.mark.parametrize(("sizes", "extern"), [((7, 3), 0), ((1, 9), 0), ((2, 3), 1)])
def test_pooling_to_a_size(sizes, extern):
    check(lambda x: F.adaptive_avg_pool2d(x, sizes), IMAGE, extern=extern)
    check(lambda x: F.adaptive_avg_pool2d(x, sizes), IMAGE[0].bfloat16(), extern=extern)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p):
    check(lambda x, y: torch.cdist(x, y, p=p), torch.randn(2, 4, 5), torch.randn(2, 3, 5))


def test_distances_of_nothing():
    check(torch.cdist, torch.randn(4, 0), torch.randn(3, 0))


@pytest.mark.parametrize(("offset", "dims"), [(0, (0, 1)), (1, (2, 0)), (-2, (1, 2))])
def test_a_diagonal_is_written(offset, dims):
    x = torch.randn(4, 5, 6)
    source = torch.randn(x.diagonal(offset, *dims).shape)
    check(lambda a, b: torch.diagonal_scatter(a, b, offset, *dims), x, source)


def test_products_of_all_batches_added_up():
    check(lambda m, a, b: torch.addbmm(m, a, b, beta=0.5, alpha=2), *map(torch.randn, [(4, 6), (3, 4, 5), (3, 5, 6)]))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("arguments", "extern"),
    [
        ({"scale_factor": 2}, 0),
        ({"scale_factor": (4.0, 1.0)}, 0),
        ({"size": (14, 36)}, 0),
        ({"scale_factor": 2.1, "recompute_scale_factor": True}, 0),
        ({"scale_factor": 3}, 1),
        ({"size": (10, 5)}, 1),
        ({"scale_factor": 2.05}, 1),
        ({"scale_factor": 0.6}, 1),
    ],
)
def test_the_nearest_element_of_another_size(mode, arguments, extern):
    """By a power of two it is a view. PyTorch's decomposition takes other elements where sizes are rounded."""
    for image in (IMAGE, IMAGE.to(memory_format=torch.channels_last), IMAGE.bfloat16()):
        check(lambda x: F.interpolate(x, mode=mode, **arguments), image, extern=extern)


def test_the_nearest_element_along_one_axis_and_three():
    check(lambda x: F.interpolate(x, scale_factor=2), IMAGE[0], extern=0)
    check(lambda x: F.interpolate(x, scale_factor=(1, 2, 4)), IMAGE[None], extern=0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "arguments", [{"scale_factor": 2}, {"scale_factor": 2.05}, {"size": (5, 5), "antialias": True}]
)
def test_resized_images_are_the_library_s(mode, arguments):
    check(lambda x: F.interpolate(x, mode=mode, **arguments), IMAGE, extern=1)


def test_a_scale_that_the_sizes_do_not_tell_is_refused_where_the_library_may_not_run():
    with pytest.raises(UnsupportedOpError, match="another scale"):
        fusec.jit(lambda x: F.interpolate(x, scale_factor=2.05), fallback="error")(IMAGE)
    exact = F.interpolate(IMAGE, scale_factor=3)
    assert torch.equal(fusec.jit(lambda x: F.interpolate(x, scale_factor=3), fallback="error")(IMAGE), exact)
