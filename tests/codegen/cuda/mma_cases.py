"""Products by mma.sync: layouts, epilogues and tiles, each a graph and a schedule."""

from __future__ import annotations

import fixed
from hopper_cases import BATCHED, BATCHED_NN, FLOAT_RESULT, RESIDUAL, SWIGLU, TWO_OUTPUTS, linear, product

from fusec.ir.graph import Graph
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule
from fusec.tile.kernel import Kernel


def lowered(graph: Graph, s: MmaGemmSchedule, target: str = "cuda:sm_80") -> Kernel:
    return fixed.lowered(graph, s, target)


SQUARE = MmaGemmSchedule(128, 128, 32, 3, 64, 64)
WIDE = MmaGemmSchedule(128, 256, 64, 2, 64, 64)
TALL = MmaGemmSchedule(256, 128, 32, 4, 64, 64)
SMALL = MmaGemmSchedule(64, 64, 64, 3, 32, 32)
FLAT = MmaGemmSchedule(32, 64, 64, 4, 16, 32)
SINGLE = MmaGemmSchedule(128, 128, 16, 3, 64, 64)
SINGLE_SMALL = MmaGemmSchedule(64, 64, 32, 3, 32, 32)

PREPARED = """graph @prepared(%x: bf16[130, 200], %s: bf16[200], %w: bf16[96, 200]) {
  %g = mul(%x, %s) : bf16[130, 200]
  %a = silu(%g) : bf16[130, 200]
  %h = linear(%a, %w) : bf16[130, 96]
  return %h
}"""

SLICED = """graph @sliced(%x: bf16[130, 208], %w: bf16[96, 208]) {
  %a = slice(%x) {starts=[0, 8], stops=[130, 203], steps=[1, 1]} : bf16[130, 195]
  %b = slice(%w) {starts=[0, 0], stops=[96, 195], steps=[1, 1]} : bf16[96, 195]
  %h = linear(%a, %b) : bf16[130, 96]
  return %h
}"""

CASES: dict[str, tuple[str, MmaGemmSchedule]] = {
    "square": (linear(512, 512, 512), SQUARE),
    "wide": (linear(512, 512, 512), WIDE),
    "tall": (linear(512, 512, 512), TALL),
    "small": (linear(192, 192, 192), SMALL),
    "flat": (linear(20, 192, 200), FLAT),
    "half": (linear(384, 512, 256, "f16"), SQUARE),
    "odd_sizes": (linear(300, 200, 216), SQUARE),
    "odd_depth": (linear(130, 131, 136), SQUARE),
    "depth_of_4": (linear(130, 132, 136), SMALL),
    "depth_of_2": (linear(130, 134, 136), SMALL),
    "odd_columns": (linear(130, 64, 131), SMALL),
    "even_columns": (linear(130, 64, 134), SMALL),
    "odd_everything": (linear(67, 51, 33), SMALL),
    "one_row": (linear(1, 300, 257), FLAT),
    "shallow": (linear(130, 8, 136), SQUARE),
    "deep": (linear(128, 8192, 128), SMALL),
    "many_tiles": (linear(2100, 96, 1304), SQUARE),
    "nn": (product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512"), SQUARE),
    "tn": (product("256, 384", "256, 512", "contract=[0]x[0]", "384, 512"), WIDE),
    "tt": (product("256, 384", "512, 256", "contract=[0]x[1]", "384, 512"), TALL),
    "nn_small": (product("100, 72", "72, 132", "contract=[1]x[0]", "100, 132"), SMALL),
    "tn_flat": (product("72, 100", "72, 132", "contract=[0]x[0]", "100, 132"), FLAT),
    "tn_odd": (product("71, 101", "71, 133", "contract=[0]x[0]", "101, 133"), SQUARE),
    "tf32": (linear(300, 200, 260, "f32"), SINGLE),
    "tf32_odd": (linear(67, 51, 33, "f32"), SINGLE_SMALL),
    "tf32_nn": (product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512", "f32"), SINGLE),
    "tf32_tn": (product("256, 384", "256, 512", "contract=[0]x[0]", "384, 512", "f32"), SINGLE),
    "tf32_tt_small": (product("70, 132", "100, 70", "contract=[0]x[1]", "132, 100", "f32"), SINGLE_SMALL),
    "batched": (BATCHED, SQUARE),
    "batched_nn": (BATCHED_NN, SMALL),
    "joined_rows": (product("4, 96, 128", "256, 128", "contract=[2]x[1]", "4, 96, 256"), SQUARE),
    "residual": (RESIDUAL, SQUARE),
    "two_outputs": (TWO_OUTPUTS, SQUARE),
    "float_result": (FLOAT_RESULT, SQUARE),
    "swiglu": (SWIGLU, MmaGemmSchedule(128, 64, 32, 3, 64, 32)),
    "swiglu_odd": (SWIGLU.replace("256]", "250]").replace("384", "390"), MmaGemmSchedule(64, 64, 32, 3, 32, 32)),
    "prepared": (PREPARED, SMALL),
    "sliced": (SLICED, SMALL),
}
