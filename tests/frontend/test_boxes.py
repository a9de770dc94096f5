"""Which views show a box of an array, and where it lies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fusec.frontend.boxes import Box, box_of
from fusec.ir.attributes import Attributes, PermuteAttributes, ShapeAttributes, SliceAttributes


def cut(*triples: tuple[int, int, int]) -> SliceAttributes:
    starts, stops, steps = zip(*triples, strict=True)
    return SliceAttributes(starts, stops, steps)


ROW = cut((2, 3, 1), (0, 5, 1), (0, 6, 1))
"""``x[2:3]`` of x: [4, 5, 6]."""

BOXES: dict[str, tuple[list[Attributes], Box | None]] = {
    "x[2]": ([ROW, ShapeAttributes((5, 6))], Box((2, 0, 0), (1, 5, 6), (0, 1))),
    "x[2][1:4]": (
        [ROW, ShapeAttributes((5, 6)), cut((1, 4, 1), (0, 6, 1))],
        Box((2, 1, 0), (1, 3, 6), (0, 1)),
    ),
    "x[1:][:2]": (
        [cut((1, 4, 1), (0, 5, 1), (0, 6, 1)), cut((0, 2, 1), (0, 5, 1), (0, 6, 1))],
        Box((1, 0, 0), (2, 5, 6), (0, 1, 2)),
    ),
    "x.T[3:]": (
        [PermuteAttributes((2, 1, 0)), cut((3, 6, 1), (0, 5, 1), (0, 4, 1))],
        Box((0, 0, 3), (4, 5, 3), (2, 1, 0)),
    ),
    "x[:, None]": ([ShapeAttributes((4, 1, 5, 6))], Box((0, 0, 0), (4, 5, 6), (1, 0, 2, 3))),
    "x.reshape(20, 6)": ([ShapeAttributes((20, 6))], None),
    "x[::2]": ([cut((0, 4, 2), (0, 5, 1), (0, 6, 1))], None),
    "x[::-1]": ([cut((3, -1, -1), (0, 5, 1), (0, 6, 1))], None),
    "x[2:2]": ([cut((2, 2, 1), (0, 5, 1), (0, 6, 1))], None),
}  # fmt: skip


@pytest.mark.parametrize("spelling", BOXES)
def test_box(spelling: str) -> None:
    views, wanted = BOXES[spelling]
    found = box_of((4, 5, 6), views)
    if found is not None and spelling != "x[:, None]":
        written = np.zeros((4, 5, 6), int)
        view = eval(spelling, {"x": written})
        view[...] = values = np.arange(1, view.size + 1).reshape(view.shape)
        box = tuple(slice(start, start + n) for start, n in zip(found.starts, found.shape, strict=True))
        assert np.array_equal(written[box], values.transpose(found.order).reshape(found.shape))
        assert np.count_nonzero(written) == np.count_nonzero(written[box])
    if wanted is None or "None" not in spelling:
        assert found == wanted


def test_added_axes_take_any_place_in_the_order() -> None:
    for permutation in itertools.permutations(range(4)):
        found = box_of((4, 5, 6), [ShapeAttributes((4, 1, 5, 6)), PermuteAttributes(permutation)])
        assert found is not None
        shape = [(4, 1, 5, 6)[axis] for axis in permutation]
        assert [shape[k] for k in found.order if shape[k] != 1] == [4, 5, 6]
