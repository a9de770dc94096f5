from __future__ import annotations

import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.windows import WINDOW_RULES

SLIDING = """
    graph @g(%a: f32[10, 20], %b: f32[20, 1000]) {
      %w = windows(%b) {axis=1, size=20} : f32[20, 981, 20]
      %c = dot(%a, %w) {contract=[1]x[0]} : f32[10, 981, 20]        // windows.py:4
      return %c
    }
"""


def test_product_of_windows_is_windows_of_the_product() -> None:
    becomes(
        applying(*WINDOW_RULES),
        SLIDING,
        """
        graph @g(%a: f32[10, 20], %b: f32[20, 1000]) {
          %c_dot = dot(%a, %b) {contract=[1]x[0]} : f32[10, 1000]        // windows.py:4
          %c = windows(%c_dot) {axis=1, size=20} : f32[10, 981, 20]        // windows.py:4
          return %c
        }
        """,
    )


@pytest.mark.parametrize(("m", "k", "n", "size"), [(10, 20, 1000, 20), (64, 128, 300, 32)])
def test_as_strided_and_matmul_as_numpy_users_write_it(m: int, k: int, n: int, size: int) -> None:
    count = n - size + 1
    becomes(
        canonicalize,
        f"""
        graph @g(%a: f32[{m}, {k}], %b: f32[{k}, {n}]) {{
          %w = strided(%b) {{strides=[1, {n}, 1]}} : f32[{count}, {k}, {size}]
          %c = matmul(%a, %w) : f32[{count}, {m}, {size}]
          return %c
        }}
        """,
        f"""
        graph @g(%a: f32[{m}, {k}], %b: f32[{k}, {n}]) {{
          %c_dot_dot = dot(%a, %b) {{contract=[1]x[0]}} : f32[{m}, {n}]
          %c_dot = windows(%c_dot_dot) {{axis=1, size={size}}} : f32[{m}, {count}, {size}]
          %c = permute(%c_dot) {{permutation=[1, 0, 2]}} : f32[{count}, {m}, {size}]
          return %c
        }}
        """,
        special=m == 10,
    )


def test_a_left_operand_that_is_broadcast_over_the_windows() -> None:
    becomes(
        canonicalize,
        """
        graph @g(%a: f32[4, 32], %b: f32[32, 100]) {
          %w = windows(%b) {axis=1, size=8} : f32[32, 93, 8]
          %p = permute(%w) {permutation=[1, 0, 2]} : f32[93, 32, 8]
          %r = broadcast(%a) : f32[93, 4, 32]
          %c = dot(%r, %p) {contract=[2]x[1], batch=[0]x[0]} : f32[93, 4, 8]
          return %c
        }
        """,
        """
        graph @g(%a: f32[4, 32], %b: f32[32, 100]) {
          %c_dot_dot = dot(%a, %b) {contract=[1]x[0]} : f32[4, 100]
          %c_dot = windows(%c_dot_dot) {axis=1, size=8} : f32[4, 93, 8]
          %c = permute(%c_dot) {permutation=[1, 0, 2]} : f32[93, 4, 8]
          return %c
        }
        """,
    )


def test_windows_on_the_left_even_permuted() -> None:
    becomes(
        canonicalize,
        """
        graph @g(%b: f32[100, 32], %a: f32[32, 5]) {
          %w = windows(%b) {axis=0, size=8, step=2} : f32[47, 32, 8]
          %p = permute(%w) {permutation=[2, 0, 1]} : f32[8, 47, 32]
          %c = matmul(%p, %a) : f32[8, 47, 5]
          return %c
        }
        """,
        """
        graph @g(%b: f32[100, 32], %a: f32[32, 5]) {
          %c_dot = dot(%b, %a) {contract=[1]x[0]} : f32[100, 5]
          %c_windows = windows(%c_dot) {axis=0, size=8, step=2} : f32[47, 5, 8]
          %c = permute(%c_windows) {permutation=[2, 0, 1]} : f32[8, 47, 5]
          return %c
        }
        """,
    )


