"""Products for Hopper: layouts, epilogues and tiles, each a graph and a schedule."""

from __future__ import annotations

from dataclasses import replace

import fixed
from convolutions import convolution

from fusec.ir.graph import Graph
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule
from fusec.tile.kernel import Kernel
from fusec.tile.templates import Pipeline


def schedule(
    m: int,
    n: int,
    stages: int,
    cluster: tuple[int, int] = (1, 1),
    ping_pong: bool = False,
    k: int = 64,
    split: int = 1,
    promotes: int = 0,
) -> HopperGemmSchedule:
    pipeline = Pipeline(*cluster, 4, ping_pong, split=split, promotes=promotes)
    return HopperGemmSchedule(m, n, k, stages, pipeline)


def lowered(graph: Graph, s: HopperGemmSchedule, target: str = "cuda:sm_90") -> Kernel:
    return fixed.lowered(graph, s, target)


TOGETHER = schedule(128, 256, 4, (2, 1))
PING_PONG = schedule(128, 128, 6, (2, 1), ping_pong=True)
SMALL = schedule(128, 64, 4)
PAIRED = schedule(128, 128, 4, (2, 1))


def linear(m: int, k: int, n: int, dtype: str = "bf16", tail: str = "") -> str:
    body = tail or f"%y = gelu(%h) {{approximate=tanh}} : {dtype}[{m}, {n}]"
    return f"""graph @linear(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}], %b: {dtype}[{n}]) {{
  %h = linear(%x, %w, %b) : {dtype}[{m}, {n}]
  {body}
  return %y
}}"""


def product(left: str, right: str, contract: str, result: str, dtype: str = "bf16") -> str:
    return f"""graph @product(%x: {dtype}[{left}], %w: {dtype}[{right}]) {{
  %h = dot(%x, %w) {{{contract}}} : {dtype}[{result}]
  %y = relu(%h) : {dtype}[{result}]
  return %y
}}"""


RESIDUAL = """graph @residual(%x: bf16[384, 256], %w: bf16[256, 256], %r: bf16[384, 256], %s: f32[384, 1]) {
  %h = linear(%x, %w) : bf16[384, 256]
  %f = cast(%h) : f32[384, 256]
  %scaled = mul(%f, %s) : f32[384, 256]
  %half = cast(%scaled) : bf16[384, 256]
  %y = add(%half, %r) : bf16[384, 256]
  return %y
}"""

NORMALIZED = """graph @normalized(%x: bf16[500, 192], %w: bf16[448, 192], %r: bf16[500, 448], %m: bf16[448],
    %v: f32[448], %g: bf16[448], %b: bf16[448]) {
  %h = linear(%x, %w) : bf16[500, 448]
  %f = cast(%h) : f32[500, 448]
  %mean = cast(%m) : f32[448]
  %scale = cast(%g) : f32[448]
  %shift = cast(%b) : f32[448]
  %whole = mul(%scale, %v) : f32[448]
  %centred = sub(%f, %mean) : f32[500, 448]
  %scaled = mul(%centred, %whole) : f32[500, 448]
  %shifted = add(%scaled, %shift) : f32[500, 448]
  %half = cast(%shifted) : bf16[500, 448]
  %sum = add(%half, %r) : bf16[500, 448]
  %y = relu(%sum) : bf16[500, 448]
  return %y
}"""

TWO_RESIDUALS = """graph @two_residuals(%x: f16[1000, 128], %w: f16[296, 128], %r: f16[1000, 296], %q: f16[1000, 296]) {
  %h = linear(%x, %w) : f16[1000, 296]
  %s = add(%h, %r) : f16[1000, 296]
  %y = mul(%s, %q) : f16[1000, 296]
  return %y
}"""

TURNED_RESIDUAL = """graph @turned(%x: bf16[384, 128], %w: bf16[256, 128], %r: bf16[256, 384]) {
  %h = linear(%x, %w) : bf16[384, 256]
  %t = permute(%r) {permutation=[1, 0]} : bf16[384, 256]
  %y = add(%h, %t) : bf16[384, 256]
  return %y
}"""

BATCHED_RESIDUAL = """graph @batched(%x: bf16[3, 200, 128], %w: bf16[3, 136, 128], %r: bf16[3, 200, 136]) {
  %h = dot(%x, %w) {batch=[0]x[0], contract=[2]x[2]} : bf16[3, 200, 136]
  %y = add(%h, %r) : bf16[3, 200, 136]
  return %y
}"""

TWO_OUTPUTS = """graph @two(%x: bf16[384, 256], %w: bf16[256, 256]) {
  %h = linear(%x, %w) : bf16[384, 256]
  %y = silu(%h) : bf16[384, 256]
  return %h, %y
}"""

