"""Graphs whose kernels write into an input: boxes of it, and positions that are data."""

from __future__ import annotations


def box(dtype: str, starts: str, shape: str) -> str:
    return f"""graph @box(%x: {dtype}[3, 9, 7], %y: {dtype}{shape}) {{
  %e = exp(%y) : {dtype}{shape}
  %u = update(%x, %e) {{starts={starts}}} : {dtype}[3, 9, 7]
  return %u mutates=0
}}"""


def placed(dtype: str, value: str, index: str, axes: str, *, base: str = "[3, 9, 7]", made: str = "") -> str:
    """Positions of as many axes, all from one row of integers."""
    count = axes.count(",") + 1
    places = ", ".join(["%p"] * count)
    return f"""graph @placed(%x: {dtype}{base}, %y: {dtype}{value}, %i: {index}) {{
  {made or f"%p = add(%i, {index.partition('[')[0]}(0)) : {index}"}
  %e = neg(%y) : {dtype}{value}
  %u = update(%x, %e, {places}) {{starts=[0, 0, 0], axes={axes}}} : {dtype}{base}
  %s = reduce_sum(%u) {{axes=[2]}} : {dtype}{base.rpartition(",")[0]}]
  return %u mutates=0, %s
}}"""


def projected(rows: int, dtype: str = "bf16") -> str:
    """A cache's keys of one token a sequence, by the kernel of their projection."""
    cache = f"{dtype}[{rows}, 9, 32]"
    return f"""graph @projected(%c: {cache}, %x: {dtype}[{rows}, 64], %w: {dtype}[32, 64], %i: i64[{rows}]) {{
  %k = linear(%x, %w) : {dtype}[{rows}, 32]
  %r = reshape(%k) : {dtype}[{rows}, 1, 32]
  %b = iota() {{axis=0}} : i64[{rows}]
  %u = update(%c, %r, %b, %i) {{starts=[0, 0, 0], axes=[0, 1]}} : {cache}
  return %u mutates=0
}}"""


ROTATED = """graph @rotated(%c: f32[2, 8, 64], %x: f32[2, 1, 64], %g: f32[64], %i: i64[]) {
  %n = layer_norm(%x) {axes=[2], eps=1e-5} : f32[2, 1, 64]
  %y = mul(%n, %g) : f32[2, 1, 64]
  %u = update(%c, %y, %i) {starts=[0, 0, 0], axes=[1]} : f32[2, 8, 64]
  return %u mutates=0
}"""

_DIFFERENT = """%z = mul(%i, i32(0)) : i32[5]
  %j = iota() {axis=0} : i32[5]
  %p = add(%z, %j) : i32[5]"""

CASES = {
    "write_box": box("f32", "[1, 2, 3]", "[2, 4, 3]"),
    "write_box_bf16": box("bf16", "[0, 5, 0]", "[3, 1, 7]"),
    "write_whole_rows": box("f16", "[1, 0, 0]", "[1, 9, 7]"),
    "write_place": placed("f32", "[3, 1, 7]", "i64[]", "[1]"),
    "write_dynamic_box": placed("f32", "[3, 4, 7]", "i32[]", "[1]"),
    "write_rows": placed("bf16", "[3, 4, 7]", "i64[4]", "[1]", made="%p = iota() {axis=0} : i64[4]"),
    "write_rows_of_two": placed("f32", "[5, 2, 1]", "i32[5]", "[0, 2]", base="[6, 2, 6]", made=_DIFFERENT),
    "write_projection": projected(5),
    "write_projection_of_many": projected(70, "f16"),
    "write_norm": ROTATED,
}
"""Positions are no larger than what :func:`interpreted.inputs_of` draws, and those of a case that has rows differ."""
