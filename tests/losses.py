"""Losses over rows of logits, with the gradient beside them."""

from __future__ import annotations


def loss(kind: str, n: int, c: int) -> str:
    """Loss and gradient of rows of logits, with a sum in which one element counts."""
    return f"""graph @g(%l: {kind}[{n}, {c}], %i: i64[{n}, 1], %w: f32[{n}, 1]) {{
  %x = cast(%l) : f32[{n}, {c}]
  %m = reduce_max(%x) {{axes=[1]}} : f32[{n}]
  %k = reshape(%m) : f32[{n}, 1]
  %s = sub(%x, %k) : f32[{n}, {c}]
  %e = exp(%s) : f32[{n}, {c}]
  %t = reduce_sum(%e) {{axes=[1]}} : f32[{n}]
  %g = log(%t) : f32[{n}]
  %h = reshape(%g) : f32[{n}, 1]
  %y = sub(%s, %h) : f32[{n}, {c}]
  %j = iota() {{axis=1}} : i64[1, {c}]
  %f = eq(%j, %i) : bool[{n}, {c}]
  %p = select(%f, %y, f32(0)) : f32[{n}, {c}]
  %q = reduce_sum(%p) {{axes=[1]}} : f32[{n}]
  %o = select(%f, f32(-1), f32(0)) : f32[{n}, {c}]
  %a = mul(%o, %w) : f32[{n}, {c}]
  %u = reshape(%t) : f32[{n}, 1]
  %d = div(%e, %u) : f32[{n}, {c}]
  %c = mul(%d, %w) : f32[{n}, {c}]
  %z = add(%a, %c) : f32[{n}, {c}]
  %v = cast(%z) : {kind}[{n}, {c}]
  return %q, %v
}}"""
