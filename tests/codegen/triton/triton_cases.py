"""Graphs that GPU kernels are tested on, as IR text: every kernel family, odd sizes, odd layouts, all dtypes."""

from __future__ import annotations

from column_cases import CASES as COLUMNS
from grouped_cases import GROUPED
from losses import loss

from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, GpuGemvSchedule
from fusec.passes.families.map.schedule.gpu import GpuMapSchedule
from fusec.passes.schedule.launch import Launch


def linear(m: int, k: int, n: int, dtype: str, activation: str = "gelu(%h) {approximate=none}") -> str:
    return f"""graph @linear(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}], %b: {dtype}[{n}]) {{
  %h = linear(%x, %w, %b) : {dtype}[{m}, {n}]
  %y = {activation} : {dtype}[{m}, {n}]
  return %y
}}"""


def int8(m: int, k: int, n: int) -> str:
    """Weights of 8 bits, scaled down to about one."""
    return f"""graph @int8(%x: bf16[{m}, {k}], %w: i8[{n}, {k}], %s: bf16[{n}, 1]) {{
  %a = cast(%w) : bf16[{n}, {k}]
  %t = mul(%s, bf16({1 / k})) : bf16[{n}, 1]
  %b = mul(%a, %t) : bf16[{n}, {k}]
  %y = linear(%x, %b) : bf16[{m}, {n}]
  return %y
}}"""


def sdpa(q: tuple[int, ...], k: tuple[int, ...], dtype: str, causal: bool = False, grouped: bool = False) -> str:
    qs, ks = list(q), list(k)
    flags = f"causal={str(causal).lower()}, scale=none, grouped={str(grouped).lower()}"
    return f"""graph @sdpa(%q: {dtype}{qs}, %k: {dtype}{ks}, %v: {dtype}{ks}) {{
  %o = sdpa(%q, %k, %v) {{{flags}}} : {dtype}{qs}
  return %o
}}"""


def rows_of_attention(dtype: str) -> str:
    """Attention that gives each row's maximum and sum of exponentials, too."""
    shape, rows = "[3, 37, 70]", "f32[3, 37]"
    return f"""graph @rows(%q: {dtype}[3, 37, 16], %k: {dtype}[3, 70, 16], %v: {dtype}[3, 70, 16]) {{
  %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {dtype}{shape}
  %z = cast(%s) : f32{shape}
  %max = reduce_max(%z) {{axes=[2]}} : {rows}
  %m = reshape(%max) : f32[3, 37, 1]
  %less = sub(%z, %m) : f32{shape}
  %e = exp(%less) : f32{shape}
  %sum = reduce_sum(%e) {{axes=[2]}} : {rows}
  %l = reshape(%sum) : f32[3, 37, 1]
  %p = div(%e, %l) : f32{shape}
  %w = cast(%p) : {dtype}{shape}
  %o = dot(%w, %v) {{contract=[2]x[1], batch=[0]x[0]}} : {dtype}[3, 37, 16]
  return %o, %max, %sum
}}"""


def windows(dtype: str, n: int, h: int, w: int, c: int, size: tuple[int, int], step: int, reduced: str) -> str:
    """A sum of windows with weights, channel by channel, or the largest of each, and relu."""
    low = size[0] // 2, size[1] // 2
    ph, pw = h + 2 * low[0], w + 2 * low[1]
    oh, ow = (ph - size[0]) // step + 1, (pw - size[1]) // step + 1
    around = [0, *low, 0]
    taps, seen = f"{size[0]}, {size[1]}", f"f32[{n}, {oh}, {ow}, {c}, {size[0]}, {size[1]}]"
    weighted = f"""  %a = cast(%v) : {seen}
  %b = cast(%w) : f32[{c}, {taps}]
  %m = mul(%a, %b) : {seen}"""
    fill, taken = (f"{dtype}(0.0)", weighted) if reduced == "sum" else ("f32(-inf)", "")
    over, kind = ("%m", "f32") if reduced == "sum" else ("%v", dtype)
    return f"""graph @windows(%x: {dtype}[{n}, {h}, {w}, {c}], %w: {dtype}[{c}, {taps}]) {{
  %p = pad(%x, {fill}) {{low={around}, high={around}}} : {dtype}[{n}, {ph}, {pw}, {c}]
  %u = windows(%p) {{axis=1, size={size[0]}, step={step}}} : {dtype}[{n}, {oh}, {pw}, {c}, {size[0]}]
  %v = windows(%u) {{axis=2, size={size[1]}, step={step}}} : {dtype}[{n}, {oh}, {ow}, {c}, {taps}]
{taken}
  %r = reduce_{reduced}({over}) {{axes=[4, 5]}} : {kind}[{n}, {oh}, {ow}, {c}]
  %s = cast(%r) : {dtype}[{n}, {oh}, {ow}, {c}]
  %y = relu(%s) : {dtype}[{n}, {oh}, {ow}, {c}]
  return %y
}}"""


