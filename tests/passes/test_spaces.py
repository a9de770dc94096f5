"""Values of a score space that are consumed along both axes."""

from __future__ import annotations

from functools import partial

from rewriting import becomes, unchanged

from fusec.passes.spaces import spaces_apart

blocked = partial(spaces_apart, blocked=True)
INPUTS = "%q: f32[2, 70, 16], %k: f32[2, 80, 16]"


def test_a_copy_for_each_axis() -> None:
    becomes(
        blocked,
        f"""graph @g({INPUTS}) {{
          %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 70, 80]
          %p = tanh(%s) : f32[2, 70, 80]
          %a = dot(%p, %k) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
          %b = dot(%p, %q) {{contract=[1]x[1], batch=[0]x[0]}} : f32[2, 80, 16]
          return %a, %b
        }}""",
        f"""graph @g({INPUTS}) {{
          %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 70, 80]
          %p = tanh(%s) : f32[2, 70, 80]
          %a = dot(%p, %k) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
          %s_again = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 70, 80]
          %p_again = tanh(%s_again) : f32[2, 70, 80]
          %b = dot(%p_again, %q) {{contract=[1]x[1], batch=[0]x[0]}} : f32[2, 80, 16]
          return %a, %b
        }}""",
        special=False,
    )


def test_one_axis_needs_no_copy() -> None:
    unchanged(
        blocked,
        f"""graph @g({INPUTS}, %v: f32[2, 80, 16]) {{
          %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 70, 80]
          %a = dot(%s, %k) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
          %b = dot(%s, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
          return %a, %b
        }}""",
    )


def test_what_no_kernel_holds_is_left() -> None:
    """Rows are few beside the elements of a query."""
    unchanged(
        blocked,
        """graph @g(%q: f32[2, 40, 16], %k: f32[2, 40, 16]) {
          %s = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[2, 40, 40]
          %a = dot(%s, %k) {contract=[2]x[1], batch=[0]x[0]} : f32[2, 40, 16]
          %b = dot(%s, %q) {contract=[1]x[1], batch=[0]x[0]} : f32[2, 40, 16]
          return %a, %b
        }""",
    )
