"""Products of rows in groups: sizes that are known, ends that are data, empty groups and groups of one row."""

from __future__ import annotations


def known(kind: str, sizes: list[int], k: int, n: int, rest: int = 0) -> str:
    """Gate and up with SwiGLU and a factor for each row, then down again."""
    m, groups = sum(sizes) + rest, len(sizes)
    given = f"rhs_contract=1, sizes={sizes}"
    return f"""graph @known(
  %x: {kind}[{m}, {k}], %v: {kind}[{groups}, {k}, {n}], %w: {kind}[{groups}, {k}, {n}], %s: {kind}[{m}, 1],
  %d: {kind}[{groups}, {k}, {n}]) {{
  %a = grouped_dot(%x, %v) {{{given}}} : {kind}[{m}, {n}]
  %b = grouped_dot(%x, %w) {{{given}}} : {kind}[{m}, {n}]
  %c = silu(%a) : {kind}[{m}, {n}]
  %e = mul(%c, %b) : {kind}[{m}, {n}]
  %f = mul(%e, %s) : {kind}[{m}, {n}]
  %g = mul(%f, {kind}(0.001)) : {kind}[{m}, {n}]
  %h = grouped_dot(%g, %d) {{rhs_contract=2, sizes={sizes}}} : {kind}[{m}, {k}]
  %y = mul(%h, {kind}(0.1)) : {kind}[{m}, {k}]
  return %y
}}"""


def data(kind: str, m: int, groups: int, k: int, n: int, each: int) -> str:
    """Groups of some ``each`` rows; those behind the last group are 0, to which a bias is added."""
    return f"""graph @data(%x: {kind}[{m}, {k}], %w: {kind}[{groups}, {n}, {k}], %o: i32[{groups}], %b: {kind}[{n}]) {{
  %i = iota() {{axis=0}} : i32[{groups}]
  %j = mul(%i, i32({each})) : i32[{groups}]
  %ends = add(%j, %o) : i32[{groups}]
  %p = grouped_dot(%x, %w, %ends) {{rhs_contract=2}} : {kind}[{m}, {n}]
  %y = add(%p, %b) : {kind}[{m}, {n}]
  return %y
}}"""


GROUPED = {
    "grouped_known": known("bf16", [3, 0, 1, 140, 56], 64, 96),
    "grouped_odd": known("f16", [0, 5, 33, 1], 40, 72),
    "grouped_known_rest": known("f32", [7, 0, 20], 33, 21, rest=9),
    "grouped_data": data("bf16", 150, 6, 64, 80, 20),
    "grouped_data_f32": data("f32", 100, 5, 37, 30, 19),
}
