"""Graphs that store numbers of 8 bits, and read them."""

from __future__ import annotations


def quantised(rows: int, length: int, dtype: str, eight: str) -> str:
    """Each row over its largest number, and what it was divided by."""
    t, row = f"{dtype}[{rows}, {length}]", f"{dtype}[{rows}, 1]"
    return f"""graph @quantised(%x: {t}) {{
  %a = abs(%x) : {t}
  %m = reduce_max(%a) {{axes=[1]}} : {dtype}[{rows}]
  %k = reshape(%m) : {row}
  %s = div(%k, {dtype}(448.0)) : {row}
  %q = div(%x, %s) : {t}
  %y = cast(%q) : {eight}[{rows}, {length}]
  return %y, %s
}}"""


def moved(eight: str) -> str:
    """Numbers of 8 bits read, computed with in f32, stored as others; and copied as they are."""
    return f"""graph @moved(%x: {eight}[9, 70], %s: f32[9, 1]) {{
  %w = cast(%x) : f32[9, 70]
  %p = mul(%w, %s) : f32[9, 70]
  %y = cast(%p) : bf16[9, 70]
  %t = permute(%x) {{permutation=[1, 0]}} : {eight}[70, 9]
  %c = copy(%t) : {eight}[70, 9]
  return %y, %c
}}"""


CASES = {
    "quantised f32": quantised(5, 300, "f32", "f8e4m3"),
    "quantised bf16": quantised(3, 128, "bf16", "f8e4m3"),
    "quantised to e5m2": quantised(5, 300, "f32", "f8e5m2"),
    "read e4m3": moved("f8e4m3"),
    "read e5m2": moved("f8e5m2"),
}