FLOAT_RESULT = """graph @wide(%x: bf16[260, 128], %w: bf16[200, 128]) {
  %h = linear(%x, %w) : bf16[260, 200]
  %f = cast(%h) : f32[260, 200]
  %y = exp(%f) : f32[260, 200]
  %big = isnan(%f) : bool[260, 200]
  return %y, %big
}"""

ROUNDED = """graph @rounded(%x: bf16[2000, 128], %w: bf16[1000, 128]) {
  %h = linear(%x, %w) : bf16[2000, 1000]
  %half = cast(%h) : bf16[2000, 1000]
  %f = cast(%half) : f32[2000, 1000]
  %y = exp(%f) : f32[2000, 1000]
  return %y
}"""

SWIGLU = """graph @swiglu(%x: bf16[384, 256], %g: bf16[512, 256], %u: bf16[512, 256]) {
  %a = linear(%x, %g) : bf16[384, 512]
  %b = linear(%x, %u) : bf16[384, 512]
  %s = silu(%a) : bf16[384, 512]
  %y = mul(%s, %b) : bf16[384, 512]
  return %y
}"""

SWIGLU_TURNED = """graph @swiglu(%x: bf16[384, 256], %g: bf16[256, 520], %u: bf16[256, 520]) {
  %a = dot(%x, %g) {contract=[1]x[0]} : bf16[384, 520]
  %b = dot(%x, %u) {contract=[1]x[0]} : bf16[384, 520]
  %s = silu(%a) : bf16[384, 520]
  %y = mul(%s, %b) : bf16[384, 520]
  return %y
}"""

BATCHED = product("3, 200, 128", "3, 136, 128", "batch=[0]x[0], contract=[2]x[2]", "3, 200, 136")
BATCHED_NN = product("3, 256, 128", "3, 128, 264", "batch=[0]x[0], contract=[2]x[1]", "3, 256, 264")

UNLIKE = convolution((8, 29, 28, 64), 96, (3, 5), stride=(2, 1), padding=(0, 2), dtype="bf16")
RESIDUAL_BLOCK = convolution(
    (4, 20, 20, 64),
    64,
    (3, 3),
    padding=(1, 1),
    dtype="bf16",
    more="%b: bf16[64], %r: bf16[4, 20, 20, 64]",
    tail=("%s = add(%y, %b) : RESULT", "%t = add(%s, %r) : RESULT", "%z = relu(%t) : RESULT"),
)

