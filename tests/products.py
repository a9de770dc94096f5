"""Texts of matmuls that several tests run."""

from __future__ import annotations


def int8_product(m: int, n: int, k: int) -> str:
    """i8, the product itself a result too."""
    return f"""graph @g(%x: i8[{m}, {k}], %w: i8[{n}, {k}] static "w", %s: f32[{n}]) {{
        %h = dot(%x, %w) {{contract=[1]x[1], dtype=i32}} : i32[{m}, {n}]
        %f = cast(%h) : f32[{m}, {n}]
        %y = mul(%f, %s) : f32[{m}, {n}]
        return %y, %h
    }}"""
