"""Graphs of row kernels that add up columns on the way: gradients of norms and softmax with those of their weights.

Sums are of parts, as ``passes/share_rows.py`` makes them: parts that the rows fill and that they don't, tiles of one
row and of several, columns of any number, axes that make up the rows.
"""

from __future__ import annotations

from math import prod


def _parts(name: str, rows: int, columns: int, parts: int, height: int, of: str, shape: str) -> str:
    """``%name``, the sums of parts of ``%of``."""
    sheet, padded = f"f32[{rows}, {columns}]", f"f32[{parts * height}, {columns}]"
    apart = f"f32[{parts}, {height}, {columns}]"
    short = parts * height - rows
    made = f"pad(%{name}_s, f32(0.0)) {{low=[0, 0], high=[{short}, 0]}}" if short else f"copy(%{name}_s)"
    return f"""  %{name}_s = reshape(%{of}) : {sheet}
  %{name}_p = {made} : {padded}
  %{name}_a = reshape(%{name}_{"p" if short else "s"}) : {apart}
  %{name} = reduce_sum(%{name}_a) {{axes=[1]}} : f32[{parts}, {columns}]
"""


def layer_norm(
    dtype: str, shape: tuple[int, ...], parts: int, height: int, strides: str = "", *, more: bool = False
) -> str:
    """Backward: the gradient of what is normalised, and parts of those of weight and bias.

    more: and of what is made of the result, rounded, taken as a matrix.
    """
    *outer, c = shape
    n, kept = prod(outer), [*outer, 1]
    x, wide = f"{dtype}{list(shape)}", f"f32{list(shape)}"
    return f"""graph @backward(%dy: {x}{strides}, %x: {x}, %m: f32{kept}, %r: f32{kept}, %w: {dtype}[{c}]) {{
  %g = cast(%dy) : {wide}
  %v = cast(%x) : {wide}
  %u = cast(%w) : f32[{c}]
  %d = sub(%v, %m) : {wide}
  %h = mul(%d, %r) : {wide}
  %gw = mul(%g, %u) : {wide}
  %s = reduce_sum(%gw) {{axes=[{len(outer)}]}} : f32{outer}
  %sk = reshape(%s) : f32{kept}
  %gh = mul(%gw, %h) : {wide}
  %t = reduce_sum(%gh) {{axes=[{len(outer)}]}} : f32{outer}
  %tk = reshape(%t) : f32{kept}
  %ht = mul(%h, %tk) : {wide}
  %a = mul(%gw, f32({float(c)})) : {wide}
  %b = sub(%a, %sk) : {wide}
  %e = sub(%b, %ht) : {wide}
  %q = mul(%r, f32({1 / c})) : f32{kept}
  %o = mul(%q, %e) : {wide}
  %dx = cast(%o) : {x}
  %f = mul(%g, %h) : {wide}
  %dxm = reshape(%dx) : {dtype}[{n}, {c}]
  %dxw = cast(%dxm) : f32[{n}, {c}]
{_parts("dw", n, c, parts, height, "f", x)}{_parts("db", n, c, parts, height, "g", x)}{
        _parts("dz", n, c, parts, height, "dxw", x) if more else ""
    }  return %dx, %dw, %db{", %dz" if more else ""}
}}"""


def softmax(dtype: str, rows: int, columns: int, parts: int, height: int, *, infinite: bool = False) -> str:
    """A softmax, and parts of the sums of what it gives: all that is added up needs the rows' reductions.

    infinite: a few of its inputs are, and their rows NaN.
    """
    x, wide = f"{dtype}[{rows}, {columns}]", f"f32[{rows}, {columns}]"
    return f"""graph @used(%x: {x}) {{
  %z = cast(%x) : {wide}
  %c = gt(%z, f32({3.0 if infinite else "inf"})) : bool[{rows}, {columns}]
  %v = select(%c, f32(inf), %z) : {wide}
  %y = softmax(%v) {{axis=1}} : {wide}
  %o = cast(%y) : {x}
{_parts("use", rows, columns, parts, height, "y", x)}  return %o, %use
}}"""


CASES: dict[str, str] = {
    "columns_even": layer_norm("bf16", (192, 64), 64, 3),
    "columns_wide": layer_norm("bf16", (128, 3000), 64, 2),
    "columns_uneven": layer_norm("f16", (319, 200), 64, 5),
    "columns_odd": layer_norm("f32", (130, 77), 65, 2),
    "columns_of_one_row": layer_norm("f32", (1, 40), 64, 1),
    "columns_of_parts_without_rows": layer_norm("bf16", (70, 24), 64, 9),
    "columns_of_images": layer_norm("bf16", (4, 50, 96), 100, 2),
    "columns_of_results": layer_norm("bf16", (4, 50, 96), 100, 2, more=True),
    "columns_of_results_uneven": layer_norm("f16", (3, 47, 96), 71, 2, more=True),
    "columns_strided": layer_norm("f32", (128, 48), 64, 2, " strides=[1, 128]"),
    "columns_not_finite": softmax("f32", 200, 33, 100, 2, infinite=True),
    "columns_of_softmax": softmax("bf16", 200, 333, 100, 2),
}