CASES: dict[str, tuple[str, HopperGemmSchedule]] = {
    "together": (linear(512, 512, 512), TOGETHER),
    "in_turns": (linear(1024, 512, 768), PING_PONG),
    "in_turns_one_tile": (linear(128, 64, 128), replace(PING_PONG, pipeline=Pipeline(1, 1, 4, True))),
    "small_tile": (linear(256, 192, 192), SMALL),
    "wide_tile": (linear(256, 320, 512), schedule(256, 128, 4, (1, 2))),
    "tile_192": (linear(512, 320, 384), schedule(128, 192, 4, (2, 1), ping_pong=True)),
    "tile_168": (linear(1000, 32, 168), schedule(128, 168, 5)),
    "tile_224": (linear(1024, 448, 448), schedule(128, 224, 4, (2, 1))),
    "tile_224_and_a_residual": (NORMALIZED, schedule(128, 224, 4, (1, 2))),
    "tile_256_and_a_residual": (NORMALIZED, schedule(128, 256, 4)),
    "in_turns_with_a_residual": (NORMALIZED, schedule(128, 128, 6, ping_pong=True)),
    "tile_112_in_turns": (linear(640, 448, 448), schedule(128, 112, 6, ping_pong=True)),
    "tile_40": (linear(640, 72, 200), schedule(128, 40, 8, (1, 1))),
    "clusters_beyond_the_end": (RESIDUAL.replace("256", "128"), TOGETHER),
    "tf32": (linear(512, 512, 512, "f32"), schedule(128, 256, 4, (2, 1), k=32)),
    "tf32_in_turns": (linear(300, 200, 260, "f32"), schedule(128, 128, 6, (2, 1), ping_pong=True, k=32)),
    "half": (linear(512, 512, 512, "f16"), TOGETHER),
    "many_tiles": (linear(4096, 256, 2304), PING_PONG),
    "odd_sizes": (linear(300, 200, 216), TOGETHER),
    "odd_sizes_in_turns": (linear(1000, 72, 1000), PING_PONG),
    "odd_columns": (linear(130, 64, 131), SMALL),
    "deep": (linear(128, 8192, 128), SMALL),
    "nn": (product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512"), TOGETHER),
    "tn": (product("256, 384", "256, 512", "contract=[0]x[0]", "384, 512"), TOGETHER),
    "tt": (product("256, 384", "512, 256", "contract=[0]x[1]", "384, 512"), TOGETHER),
    "nn_narrow": (
        product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512", "f16"),
        schedule(128, 64, 8, (1, 2)),
    ),
    "nn_in_turns": (product("384, 200", "200, 520", "contract=[1]x[0]", "384, 520"), PING_PONG),
    "tt_in_turns": (product("256, 392", "520, 256", "contract=[0]x[1]", "392, 520"), PING_PONG),
    "tn_wide": (
        product("192, 512", "192, 512", "contract=[0]x[0]", "512, 512", "f16"),
        schedule(256, 128, 4, (1, 2)),
    ),
    "batched": (BATCHED, TOGETHER),
    "batched_nn": (BATCHED_NN, PING_PONG),
    "joined_rows": (product("4, 96, 128", "256, 128", "contract=[2]x[1]", "4, 96, 256"), TOGETHER),
    "residual": (RESIDUAL, TOGETHER),
    "two_residuals": (TWO_RESIDUALS, TOGETHER),
    "two_residuals_in_turns": (TWO_RESIDUALS, schedule(128, 40, 8, ping_pong=True)),
    "residual_that_lies_otherwise": (TURNED_RESIDUAL, SMALL),
    "batched_residual": (BATCHED_RESIDUAL, schedule(128, 64, 5)),
    "two_outputs": (TWO_OUTPUTS, PING_PONG),
    "float_result": (FLOAT_RESULT, TOGETHER),
    "swiglu": (SWIGLU, PAIRED),
    "swiglu_transposed": (SWIGLU_TURNED, PAIRED),
    "swiglu_many_tiles": (SWIGLU.replace("384", "4000").replace("512", "4600"), PAIRED),
    "many_tiles_together": (linear(4096, 256, 4608), TOGETHER),
    "one_step_together": (linear(4096, 64, 4608), TOGETHER),
    "two_outputs_together": (TWO_OUTPUTS.replace("384", "3000"), SMALL),
    "residual_many_tiles": (RESIDUAL.replace("384", "8072"), SMALL),
    "float_of_rounded": (ROUNDED, SMALL),
    "split": (linear(128, 4096, 512), schedule(128, 128, 6, split=3)),
    "split_wide": (linear(100, 2048, 776), schedule(128, 256, 4, split=6)),
    "split_a_step_each": (linear(128, 256, 512), schedule(128, 64, 6, split=4)),
    "split_odd_columns": (linear(130, 640, 131), schedule(128, 64, 6, split=2)),
    "split_tf32": (linear(300, 1000, 260, "f32"), schedule(128, 128, 6, k=32, split=4)),
    "split_transposed": (
        product("640, 392", "640, 520", "contract=[0]x[0]", "392, 520"),
        schedule(128, 128, 6, split=2),
    ),
    "split_residual": (RESIDUAL, schedule(128, 128, 6, split=2)),
    "split_float_result": (FLOAT_RESULT, schedule(128, 128, 6, split=2)),
    "split_swiglu": (SWIGLU, schedule(128, 128, 4, split=3)),
    "split_batched": (BATCHED, schedule(128, 64, 6, split=2)),
    "windows": (convolution((8, 28, 28, 64), 128, (3, 3), padding=(1, 1), dtype="bf16"), TOGETHER),
    "windows_in_turns": (convolution((8, 28, 28, 128), 96, (3, 3), padding=(1, 1), dtype="f16"), PING_PONG),
    "windows_unlike_axes": (UNLIKE, SMALL),
    "windows_with_steps": (
        convolution((4, 30, 27, 64), 72, (3, 3), stride=(2, 3), dilation=(2, 1), padding=(2, 1), dtype="bf16"),
        SMALL,
    ),
    "windows_of_24_channels": (convolution((4, 20, 20, 24), 64, (3, 3), padding=(1, 1), dtype="bf16"), PAIRED),
    "windows_of_96_channels": (convolution((4, 20, 20, 96), 128, (3, 5), padding=(1, 2), dtype="f16"), TOGETHER),
    "windows_of_signals": (convolution((8, 500, 64), 128, (5,), dilation=(3,), padding=(6,), dtype="bf16"), PING_PONG),
    "windows_of_volumes": (
        convolution((2, 9, 10, 11, 64), 64, (3, 3, 2), stride=(1, 2, 1), padding=(1, 1, 0), dtype="bf16"),
        SMALL,
    ),
    "windows_of_one_place": (convolution((8, 28, 28, 64), 128, (1, 1), stride=(2, 2), dtype="bf16"), SMALL),
    "windows_of_one_image": (convolution((1, 30, 30, 64), 128, (3, 3), padding=(1, 1), dtype="bf16"), SMALL),
    "windows_split": (
        convolution((1, 14, 14, 256), 128, (3, 3), padding=(1, 1), dtype="bf16"),
        schedule(128, 64, 6, split=4),
    ),
    "windows_tf32": (convolution((4, 20, 20, 64), 128, (3, 3), padding=(1, 1)), schedule(128, 128, 4, k=32)),
    "windows_and_a_residual": (RESIDUAL_BLOCK, schedule(128, 64, 4)),
}
