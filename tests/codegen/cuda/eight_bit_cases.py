"""Products of 8 bits for Hopper, as code writes them: each a graph and a schedule."""

from __future__ import annotations

from hopper_cases import schedule

from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule


def scaled(m: int, k: int, n: int, a: str = "f8e4m3", b: str = "f8e4m3", out: str = "bf16", wide: str = "f32") -> str:
    """Scales for each row and column, a bias and gelu."""
    shape = f"{wide}[{m}, {n}]"
    return f"""graph @scaled(%x: {a}[{m}, {k}], %w: {b}[{n}, {k}], %s: {wide}[{m}, 1],
    %t: {wide}[{n}], %b: {wide}[{n}]) {{
  %xf = cast(%x) : {wide}[{m}, {k}]
  %wf = cast(%w) : {wide}[{n}, {k}]
  %h = dot(%xf, %wf) {{contract=[1]x[1]}} : {shape}
  %p = mul(%h, %s) : {shape}
  %q = mul(%p, %t) : {shape}
  %r = add(%q, %b) : {shape}
  %g = gelu(%r) {{approximate=tanh}} : {shape}
  %y = cast(%g) : {out}[{m}, {n}]
  return %y
}}"""


def rounded_first(m: int, k: int, n: int) -> str:
    """Rounded to bf16 before gelu."""
    text = scaled(m, k, n)
    before = text.partition("  %g = ")[0]
    shape = f"bf16[{m}, {n}]"
    return f"""{before}  %h16 = cast(%r) : {shape}
  %y = gelu(%h16) {{approximate=tanh}} : {shape}
  return %y
}}"""


def quantised(m: int, k: int, n: int, operand: str = "f8e4m3", out: str = "f8e4m3") -> str:
    """The result clamped and in 8 bits again."""
    shape = f"f32[{m}, {n}]"
    product = f"""%xf = cast(%x) : f32[{m}, {k}]
  %wf = cast(%w) : f32[{n}, {k}]
  %h = dot(%xf, %wf) {{contract=[1]x[1]}} : {shape}"""
    if operand == "bf16":
        product = f"%h = dot(%x, %w) {{contract=[1]x[1], dtype=f32}} : {shape}"
    return f"""graph @quantised(%x: {operand}[{m}, {k}], %w: {operand}[{n}, {k}], %s: f32[]) {{
  {product}
  %r = mul(%h, %s) : {shape}
  %over = gt(%r, f32(448.0)) : bool[{m}, {n}]
  %c = select(%over, f32(448.0), %r) : {shape}
  %under = lt(%c, f32(-448.0)) : bool[{m}, {n}]
  %d = select(%under, f32(-448.0), %c) : {shape}
  %y = cast(%d) : {out}[{m}, {n}]
  return %y
}}"""


def gated(m: int, k: int, n: int, out: str = "f8e4m3") -> str:
    """SwiGLU; what is in 8 bits again is clamped."""
    shape = f"f32[{m}, {n}]"
    clamp = f"""%over = gt(%f, f32(448.0)) : bool[{m}, {n}]
  %high = select(%over, f32(448.0), %f) : {shape}
  %under = lt(%high, f32(-448.0)) : bool[{m}, {n}]
  %d8 = select(%under, f32(-448.0), %high) : {shape}
  %y = cast(%d8)"""
    end = clamp if out.startswith("f8") else "%y = cast(%f)"
    return f"""graph @gated(%x: f8e4m3[{m}, {k}], %g: f8e4m3[{n}, {k}], %u: f8e4m3[{n}, {k}], %s: f32[]) {{
  %xf = cast(%x) : f32[{m}, {k}]
  %gf = cast(%g) : f32[{n}, {k}]
  %uf = cast(%u) : f32[{n}, {k}]
  %a = dot(%xf, %gf) {{contract=[1]x[1]}} : {shape}
  %b = dot(%xf, %uf) {{contract=[1]x[1]}} : {shape}
  %c = mul(%a, %s) : {shape}
  %d = silu(%c) : {shape}
  %e = mul(%d, %b) : {shape}
  %f = mul(%e, %s) : {shape}
  {end} : {out}[{m}, {n}]
  return %y
}}"""


