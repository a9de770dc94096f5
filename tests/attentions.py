"""Attention as text that several tests start from."""

from __future__ import annotations


def beside_a_sink(dtype: str = "f32", queries: int = 50) -> str:
    """Two batches of three heads, each with a logit beside those of its 70 keys, ``%s``."""
    n, outer = queries, "2, 3"
    return f"""graph @g(%q: {dtype}[{outer}, {n}, 16], %k: {dtype}[{outer}, 70, 16], %v: {dtype}[{outer}, 70, 16],
    %s: {dtype}[3, 1, 1]) {{
  %d = dot(%q, %k) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {dtype}[{outer}, {n}, 70]
  %e = broadcast(%s) : {dtype}[{outer}, {n}, 1]
  %c = concat(%d, %e) {{axis=3}} : {dtype}[{outer}, {n}, 71]
  %p = softmax(%c) {{axis=3}} : {dtype}[{outer}, {n}, 71]
  %w = slice(%p) {{starts=[0, 0, 0, 0], stops=[{outer}, {n}, 70], steps=[1, 1, 1, 1]}} : {dtype}[{outer}, {n}, 70]
  %o = dot(%w, %v) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : {dtype}[{outer}, {n}, 16]
  return %o
}}"""