def normalised(n: int, h: int, w: int, groups: int, each: int) -> str:
    """An image less the mean of each group of channels, padded."""
    c = groups * each
    return f"""graph @m(%x: bf16[{n}, {h}, {w}, {c}], %m: f32[{n}, {groups}]) {{
  %f = cast(%x) : f32[{n}, {h}, {w}, {c}]
  %g = reshape(%f) : f32[{n}, {h}, {w}, {groups}, {each}]
  %k = reshape(%m) : f32[{n}, 1, 1, {groups}, 1]
  %d = sub(%g, %k) : f32[{n}, {h}, {w}, {groups}, {each}]
  %r = reshape(%d) : f32[{n}, {h}, {w}, {c}]
  %b = cast(%r) : bf16[{n}, {h}, {w}, {c}]
  %p = pad(%b, bf16(0.0)) {{low=[0, 1, 1, 0], high=[0, 1, 1, 0]}} : bf16[{n}, {h + 2}, {w + 2}, {c}]
  return %p
}}"""


def scored(q: tuple[int, ...], k: tuple[int, ...], dtype: str, *changes: str) -> str:
    """Attention as a user writes it: ``changes`` take %s, in f32, to %t."""
    b, h, n, d = q
    keys = k[2]
    score = f"f32[{b}, {h}, {n}, {keys}]"
    lines = "\n".join(f"  {c}" for c in changes).replace("SCORE", score).replace("MASK", f"bool[{n}, {keys}]")
    lines = lines.replace("GRID", f"i64[{n}, {keys}]")
    return f"""graph @scored(%q: {dtype}{list(q)}, %k: {dtype}{list(k)}, %v: {dtype}{list(k)}) {{
  %kt = permute(%k) {{permutation=[0, 1, 3, 2]}} : {dtype}[{b}, {h}, {d}, {keys}]
  %r = matmul(%q, %kt) : {dtype}[{b}, {h}, {n}, {keys}]
  %rf = cast(%r) : {score}
  %s = mul(%rf, f32(0.125)) : {score}
{lines}
  %p = softmax(%t) {{axis=3}} : {score}
  %ph = cast(%p) : {dtype}[{b}, {h}, {n}, {keys}]
  %o = matmul(%ph, %v) : {dtype}{list(q)}
  return %o
}}"""


_ROWS = "%i = iota() {axis=0} : GRID"
_COLUMNS = "%j = iota() {axis=1} : GRID"

