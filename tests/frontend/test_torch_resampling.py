"""Linear resampling as ops, as it is on a GPU: values of PyTorch's, and loads at places that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from programs import check  # noqa: E402

from fusec.frontend.torch_emit import Emitter  # noqa: E402
from fusec.frontend.torch_resampling import RESAMPLING  # noqa: E402
from fusec.ir.builder import Builder  # noqa: E402
from fusec.ir.graph import Graph  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.types import TensorType, f32  # noqa: E402

_MODES = {3: ("upsample_linear1d", "linear"), 4: ("upsample_bilinear2d", "bilinear")}


def resampled(shape: tuple[int, ...], sizes: tuple[int, ...], corners: bool = False, scales: Any = None) -> Graph:
    builder = Builder("g")
    emitter = Emitter(builder)
    emitter.results = (TensorType(f32, (*shape[:2], *sizes), "cuda:0"),)
    image = builder.input(TensorType(f32, shape, "cuda:0"), "x")
    made = RESAMPLING[_MODES[len(shape)][0]](emitter, image, None, corners, scales)
    return builder.finish([made])


def images(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


CASES = {
    "2 times": ((2, 3, 5, 6), (10, 12), {}),
    "2 and 4 times": ((1, 2, 3, 5), (6, 20), {}),
    "8 times": ((1, 2, 4), (32,), {}),
    "one place": ((1, 2, 1, 3), (2, 6), {}),
    "3 times": ((1, 2, 5, 4), (15, 12), {}),
    "half": ((1, 2, 8, 6), (4, 3), {}),
    "another scale": ((1, 2, 6), (13,), {"scales": [2.2]}),
    "scales that are exact": ((1, 2, 5, 6), (10, 12), {"scales": [2.0, 2.0]}),
    "corners": ((1, 2, 5, 6), (10, 12), {"corners": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    shape, sizes, options = CASES[name]
    graph, x = resampled(shape, sizes, **options), images(*shape)
    (found,) = interpret(graph, [x])
    corners, scales = options.get("corners", False), options.get("scales")
    size = {"scale_factor": scales} if scales else {"size": sizes}
    wanted = F.interpolate(torch.from_numpy(x), mode=_MODES[len(shape)][1], align_corners=corners, **size)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
    check(str(graph), [x], target="cuda:sm_90")


@pytest.mark.parametrize("place", [0, 1, 4, 5])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_are_where_the_library_has_them(place: int, value: float) -> None:
    """A neighbour with no share is multiplied by 0."""
    x = images(1, 1, 6)
    x[0, 0, place] = value
    wanted = F.interpolate(torch.from_numpy(x), scale_factor=2, mode="linear").numpy()
    (found,) = interpret(resampled((1, 1, 6), (12,)), [x])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


def test_nothing_is_gathered_where_places_repeat() -> None:
    run = check(str(resampled((1, 8, 6, 8), (12, 16))), [images(1, 8, 6, 8)], target="cuda:sm_90")
    assert run.kernels == ["map"]
    assert "x[0, " in run.lowered.stages["tile"]
    assert "i64(" not in run.lowered.stages["tile"]