def test_batched_windows_keep_their_batch() -> None:
    graph = computes_the_same(
        canonicalize,
        """
        graph @g(%a: f32[3, 4, 32], %b: f32[3, 32, 60]) {
          %w = windows(%b) {axis=2, size=8} : f32[3, 32, 53, 8]
          %c = dot(%a, %w) {contract=[2]x[1], batch=[0]x[0]} : f32[3, 4, 53, 8]
          return %c
        }
        """,
    )
    assert [op.name for op in graph.ops] == ["dot", "windows"]


@pytest.mark.parametrize(
    ("source", "repeated"),
    [("f32[4, 1]", "f32[5, 4, 3]"), ("f32[1, 3]", "f32[5, 4, 3]"), ("f32[1, 1, 1]", "f32[5, 4, 3]")],
    ids=["along what is summed over", "along its own axis", "along all"],
)
def test_an_operand_that_repeats_along_more_than_the_batch_is_left(source: str, repeated: str) -> None:
    text = f"""
    graph @g(%a: {source}, %b: f32[5, 3, 8]) {{
      %r = broadcast(%a) : {repeated}
      %c = dot(%r, %b) {{contract=[2]x[1], batch=[0]x[0]}} : f32[5, 4, 8]
      return %c
    }}
    """
    assert unchanged(applying(*WINDOW_RULES), text) == []


DECLINED = [
    (
        "dot(%a, %w) {contract=[0]x[2]} : f32[10, 20, 981]",
        "the position in the window, axis 2 of %w, is summed over",
    ),
    (
        "dot(%e, %w) {contract=[1]x[1]} : f32[10, 20, 20]",
        "the windows' number, axis 1 of %w, is summed over",
    ),
    (
        "dot(%d, %w) {contract=[2]x[0], batch=[0]x[1]} : f32[981, 10, 20]",
        "the windows' number, axis 1 of %w, is a batch axis: each meets another matrix",
    ),
]


@pytest.mark.parametrize(("call", "reason"), DECLINED)
def test_windows_that_the_product_mixes_are_left(call: str, reason: str) -> None:
    text = f"""
    graph @g(%a: f32[20, 10], %b: f32[20, 1000], %d: f32[981, 10, 20], %e: f32[10, 981]) {{
      %w = windows(%b) {{axis=1, size=20}} : f32[20, 981, 20]
      %c = {call}
      return %c
    }}
    """
    assert unchanged(applying(*WINDOW_RULES), text) == [f"dot-of-windows: %c: {reason}"]


def test_windows_that_hardly_overlap_are_left_and_the_cost_is_said() -> None:
    text = """
    graph @g(%a: f32[10, 20], %b: f32[20, 1000]) {
      %w = windows(%b) {axis=1, size=20, step=15} : f32[20, 66, 20]
      %c = dot(%a, %w) {contract=[1]x[0]} : f32[10, 66, 20]
      return %c
    }
    """
    assert unchanged(applying(*WINDOW_RULES), text) == [
        "dot-of-windows: %c: 66 windows of 20 show 1320 of 1000 elements: "
        "6400 multiply-adds a row saved, 16000 worth of copying added"
    ]


def test_symbolic_overlap_is_left() -> None:
    text = """
    graph @g(%a: f32[10, 20], %b: f32[20, N]) {
      %w = windows(%b) {axis=1, size=20} : f32[20, (N - 19), 20]
      %c = dot(%a, %w) {contract=[1]x[0]} : f32[10, (N - 19), 20]
      return %c
    }
    """
    assert unchanged(applying(*WINDOW_RULES), text) == [
        "dot-of-windows: %c: how far the windows of %b overlap depends on the symbol N"
    ]


def test_windows_side_by_side_are_a_reshape() -> None:
    becomes(
        applying(*WINDOW_RULES),
        """
        graph @g(%x: f32[23, 4]) {
          %w = windows(%x) {axis=0, size=5, step=5} : f32[4, 4, 5]
          return %w
        }
        """,
        """
        graph @g(%x: f32[23, 4]) {
          %w_slice = slice(%x) {starts=[0, 0], stops=[20, 4], steps=[1, 1]} : f32[20, 4]
          %w_split = reshape(%w_slice) : f32[4, 5, 4]
          %w = permute(%w_split) {permutation=[0, 2, 1]} : f32[4, 4, 5]
          return %w
        }
        """,
    )