CASES: dict[str, str] = {
    "map": """graph @m(%x: f32[37, 53], %y: f32[53]) {
  %a = mul(%x, f32(2.0)) : f32[37, 53]
  %b = add(%a, %y) : f32[37, 53]
  %c = exp(%b) : f32[37, 53]
  return %c
}""",
    "map_bf16": """graph @m(%x: bf16[37, 53], %y: bf16[37, 53]) {
  %s = silu(%x) : bf16[37, 53]
  %c = mul(%s, %y) : bf16[37, 53]
  return %c
}""",
    "map_transposed": """graph @m(%x: f32[37, 53]) {
  %t = permute(%x) {permutation=[1, 0]} : f32[53, 37]
  %y = add(%t, f32(1.0)) : f32[53, 37]
  return %y
}""",
    "map_gelu_bf16": """graph @m(%x: bf16[300]) {
  %w = mul(%x, bf16(4.0)) : bf16[300]
  %y = gelu(%w) {approximate=none} : bf16[300]
  return %y
}""",
    "map_of_a_number": """graph @m(%x: f32[300]) {
  %z = broadcast(f32(0.5)) : f32[300]
  %y = copy(%z) : f32[300]
  return %y
}""",
    "map_of_a_truth": """graph @m(%x: f32[300]) {
  %c = broadcast(bool(true)) : bool[300]
  %d = copy(%c) : bool[300]
  return %d
}""",
    "map_f64": """graph @m(%x: f64[300]) {
  %c = gt(%x, f64(0.1)) : bool[300]
  %y = select(%c, %x, f64(0.1)) : f64[300]
  %e = exp(%y) : f64[300]
  %d = div(%x, %e) : f64[300]
  %a = abs(%d) : f64[300]
  %s = sqrt(%a) : f64[300]
  %r = rsqrt(%e) : f64[300]
  %q = remainder(%x, %r) : f64[300]
  %f = floordiv(%x, %y) : f64[300]
  return %s, %r, %q, %f
}""",
    "softmax_f64": """graph @s(%x: f64[9, 100]) {
  %y = softmax(%x) {axis=1} : f64[9, 100]
  return %y
}""",
    "map_tiles": """graph @m(%x: bf16[3, 37, 101]) {
  %t = permute(%x) {permutation=[2, 0, 1]} : bf16[101, 3, 37]
  %y = mul(%t, bf16(2.0)) : bf16[101, 3, 37]
  return %y
}""",
    "map_integers": """graph @m(%x: i64[300], %y: i32[300]) {
  %z = cast(%y) : i64[300]
  %s = mul(%x, %z) : i64[300]
  %m = maximum(%s, i64(3)) : i64[300]
  %c = gt(%m, i64(5)) : bool[300]
  return %m, %c
}""",
    "map_erf_bf16": """graph @m(%x: bf16[300]) {
  %y = erf(%x) : bf16[300]
  return %y
}""",
    "map_functions": """graph @m(%x: f32[300]) {
  %a = tanh(%x) : f32[300]
  %b = sin(%a) : f32[300]
  %c = erf(%b) : f32[300]
  %d = abs(%c) : f32[300]
  %e = sqrt(%d) : f32[300]
  %f = log1p(%e) : f32[300]
  %g = sign(%x) : f32[300]
  %h = pow(%d, f32(1.5)) : f32[300]
  %i = add(%f, %g) : f32[300]
  %j = add(%i, %h) : f32[300]
  %k = expm1(%j) : f32[300]
  return %k
}""",
    "map_divisions": """graph @m(%x: i64[300], %y: i64[300]) {
  %a = sub(%x, i64(2)) : i64[300]
  %b = sub(%y, i64(2)) : i64[300]
  %c = floordiv(%a, %b) : i64[300]
  %d = remainder(%a, %b) : i64[300]
  %e = fmod(%a, i64(-3)) : i64[300]
  %h = pow(%a, %b) : i64[300]
  return %c, %d, %e, %h
}""",
    "map_float_divisions": """graph @m(%f: f32[300], %g: f32[300]) {
  %i = floordiv(%f, %g) : f32[300]
  %j = remainder(%f, %g) : f32[300]
  return %i, %j
}""",
    "map_unsigned": """graph @m(%x: u8[300], %y: u8[300]) {
  %c = floordiv(%x, %y) : u8[300]
  %d = remainder(%x, %y) : u8[300]
  %h = pow(%x, %y) : u8[300]
  return %c, %d, %h
}""",
    "search": """graph @m(%x: f32[9, 70]) {
  %y = argmax(%x) {axis=1} : i64[9]
  return %y
}""",
    "search_integers": """graph @m(%x: i64[9, 70]) {
  %y = argmin(%x) {axis=0} : i64[70]
  return %y
}""",
    "search_bools": """graph @m(%x: bool[9, 70]) {
  %y = argmax(%x) {axis=1} : i64[9]
  return %y
}""",
    "softmax": """graph @s(%x: f32[37, 530]) {
  %y = softmax(%x) {axis=1} : f32[37, 530]
  return %y
}""",
    "softmax_bf16": """graph @s(%x: bf16[7, 1000]) {
  %y = softmax(%x) {axis=1} : bf16[7, 1000]
  return %y
}""",
    "layer_norm": """graph @s(%x: f32[37, 384], %r: f32[37, 384], %w: f32[384], %b: f32[384]) {
  %h = add(%x, %r) : f32[37, 384]
  %y = layer_norm(%h, %w, %b) {axes=[1], eps=1e-5} : f32[37, 384]
  return %y, %h
}""",
    "rms_norm_f16": """graph @s(%x: f16[9, 250], %r: f16[9, 250], %w: f16[250]) {
  %h = add(%x, %r) : f16[9, 250]
  %y = rms_norm(%h, %w) {axes=[1], eps=1e-5} : f16[9, 250]
  return %y, %h
}""",
    "column_sums": """graph @s(%x: f32[37, 530]) {
  %y = reduce_sum(%x) {axes=[0]} : f32[530]
  return %y
}""",
    "middle_max": """graph @s(%x: f32[5, 7, 11]) {
  %y = reduce_max(%x) {axes=[1]} : f32[5, 11]
  return %y
}""",
    "total": """graph @s(%x: f32[50, 7]) {
  %y = reduce_sum(%x) {axes=[0, 1]} : f32[]
  return %y
}""",
    "wide_softmax": """graph @s(%x: f32[3, 40001]) {
  %y = softmax(%x) {axis=1} : f32[3, 40001]
  return %y
}""",
    "wide_norm_bf16": """graph @s(%x: bf16[2, 49152], %w: bf16[49152]) {
  %y = layer_norm(%x, %w) {axes=[1], eps=1e-5} : bf16[2, 49152]
  return %y
}""",
    "long_columns": """graph @s(%x: f32[700, 70]) {
  %y = softmax(%x) {axis=0} : f32[700, 70]
  return %y
}""",
    "long_columns_bools": """graph @s(%x: f32[9, 70, 130]) {
  %c = gt(%x, f32(2.0)) : bool[9, 70, 130]
  %y = reduce_any(%c) {axes=[0, 1]} : bool[130]
  %z = reduce_all(%c) {axes=[0, 1]} : bool[130]
  return %y, %z
}""",
    "long_columns_integers": """graph @s(%x: i64[700, 70]) {
  %y = reduce_min(%x) {axes=[0]} : i64[70]
  %z = reduce_max(%x) {axes=[0]} : i64[70]
  return %y, %z
}""",
    "linear_f32": linear(130, 96, 100, "f32"),
    "linear_bf16": linear(130, 200, 100, "bf16"),
    "linear_f16": linear(65, 72, 300, "f16", "relu(%h)"),
    "linear_one_row": linear(1, 300, 77, "bf16", "silu(%h)"),
    "linear_three_rows": linear(3, 300, 77, "f16", "silu(%h)"),
    "linear_eight_rows": linear(8, 200, 77, "bf16", "silu(%h)"),
    "linear_in_parts": linear(20, 2000, 70, "bf16", "silu(%h)"),
    "linear_in_parts_f32": linear(20, 2000, 40, "f32", "silu(%h)"),
    "matrix_times_vector": """graph @b(%x: f16[90, 300], %w: f16[300, 1]) {
  %h = matmul(%x, %w) : f16[90, 1]
  return %h
}""",
    "vector_times_matrix": """graph @b(%x: bf16[1, 300], %w: bf16[300, 90]) {
  %h = matmul(%x, %w) : bf16[1, 90]
  return %h
}""",
    "batched_vectors": """graph @b(%x: f32[5, 2, 65], %w: f32[5, 65, 70]) {
  %h = matmul(%x, %w) : f32[5, 2, 70]
  return %h
}""",
    "linear_one_deep": linear(40, 1, 50, "f32", "silu(%h)"),
    "vectors_one_deep": linear(2, 1, 50, "f32", "silu(%h)"),
    "linear_many_tiles": linear(700, 64, 600, "bf16", "tanh(%h)"),
    "batched": """graph @b(%x: f32[3, 65, 96], %w: f32[3, 96, 70]) {
  %h = matmul(%x, %w) : f32[3, 65, 70]
  return %h
}""",
    "transposed": """graph @b(%x: f16[96, 65], %w: f16[70, 96]) {
  %a = permute(%x) {permutation=[1, 0]} : f16[65, 96]
  %c = permute(%w) {permutation=[1, 0]} : f16[96, 70]
  %h = matmul(%a, %c) : f16[65, 70]
  return %h
}""",
    "strided": """graph @b(%x: f32[130, 96] strides=[200, 2], %w: f32[96, 70] strides=[1, 100]) {
  %h = matmul(%x, %w) : f32[130, 70]
  return %h
}""",
    "swiglu": """graph @g(%x: bf16[65, 96], %w: bf16[130, 96], %v: bf16[130, 96]) {
  %a = linear(%x, %w) : bf16[65, 130]
  %b = linear(%x, %v) : bf16[65, 130]
  %c = silu(%a) : bf16[65, 130]
  %d = mul(%c, %b) : bf16[65, 130]
  return %d
}""",
    "qkv": """graph @g(%x: f16[65, 96], %q: f16[64, 96], %k: f16[64, 96], %v: f16[64, 96]) {
  %a = linear(%x, %q) : f16[65, 64]
  %b = linear(%x, %k) : f16[65, 64]
  %c = linear(%x, %v) : f16[65, 64]
  return %a, %b, %c
}""",
    "computed_left": """graph @g(%x: bf16[130, 200], %w: bf16[100, 200]) {
  %a = relu(%x) : bf16[130, 200]
  %y = linear(%a, %w) : bf16[130, 100]
  return %y
}""",
    "computed_both_odd": """graph @g(%x: f16[20, 37], %w: f16[37, 100]) {
  %q = mul(%x, %x) : f16[20, 37]
  %p = sub(%q, f16(100.0)) : f16[20, 37]
  %a = div(f16(100.0), %p) : f16[20, 37]
  %e = tanh(%w) : f16[37, 100]
  %f = add(%e, f16(2.0)) : f16[37, 100]
  %g = mul(%f, f16(0.25)) : f16[37, 100]
  %y = matmul(%a, %g) : f16[20, 100]
  return %y
}""",
    "narrowed": """graph @g(%x: f32[40, 96], %w: bf16[64, 96]) {
  %s = mul(%x, f32(0.0625)) : f32[40, 96]
  %a = cast(%s) : bf16[40, 96]
  %y = linear(%a, %w) : bf16[40, 64]
  return %y
}""",
    "int8_weights": int8(5, 208, 112),
    "int8_weights_odd": int8(20, 201, 77),
    "int8_weights_one_row": int8(1, 300, 77),
    "int8_weights_side_by_side": """graph @g(%x: bf16[3, 96], %w: i8[64, 96], %v: i8[64, 96], %s: bf16[64, 1]) {
  %p = cast(%w) : bf16[64, 96]
  %q = cast(%v) : bf16[64, 96]
  %u = mul(%s, bf16(0.015625)) : bf16[64, 1]
  %r = mul(%p, %u) : bf16[64, 96]
  %t = mul(%q, %u) : bf16[64, 96]
  %a = linear(%x, %r) : bf16[3, 64]
  %b = linear(%x, %t) : bf16[3, 64]
  %c = silu(%a) : bf16[3, 64]
  %d = mul(%c, %b) : bf16[3, 64]
  return %d
}""",
    "attention": sdpa((2, 3, 130, 64), (2, 3, 200, 64), "bf16"),
    "attention_f32": sdpa((1, 2, 70, 32), (1, 2, 70, 32), "f32"),
    "attention_causal": sdpa((1, 2, 300, 64), (1, 2, 300, 64), "f16", causal=True),
    "attention_odd_head": sdpa((1, 2, 70, 40), (1, 2, 90, 40), "f16"),
    "attention_grouped": sdpa((1, 4, 130, 32), (1, 2, 130, 32), "bf16", causal=True, grouped=True),
    "attention_rows": rows_of_attention("bf16"),
    "attention_rows_f32": rows_of_attention("f32"),
    "attention_decode": sdpa((1, 2, 1, 64), (1, 2, 333, 64), "bf16"),
    "attention_window": scored(
        (1, 2, 300, 64),
        (1, 2, 300, 64),
        "f16",
        _ROWS,
        _COLUMNS,
        "%d = sub(%i, %j) : GRID",
        "%c = ge(%d, i64(0)) : MASK",
        "%l = lt(%d, i64(70)) : MASK",
        "%m = logical_and(%c, %l) : MASK",
        "%t = select(%m, %s, f32(-inf)) : SCORE",
    ),
    "attention_alibi_softcap": scored(
        (1, 2, 150, 64),
        (1, 2, 150, 64),
        "bf16",
        "%a = div(%s, f32(20.0)) : SCORE",
        "%b = tanh(%a) : SCORE",
        "%c = mul(%b, f32(20.0)) : SCORE",
        _ROWS,
        _COLUMNS,
        "%d = sub(%j, %i) : GRID",
        "%f = cast(%d) : f32[150, 150]",
        "%g = mul(%f, f32(0.05)) : f32[150, 150]",
        "%e = add(%c, %g) : SCORE",
        "%m = le(%j, %i) : MASK",
        "%t = select(%m, %e, f32(-inf)) : SCORE",
    ),
}