def residual(m: int, k: int, n: int) -> str:
    return f"""graph @residual(%x: f8e4m3[{m}, {k}], %w: f8e4m3[{n}, {k}], %r: bf16[{m}, {n}]) {{
  %xf = cast(%x) : bf16[{m}, {k}]
  %wf = cast(%w) : bf16[{n}, {k}]
  %h = linear(%xf, %wf) : bf16[{m}, {n}]
  %y = add(%h, %r) : bf16[{m}, {n}]
  return %y
}}"""


def sums_of_bytes(m: int, k: int, n: int) -> str:
    return f"""graph @sums(%x: i8[{m}, {k}], %w: i8[{n}, {k}]) {{
  %y = dot(%x, %w) {{contract=[1]x[1], dtype=i32}} : i32[{m}, {n}]
  return %y
}}"""


def eight(*given: int, **more: int | bool | tuple[int, int]) -> HopperGemmSchedule:
    return schedule(*given, k=128, **more)  # type: ignore[arg-type]


PROMOTED = eight(128, 128, 6, cluster=(2, 1), promotes=4)
WIDE = eight(128, 256, 4, cluster=(2, 1))
TURNS = eight(128, 128, 6, cluster=(2, 1), ping_pong=True)

EIGHT_BITS: dict[str, tuple[str, HopperGemmSchedule]] = {
    "e4m3": (scaled(384, 2048, 512), PROMOTED),
    "e4m3_each_step": (scaled(384, 1024, 512), eight(128, 128, 6, promotes=1)),
    "e4m3_many_tiles": (scaled(4096, 640, 4608), PROMOTED),
    "e4m3_odd_sizes": (scaled(300, 528, 200), PROMOTED),
    "e4m3_odd_columns": (scaled(130, 1040, 131), eight(128, 64, 6, promotes=2)),
    "e4m3_192": (scaled(512, 1536, 576), eight(128, 192, 4, cluster=(2, 1), promotes=4)),
    "e4m3_160": (scaled(512, 1536, 480), eight(128, 160, 4, promotes=4)),
    "e4m3_rounded_first": (rounded_first(512, 1536, 960), eight(128, 192, 4, cluster=(2, 1), promotes=1)),
    "e4m3_few_steps": (scaled(384, 256, 512), WIDE),
    "e4m3_few_steps_192": (scaled(384, 384, 576), eight(128, 192, 4)),
    "e4m3_in_turns": (scaled(384, 512, 512), TURNS),
    "e4m3_of_bf16": (scaled(384, 2048, 512, wide="bf16"), PROMOTED),
    "e4m3_of_bf16_few_steps": (scaled(384, 512, 512, wide="bf16"), WIDE),
    "e4m3_one_step": (scaled(256, 96, 264), WIDE),
    "e5m2": (scaled(384, 1024, 512, "f8e5m2", "f8e5m2"), PROMOTED),
    "mixed": (scaled(384, 1024, 512, "f8e4m3", "f8e5m2"), PROMOTED),
    "mixed_otherwise": (scaled(384, 1024, 512, "f8e5m2", "f8e4m3"), WIDE),
    "quantised": (quantised(384, 1024, 512), PROMOTED),
    "quantised_odd": (quantised(300, 1040, 131), eight(128, 64, 6, promotes=4)),
    "quantised_to_e5m2": (quantised(384, 1024, 512, out="f8e5m2"), PROMOTED),
    "quantised_bf16": (quantised(384, 512, 512, "bf16"), schedule(128, 128, 6, (2, 1))),
    "gated": (gated(384, 1024, 512), eight(128, 64, 6, promotes=4)),
    "gated_96": (gated(384, 1024, 576, "bf16"), eight(128, 96, 4, promotes=4)),
    "residual": (residual(384, 1024, 256), PROMOTED),
    "residual_few_steps": (residual(384, 256, 256), eight(128, 64, 6)),
    "e4m3_split": (scaled(128, 4096, 512), eight(128, 128, 6, split=3, promotes=4)),
    "bytes": (scaled(384, 1024, 512, "i8", "i8"), WIDE),
    "bytes_in_turns": (scaled(384, 1024, 512, "i8", "i8"), TURNS),
    "bytes_whole": (scaled(384, 1024, 512, "i8", "i8"), eight(128, 128, 6, cluster=(2, 1))),
    "bytes_odd": (scaled(300, 528, 131, "i8", "i8"), eight(128, 64, 6)),
    "bytes_quantised": (quantised(384, 512, 512, "i8"), eight(128, 128, 6)),
    "sums_of_bytes": (sums_of_bytes(384, 2048, 512), WIDE),
    "sums_of_bytes_odd": (sums_of_bytes(130, 2064, 131), eight(128, 128, 6)),
}


