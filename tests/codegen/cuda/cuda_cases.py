"""Graphs for kernels in CUDA C++, beside those for every GPU backend: vectors, edges, all element types."""

from __future__ import annotations


def chain(dtype: str, shape: str, strides: str = "") -> str:
    return f"""graph @m(%x: {dtype}[{shape}]{strides}, %y: {dtype}[{shape}]) {{
  %a = mul(%x, %y) : {dtype}[{shape}]
  %b = add(%a, %x) : {dtype}[{shape}]
  return %b
}}"""


def unary(dtype: str, *ops: str) -> str:
    lines = "".join(f"  %{op} = {op}(%x) : {dtype}[333]\n" for op in ops)
    return f"graph @m(%x: {dtype}[333]) {{\n{lines}  return {', '.join(f'%{op}' for op in ops)}\n}}"


def binary(dtype: str, *ops: str) -> str:
    lines = "".join(f"  %{op}1 = {op}(%x, %y) : {dtype}[40, 9]\n" for op in ops)
    return f"graph @m(%x: {dtype}[40, 9], %y: {dtype}[9]) {{\n{lines}  return {', '.join(f'%{op}1' for op in ops)}\n}}"


def reduction(op: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> str:
    kept = [n for a, n in enumerate(shape) if a not in axes]
    return f"""graph @r(%x: {dtype}{list(shape)}) {{
  %y = {op}(%x) {{axes={list(axes)}}} : {dtype}{kept}
  return %y
}}"""


def softmax(dtype: str, rows: int, columns: int) -> str:
    shape = f"{dtype}[{rows}, {columns}]"
    return f"graph @s(%x: {shape}) {{\n  %y = softmax(%x) {{axis=1}} : {shape}\n  return %y\n}}"


POINTWISE: dict[str, str] = {
    "cluster_softmax": softmax("bf16", 70, 40000),
    "cluster_softmax_odd": softmax("f32", 67, 33001),
    "cluster_norm": """graph @n(%x: f16[66, 40008], %r: f16[66, 40008], %w: f16[40008]) {
  %h = add(%x, %r) : f16[66, 40008]
  %n = layer_norm(%h) {axes=[1], eps=1e-5} : f16[66, 40008]
  %y = mul(%n, %w) : f16[66, 40008]
  return %y
}""",
    **{f"chain_{d}_{n}": chain(d, str(n)) for d in ("f16", "bf16", "f32", "f64") for n in (1, 7, 4096, 100000)},
    "chain_broadcast": """graph @m(%x: f32[64, 1, 96], %y: f32[32, 1], %z: f32[96]) {
  %a = add(%x, %y) : f32[64, 32, 96]
  %b = mul(%a, %z) : f32[64, 32, 96]
  return %b
}""",
    "odd_offset": """graph @m(%x: bf16[64, 256]) {
  %a = slice(%x) {starts=[1, 3], stops=[64, 256], steps=[2, 1]} : bf16[32, 253]
  %b = add(%a, bf16(1.0)) : bf16[32, 253]
  return %b
}""",
    "flipped": """graph @m(%x: f32[64, 256]) {
  %a = slice(%x) {starts=[0, 255], stops=[64, -1], steps=[1, -1]} : f32[64, 256]
  %b = add(%a, %x) : f32[64, 256]
  return %b
}""",
    "two_orders": """graph @m(%x: f32[128, 96], %y: f32[96, 128]) {
  %t = permute(%y) {permutation=[1, 0]} : f32[128, 96]
  %a = add(%x, %t) : f32[128, 96]
  return %a
}""",
    "joined": """graph @m(%x: f32[10, 24], %y: f32[10, 40]) {
  %c = concat(%x, %y) {axis=1} : f32[10, 64]
  %d = mul(%c, f32(3.0)) : f32[10, 64]
  return %d
}""",
    "padded": """graph @m(%x: bf16[10, 60]) {
  %c = pad(%x, bf16(0.5)) {low=[1, 2], high=[0, 2]} : bf16[11, 64]
  %d = mul(%c, bf16(3.0)) : bf16[11, 64]
  return %d
}""",
    "picked": """graph @m(%x: f32[50, 32], %i: i64[17]) {
  %g = gather(%x, %i) {axis=0} : f32[17, 32]
  %d = mul(%g, f32(3.0)) : f32[17, 32]
  return %d
}""",
    "counted": """graph @m(%x: f32[33, 8]) {
  %i = iota() {axis=1} : i64[33, 8]
  %f = cast(%i) : f32[33, 8]
  %m = lt(%i, i64(5)) : bool[33, 8]
  %a = mul(%x, %f) : f32[33, 8]
  %s = select(%m, %a, %x) : f32[33, 8]
  return %s, %m
}""",
    "functions_f32": unary("f32", "exp", "exp2", "expm1", "sin", "cos", "tanh", "sinh", "cosh", "erf", "erfc", "atan"),
    "functions_f64": unary("f64", "exp", "exp2", "tan", "tanh", "asinh", "erf", "floor", "ceil", "round", "trunc"),
    "functions_bf16": unary("bf16", "exp", "tanh", "erf", "sigmoid"),
    "functions_f16": unary("f16", "exp", "sin", "tanh", "neg", "abs", "sign", "sigmoid", "silu"),
    "logs": """graph @m(%x: f32[333]) {
  %p = abs(%x) : f32[333]
  %a = log(%p) : f32[333]
  %b = log2(%p) : f32[333]
  %c = log10(%p) : f32[333]
  %d = log1p(%p) : f32[333]
  %e = rsqrt(%p) : f32[333]
  %f = sqrt(%p) : f32[333]
  return %a, %b, %c, %d, %e, %f
}""",
    "binaries_f32": binary("f32", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "copysign", "hypot", "fmod"),
    "floor_f32": binary("f32", "floordiv", "remainder"),
    "floor_f64": binary("f64", "floordiv", "remainder", "div", "maximum", "fmin"),
    **{
        f"binaries_{d}": binary(d, "add", "sub", "mul", "floordiv", "remainder", "fmod", "pow", "maximum", "minimum")
        for d in ("i8", "i16", "i32", "i64", "u8")
    },
    "bits_i32": binary("i32", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"),
    "bits_u8": binary("u8", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"),
    "bools": binary("bool", "logical_and", "logical_or", "logical_xor", "bitwise_and"),
    "casts": """graph @m(%x: f32[300], %i: i32[300], %b: bool[300]) {
  %h = cast(%x) : f16[300]
  %d = cast(%h) : f64[300]
  %k = cast(%x) : i8[300]
  %u = cast(%b) : f32[300]
  %t = cast(%i) : bool[300]
  %w = cast(%i) : bf16[300]
  return %h, %d, %k, %u, %t, %w
}""",
    **{f"softmax_{d}_{n}": softmax(d, 9, n) for d in ("f32", "bf16", "f64") for n in (1, 31, 256, 1000, 4099, 8192)},
    "softmax_tall": softmax("f32", 3000, 64),
    "sum_columns": reduction("reduce_sum", "f32", (300, 256), (0,)),
    "sum_columns_odd": reduction("reduce_sum", "f32", (37, 53), (0,)),
    "sum_outer": reduction("reduce_sum", "f32", (12, 40, 64), (0, 2)),
    "max_middle": reduction("reduce_max", "bf16", (12, 40, 64), (1,)),
    "min_i8": reduction("reduce_min", "i8", (12, 300), (1,)),
    "max_u8": reduction("reduce_max", "u8", (12, 300), (1,)),
    "prod_f64": reduction("reduce_prod", "f64", (12, 30), (1,)),
    "sum_i64": reduction("reduce_sum", "i64", (12, 300), (1,)),
    "any": reduction("reduce_any", "bool", (12, 300), (1,)),
    "all": reduction("reduce_all", "bool", (12, 3), (1,)),
    "norm_bf16": """graph @s(%x: bf16[64, 1024], %r: bf16[64, 1024], %w: bf16[1024], %b: bf16[1024]) {
  %h = add(%x, %r) : bf16[64, 1024]
  %y = layer_norm(%h, %w, %b) {axes=[1], eps=1e-5} : bf16[64, 1024]
  %g = gelu(%y) {approximate=tanh} : bf16[64, 1024]
  return %g, %h
}""",
    "statistics": """graph @s(%x: f32[20, 640]) {
  %m = mean(%x) {axes=[1]} : f32[20]
  %v = var(%x) {axes=[1], correction=1.0} : f32[20]
  return %m, %v
}""",
}


def product(dtype: str, m: int, k: int, n: int, transposed: bool = False) -> str:
    """A product, its right operand transposed or not, with an epilogue where floats allow one."""
    right = f"%w: {dtype}[{n}, {k}]" if transposed else f"%w: {dtype}[{k}, {n}]"
    turn = f"  %wt = permute(%w) {{permutation=[1, 0]}} : {dtype}[{k}, {n}]\n" if transposed else ""
    return f"""graph @p(%x: {dtype}[{m}, {k}], {right}, %b: {dtype}[{n}]) {{
{turn}  %h = matmul(%x, %{"wt" if transposed else "w"}) : {dtype}[{m}, {n}]
  %y = add(%h, %b) : {dtype}[{m}, {n}]
  %z = maximum(%y, {dtype}(0)) : {dtype}[{m}, {n}]
  return %z, %h
}}"""


PRODUCTS: dict[str, str] = {
    **{f"product_{d}": product(d, 130, 96, 100) for d in ("f32", "f64", "i32", "i64", "i8")},
    **{f"product_{d}_transposed": product(d, 100, 72, 132, transposed=True) for d in ("f32", "f64")},
    "product_odd": product("f32", 67, 51, 33),
    "product_odd_transposed": product("f32", 67, 51, 33, transposed=True),
    "product_deep": product("f32", 40, 4096, 48),
    "product_one_row": product("f32", 1, 300, 257),
    "product_many_tiles": product("f32", 700, 64, 900),
    "product_batched": """graph @p(%x: f32[3, 5, 40, 24], %w: f32[5, 24, 36]) {
  %h = matmul(%x, %w) : f32[3, 5, 40, 36]
  %e = exp(%h) : f32[3, 5, 40, 36]
  return %e
}""",
    "product_left_transposed": """graph @p(%x: f32[72, 100], %w: f32[72, 132]) {
  %t = permute(%x) {permutation=[1, 0]} : f32[100, 72]
  %h = matmul(%t, %w) : f32[100, 132]
  return %h
}""",
    "product_of_computed": """graph @p(%x: bf16[70, 96], %s: f32[96], %w: f32[96, 64], %r: f32[70, 64]) {
  %f = cast(%x) : f32[70, 96]
  %a = mul(%f, %s) : f32[70, 96]
  %h = matmul(%a, %w) : f32[70, 64]
  %y = add(%h, %r) : f32[70, 64]
  return %y
}""",
}
"""For products in plain arithmetic."""