CASES |= COLUMNS
CASES |= {f"loss_{kind}_{c}": loss(kind, 3, c) for kind in ("bf16", "f32") for c in (700, 20000)}
CASES |= GROUPED

_LAUNCH = Launch(4, 2)
CUT: dict[str, tuple[str, GpuGemmSchedule | GpuGemvSchedule | GpuMapSchedule]] = {
    "cut_slices": (linear(130, 64, 200, "bf16", "silu(%h)"), GpuGemmSchedule(64, 128, 32, 2, 1, 3, _LAUNCH, 4)),
    "cut_slices_swiglu": (CASES["swiglu"], GpuGemmSchedule(32, 64, 32, 2, 1, 2, _LAUNCH, 2)),
    "cut_turned": (linear(20, 200, 130, "f16", "silu(%h)"), GpuGemmSchedule(32, 64, 64, 2, 1, 0, _LAUNCH, 1, True)),
    "cut_turned_parts": (CASES["swiglu"], GpuGemmSchedule(16, 64, 32, 2, 2, 0, _LAUNCH, 1, True)),
    "cut_batched_parts": (CASES["batched"], GpuGemmSchedule(32, 32, 16, 2, 3, 0, _LAUNCH)),
    "cut_turned_vector": (
        linear(1, 200, 130, "bf16", "silu(%h)"),
        GpuGemmSchedule(16, 64, 64, 2, 1, 0, _LAUNCH, 1, True),
    ),
    "cut_computed_turned_parts": (int8(5, 208, 112), GpuGemmSchedule(16, 64, 32, 2, 2, 0, _LAUNCH, 1, True)),
    "cut_computed_persistent": (CASES["computed_left"], GpuGemmSchedule(64, 64, 64, 2, 1, 2, _LAUNCH, 2)),
    "coarse_windows": (windows("bf16", 2, 6, 16, 24, (3, 5), 1, "sum"), GpuMapSchedule(256, _LAUNCH, results=8)),
    "coarse_windows_odd": (windows("f16", 2, 9, 13, 21, (7, 7), 1, "sum"), GpuMapSchedule(256, _LAUNCH, results=4)),
    "coarse_windows_apart": (windows("f32", 1, 9, 29, 33, (5, 3), 2, "sum"), GpuMapSchedule(128, _LAUNCH, results=7)),
    "coarse_windows_largest": (windows("f32", 3, 12, 11, 8, (3, 3), 2, "max"), GpuMapSchedule(64, _LAUNCH, results=2)),
    "vectors_of_groups": (normalised(2, 3, 5, 6, 4), GpuMapSchedule(256, _LAUNCH, vector=8)),
    "vectors_across_groups": (normalised(2, 3, 5, 2, 20), GpuMapSchedule(256, _LAUNCH, vector=8)),
    "cut_vectors_parts": (linear(2, 700, 77, "bf16", "silu(%h)"), GpuGemvSchedule(4, 64, 2, 3, _LAUNCH)),
}
"""Products and maps with a schedule of their own: few elements are enough to see each way of cutting one up."""