def of_blocks(m: int, k: int, n: int, out: str = "bf16", tail: str = "", dots: int = 1) -> str:
    """Scales of 128 of K for each row, and of 128 by 128."""
    rows, blocks = -(-n // 128), -(-k // 128)
    wide = blocks * 128
    weights = ["w", "u"][:dots]
    made = "\n".join(
        f"""  %{w}f = cast(%{w}) : f32[{n}, {k}]
  %{w}a = reshape(%{w}s) : f32[{rows}, 1, {blocks}]
  %{w}b = broadcast(%{w}a) : f32[{rows}, 128, {blocks}]
  %{w}c = reshape(%{w}b) : f32[{rows * 128}, {blocks}, 1]
  %{w}d = broadcast(%{w}c) : f32[{rows * 128}, {blocks}, 128]
  %{w}e = reshape(%{w}d) : f32[{rows * 128}, {wide}]
  %{w}g = slice(%{w}e) {{starts=[0, 0], stops=[{n}, {k}], steps=[1, 1]}} : f32[{n}, {k}]
  %{w}h = mul(%{w}f, %{w}g) : f32[{n}, {k}]
  %{w}y = dot(%xh, %{w}h) {{contract=[1]x[1]}} : f32[{m}, {n}]"""
        for w in weights
    )
    given = ", ".join(f"%{w}: f8e4m3[{n}, {k}], %{w}s: f32[{rows}, {blocks}]" for w in weights)
    end = tail or (f"  %z = mul(%wy, %uy) : f32[{m}, {n}]" if dots > 1 else "")
    return f"""graph @of_blocks(%x: f8e4m3[{m}, {k}], %xs: f32[{m}, {blocks}], {given}) {{
  %xf = cast(%x) : f32[{m}, {k}]
  %xa = reshape(%xs) : f32[{m}, {blocks}, 1]
  %xb = broadcast(%xa) : f32[{m}, {blocks}, 128]
  %xc = reshape(%xb) : f32[{m}, {wide}]
  %xg = slice(%xc) {{starts=[0, 0], stops=[{m}, {k}], steps=[1, 1]}} : f32[{m}, {k}]
  %xh = mul(%xf, %xg) : f32[{m}, {k}]
{made}
{end}
  %y = cast({"%z" if end else "%wy"}) : {out}[{m}, {n}]
  return %y
}}"""


def by_columns(m: int, k: int, n: int) -> str:
    """A scale for each row and each column, which the code multiplies the operands by."""
    return f"""graph @by_columns(%x: f8e4m3[{m}, {k}], %s: f32[{m}, 1], %w: f8e5m2[{n}, {k}], %t: f32[{n}, 1]) {{
  %xf = cast(%x) : f32[{m}, {k}]
  %xh = mul(%xf, %s) : f32[{m}, {k}]
  %wf = cast(%w) : f32[{n}, {k}]
  %wh = mul(%wf, %t) : f32[{n}, {k}]
  %h = dot(%xh, %wh) {{contract=[1]x[1]}} : f32[{m}, {n}]
  %y = cast(%h) : bf16[{m}, {n}]
  return %y
}}"""


BLOCKS: dict[str, tuple[str, HopperGemmSchedule]] = {
    "blocks_128": (of_blocks(384, 1024, 512), eight(128, 128, 6, cluster=(2, 1), promotes=1)),
    "blocks_192": (of_blocks(512, 1536, 960), eight(128, 192, 4, cluster=(2, 1), promotes=1)),
    "blocks_64": (of_blocks(384, 640, 512), eight(128, 64, 6, promotes=1)),
    "blocks_odd": (of_blocks(300, 528, 131), eight(128, 64, 6, promotes=1)),
    "blocks_paired": (of_blocks(384, 1024, 512, dots=2), eight(128, 64, 6, promotes=1)),
    "blocks_one_step": (of_blocks(256, 128, 256), eight(128, 128, 6, promotes=1)),
    "scaled_columns": (by_columns(384, 1024, 584), eight(128, 128, 6, promotes=1)),
}
"""Products of 8-bit floats times scales."""
