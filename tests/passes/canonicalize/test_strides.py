from __future__ import annotations

import numpy as np
import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.passes.canonicalize.strides import STRIDE_RULES

recognised = applying(*STRIDE_RULES)

PATTERNS = [
    # A whole array of another shape.
    ("f32[20, 50]", "{strides=[100, 1]} : f32[10, 100]", ["reshape"]),
    # Windows of columns, the window's number first, as numpy's documentation has it.
    ("f32[20, 50]", "{strides=[1, 50, 1]} : f32[43, 20, 8]", ["windows", "permute"]),
    # Every third window.
    ("f32[20, 50]", "{strides=[50, 3, 1]} : f32[20, 15, 8]", ["windows"]),
    # Windows of every second element.
    ("f32[100]", "{strides=[2, 2]} : f32[40, 8]", ["slice", "windows"]),
    # Windows over both axes: patches of an image.
    ("f32[8, 9]", "{strides=[9, 1, 9, 1]} : f32[6, 7, 3, 3]", ["windows", "windows"]),
    # A transpose.
    ("f32[8, 9]", "{strides=[1, 9]} : f32[9, 8]", ["permute"]),
    # A part from an offset.
    ("f32[8, 9]", "{strides=[9, 1], offset=20} : f32[3, 4]", ["slice"]),
    # Rows backwards.
    ("f32[8, 9]", "{strides=[-9, 1], offset=63} : f32[8, 9]", ["slice"]),
    # One row, repeated.
    ("f32[8, 9]", "{strides=[0, 1], offset=27} : f32[5, 9]", ["slice", "reshape", "reshape", "broadcast"]),
    # One element.
    ("f32[8, 9]", "{strides=[], offset=27} : f32[]", ["slice", "reshape"]),
    # The first two of three axes as one.
    ("f32[4, 5, 6]", "{strides=[6, 1]} : f32[20, 6]", ["reshape"]),
    ("f32[4, 5, 6]", "{strides=[6, 1], offset=6} : f32[18, 6]", ["reshape", "slice"]),
    # Along the diagonal, two at a time.
    ("f32[8, 9]", "{strides=[10, 1]} : f32[7, 2]", ["reshape", "slice", "windows"]),
    # Axes of extent 1 with strides that mean nothing.
    ("f32[1, 8, 1, 9]", "{strides=[7, 9, 123, 1]} : f32[1, 8, 1, 9]", ["reshape", "reshape"]),
]


@pytest.mark.parametrize(("type_", "view", "ops"), PATTERNS)
def test_strides_that_follow_the_axes_are_views_of_them(type_: str, view: str, ops: list[str]) -> None:
    result = view.rpartition(" : ")[2]
    graph = computes_the_same(
        recognised,
        f"""
        graph @g(%x: {type_}) {{
          %v = strided(%x) {view}
          %y = exp(%v) : {result}
          return %y
        }}
        """,
    )
    assert [op.name for op in graph.ops[:-1]] == ops


def test_text() -> None:
    becomes(
        recognised,
        """
        graph @g(%b: f32[20, 1000]) {
          %w = strided(%b) {strides=[1, 1000, 1]} : f32[981, 20, 20]
          return %w
        }
        """,
        """
        graph @g(%b: f32[20, 1000]) {
          %w_windows = windows(%b) {axis=1, size=20} : f32[20, 981, 20]
          %w = permute(%w_windows) {permutation=[1, 0, 2]} : f32[981, 20, 20]
          return %w
        }
        """,
    )


IRREGULAR = [
    ("f32[8, 9]", "{strides=[3, 2]} : f32[5, 5]", "[3, 2] from 0"),  # two steps, neither a multiple of the other
    ("f32[30]", "{strides=[4, 2, 1]} : f32[3, 3, 3]", "[4, 2, 1] from 0"),  # three steps along one axis
]


@pytest.mark.parametrize(("type_", "view", "which"), IRREGULAR)
def test_other_strides_stay_and_say_so(type_: str, view: str, which: str) -> None:
    text = f"""
    graph @g(%x: {type_}) {{
      %v = strided(%x) {view}
      return %v
    }}
    """
    (reason,) = unchanged(applying(*STRIDE_RULES), text)
    assert reason == f"strided-is-views: %v: strides {which} step across the axes of {type_} in no regular way"


@pytest.mark.parametrize("seed", range(60))
def test_random_strides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 6, rng.integers(1, 4)).tolist()
    size = int(np.prod(shape))
    wanted, strides = [], []
    low = high = 0
    for _ in range(int(rng.integers(1, 4))):
        stride, count = int(rng.choice([-2, -1, 0, 1, 1, 2, shape[-1], shape[-1]])), int(rng.integers(1, 4))
        reach = (count - 1) * stride
        if high - low + abs(reach) < size:
            low, high = low + min(reach, 0), high + max(reach, 0)
            wanted.append(count)
            strides.append(stride)
    offset = int(rng.integers(-low, size - high))
    computes_the_same(
        recognised,
        f"""
        graph @g(%x: f32{shape}) {{
          %v = strided(%x) {{strides={strides}, offset={offset}}} : f32{wanted}
          %y = exp(%v) : f32{wanted}
          return %y
        }}
        """,
    )