def test_a_weight_expanded_over_the_batch_is_multiplied_once() -> None:
    becomes(
        applying(*WINDOW_RULES),
        """
        graph @g(%x: f32[3, 4, 16], %w: f32[16, 5]) {
          %r = broadcast(%w) : f32[3, 16, 5]
          %y = dot(%x, %r) {contract=[2]x[1], batch=[0]x[0]} : f32[3, 4, 5]
          return %y
        }
        """,
        """
        graph @g(%x: f32[3, 4, 16], %w: f32[16, 5]) {
          %y = dot(%x, %w) {contract=[2]x[0]} : f32[3, 4, 5]
          return %y
        }
        """,
    )


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("source", ["f32[16, 5]", "f32[1, 1, 16, 5]"])
def test_either_side_and_several_batch_axes(side: int, source: str) -> None:
    operands, contract = ("%r, %x", "[2]x[3]") if side == 0 else ("%x, %r", "[3]x[2]")
    result = "f32[2, 3, 5, 4]" if side == 0 else "f32[2, 3, 4, 5]"
    graph = computes_the_same(
        applying(*WINDOW_RULES),
        f"""
        graph @g(%x: f32[2, 3, 4, 16], %w: {source}) {{
          %r = broadcast(%w) : f32[2, 3, 16, 5]
          %y = dot({operands}) {{contract={contract}, batch=[0, 1]x[0, 1]}} : {result}
          return %y
        }}
        """,
    )
    assert "broadcast" not in [op.name for op in graph.ops]


def test_an_operand_that_is_repeated_for_some_batch_axes_stays() -> None:
    text = """
    graph @g(%q: f32[2, 3, 4, 16], %k: f32[2, 1, 5, 16]) {
      %r = broadcast(%k) : f32[2, 3, 5, 16]
      %s = dot(%q, %r) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 3, 4, 5]
      return %s
    }
    """
    assert unchanged(applying(*WINDOW_RULES), text) == []


@pytest.mark.parametrize("take", ["reshape", "permuted"])
def test_windows_of_all_rows_are_windows_of_columns(take: str) -> None:
    """``sliding_window_view(b, (20, 8))[0]``, and with the place among the columns before that among the rows."""
    last = (
        "%p = reshape(%v) : f32[93, 20, 8]\n"
        if take == "reshape"
        else "%q = permute(%v) {permutation=[0, 1, 3, 2]} : f32[1, 93, 8, 20]\n"
        "          %r = reshape(%q) : f32[93, 8, 20]\n"
        "          %p = permute(%r) {permutation=[0, 2, 1]} : f32[93, 20, 8]\n"
    )
    becomes(
        canonicalize,
        f"""
        graph @g(%a: f32[4, 20], %b: f32[20, 100]) {{
          %w = windows(%b) {{axis=0, size=20}} : f32[1, 100, 20]
          %v = windows(%w) {{axis=1, size=8}} : f32[1, 93, 20, 8]
          {last}          %c = matmul(%a, %p) : f32[93, 4, 8]
          return %c
        }}
        """,
        """
        graph @g(%a: f32[4, 20], %b: f32[20, 100]) {
          %c_dot_dot = dot(%a, %b) {contract=[1]x[0]} : f32[4, 100]
          %c_dot = windows(%c_dot_dot) {axis=1, size=8} : f32[4, 93, 8]
          %c = permute(%c_dot) {permutation=[1, 0, 2]} : f32[93, 4, 8]
          return %c
        }
        """,
    )


@pytest.mark.parametrize("order", ["0, 1, 2, 3", "3, 1, 0, 2", "2, 3, 1, 0", "1, 0, 3, 2"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_windows_of_other_views(order: str, axis: int) -> None:
    extents = [(5, 1, 7, 4)[int(k)] for k in order.split(", ")]
    result = [*extents, 1 if extents[axis] == 1 else 3]
    result[axis] = 1 if extents[axis] == 1 else extents[axis] - 2
    computes_the_same(
        canonicalize,
        f"""
        graph @g(%x: f32[5, 7, 4]) {{
          %u = reshape(%x) : f32[5, 1, 7, 4]
          %p = permute(%u) {{permutation=[{order}]}} : f32{extents}
          %w = windows(%p) {{axis={axis}, size={result[-1]}}} : f32{result}
          %y = exp(%w) : f32{result}
          return %y
        }}
        """,
    )
