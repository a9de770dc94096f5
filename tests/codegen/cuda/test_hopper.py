"""Products for Hopper: what they compute, in the tile interpreter, and that they compile without a GPU."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from convolutions import convolution
from cubins import telling
from eight_bit_cases import BLOCKS, EIGHT_BITS, eight, of_blocks, scaled
from fixed import Fixed
from hopper_cases import CASES, PING_PONG, SMALL, SWIGLU, TOGETHER, UNLIKE, linear, lowered, product, schedule

from fusec.codegen.cuda.build import compile_kernels
from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.errors import LoweringError
from fusec.ir.index import mul
from fusec.ir.indexing import evaluate
from fusec.ir.parse import parse
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule
from fusec.passes.families.grouped.schedule.outer import HopperOuterSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.templates import HopperGemm, Pipeline

SM_90 = gpu_target("cuda:sm_90")


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
def test_compiles_without_spills(all_cases: bool) -> None:
    kernels = {name: lowered(parse(text), s) for name, (text, s) in {**CASES, **EIGHT_BITS, **BLOCKS}.items()}
    sources = {name: [emit_kernel(kernel, SM_90)] for name, kernel in kernels.items()}
    for name, cubin in telling(sources, SM_90, whole=all_cases):
        assert cubin.code.startswith(b"\x7fELF"), name
        assert cubin.registers == 168, name
        assert cubin.spills <= 64, name


def disassembler() -> str | None:
    """nvdisasm, which comes with Triton."""
    found = importlib.util.find_spec("triton")
    folder = Path(str(found.origin)).parent if found is not None else Path()
    beside = folder / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(beside) if beside.exists() else shutil.which("nvdisasm")


@pytest.mark.skipif(not has_nvrtc() or disassembler() is None, reason="no NVRTC, or no nvdisasm")
@pytest.mark.parametrize(
    ("text", "s"),
    [
        (scaled(1024, 4096, 4608, "i8", "i8"), eight(128, 128, 6, cluster=(2, 1))),
        (scaled(1024, 4096, 4608), eight(128, 128, 6, cluster=(2, 1))),
        (scaled(1024, 4096, 4608), eight(128, 256, 4, cluster=(2, 1))),
        (of_blocks(1024, 4096, 4608), eight(128, 192, 4, cluster=(2, 1), promotes=1)),
        (of_blocks(1024, 4096, 4608), eight(128, 128, 6, cluster=(2, 1), promotes=1)),
        (linear(1024, 4096, 4608), TOGETHER),
    ],
    ids=["bytes", "whole", "wide", "blocks", "blocks_whole", "bf16"],
)
def test_accumulators_stay_where_they_are_while_they_are_written(
    text: str, s: HopperGemmSchedule, tmp_path: Path
) -> None:
    """The compiler may move a value whose copy is wanted elsewhere, and does not know that MMAs are under way."""
    (cubin,) = compile_kernels([lowered(parse(text), s)], SM_90).cubins.values()
    (tmp_path / "kernel.cubin").write_bytes(cubin.code)
    command = [str(disassembler()), str(tmp_path / "kernel.cubin")]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(set(re.findall(r"[HQI]GMMA\S* (R\d+)", code))) == 1


def saving(results: int) -> str:
    """SwiGLU as a forward computes it: what its backward reads is stored, too."""
    kept = ", ".join(["%y", "%a", "%b", "%s"][:results])
    return SWIGLU.replace("384", "4096").replace("512", "2048").replace("return %y", f"return {kept}")


@pytest.mark.parametrize("results", [1, 2, 3, 4])
def test_every_candidate_has_the_shared_memory_that_it_needs(results: int) -> None:
    """Results leave through shared memory, which the operands' stages must leave them."""
    found = list[GpuSchedule]()

    class Asked(GpuSelector):
        def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
            found.extend(self.candidates(context))
            return super().lower(context)

    lower(parse(saving(results)), "cuda:sm_90", selector=Asked(SM_90, cuda=True, triton=False))
    hopper = [s for s in found if isinstance(s, HopperGemmSchedule)]
    assert hopper
    for s in hopper:
        kernel = lowered(parse(saving(results)), s)
        assert emit_kernel(kernel, SM_90).shared <= SM_90.shared_memory


def test_plan() -> None:
    source = emit_kernel(lowered(parse(linear(1024, 512, 768)), PING_PONG), SM_90)
    assert (source.grid, source.threads) == ((48, 1, 1), 384)
    assert "__cluster_dims__(2, 1, 1)" in source.text
    assert [m.box for m in source.tensor_maps] == [(128, 64), (64, 64), (64, 64)]
    assert "kTransposedA = false, kTransposedB = false" in source.text
    assert "return {load_ahead<2>(b + (column + column_tile * 128))};" in source.text
    assert "tanh" in source.text


def test_turned_operands_come_in_boxes_of_64() -> None:
    text = product("256, 384", "256, 512", "contract=[0]x[0]", "384, 512")
    source = emit_kernel(lowered(parse(text), TOGETHER), SM_90)
    assert "kTransposedA = true, kTransposedB = true" in source.text
    assert [m.box for m in source.tensor_maps[:2]] == [(64, 64), (64, 64)]
    assert "fetch_tile(to, x_map, full, blocks, row_tile * 128 + row, k);" in source.text


def test_a_box_is_not_cut_among_the_blocks_of_a_cluster() -> None:
    text = product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512")
    with pytest.raises(LoweringError, match="can't share copies of 32 positions of w"):
        emit_kernel(lowered(parse(text), schedule(128, 64, 8, (2, 1))), SM_90)


def test_no_more_blocks_than_are_done_as_early() -> None:
    text = linear(4096, 4096, 4096)
    assert emit_kernel(lowered(parse(text), TOGETHER), SM_90).grid == (128, 1, 1)
    assert emit_kernel(lowered(parse(text), PING_PONG), SM_90).grid == (128, 1, 1)
    assert emit_kernel(lowered(parse(linear(4096, 4096, 4352)), TOGETHER), SM_90).grid == (110, 1, 1)


@pytest.mark.parametrize("name", ["residual", "tile_224_and_a_residual", "two_residuals", "windows_and_a_residual"])
def test_a_residual_comes_to_where_results_leave_from(name: str) -> None:
    text, s = CASES[name]
    source = emit_kernel(lowered(parse(text), s), SM_90)
    assert "kFetches = true" in source.text
    assert "load_tile(to, r_map, full, " in source.text
    assert "load_ahead<2>(r +" not in source.text


@pytest.mark.parametrize("name", ["split_residual", "residual_that_lies_otherwise", "two_outputs", "float_result"])
def test_what_is_not_fetched_is_read(name: str) -> None:
    text, s = CASES[name]
    assert "kFetches = false" in emit_kernel(lowered(parse(text), s), SM_90).text


def test_split_plan() -> None:
    text, s = CASES["split"]
    source = emit_kernel(lowered(parse(text), s), SM_90)
    assert source.grid == (4 * 3, 1, 1)
    assert source.overlaps
    assert "__cluster_dims__(3, 1, 1)" in source.text
    assert "split_gemm(Plan{" in source.text
    assert "kStaged = 0" in source.text
    assert "kSplit = 3" in source.text


def test_no_block_without_a_step() -> None:
    s = CASES["split"][1]
    with pytest.raises(LoweringError, match="2 steps along K are not split 3 times"):
        emit_kernel(lowered(parse(linear(128, 128, 512)), s), SM_90)
    assert emit_kernel(lowered(parse(linear(128, 192, 512)), s), SM_90).grid == (12, 1, 1)


def test_windows_by_im2col() -> None:
    """Corners and steps as cuTensorMapEncodeIm2col has them: where the first places of windows may lie."""
    source = emit_kernel(lowered(parse(UNLIKE), SMALL), SM_90)
    windows, weights, _ = source.tensor_maps
    assert (windows.shape, windows.strides) == ((8, 29, 28, 64), (29 * 28 * 64, 28 * 64, 64, 1))
    assert (windows.low, windows.high, windows.steps) == ((0, -2), (-2, -2), (2, 1))
    assert windows.box == (128, 64)
    encoded = windows.encoded()
    assert (encoded.low, encoded.high, encoded.steps) == ((-2, 0), (-2, -2), (1, 1, 2, 1))
    assert (weights.shape, weights.low) == ((96, 15 * 64), ())
    assert "int start0 = window % 14 * 2 - 0;" in source.text
    assert "int start1 = window % 28 * 1 - 2;" in source.text
    assert "fetch_windows(to, x_windows, full, blocks, k % 64, start1, start0, window, place1, place0);" in source.text
    assert "kSteps = 15" in source.text


def test_each_group_has_a_map() -> None:
    text = convolution((8, 28, 28, 168), 168, (3, 3), padding=(1, 1), groups=3, dtype="bf16")
    source = emit_kernel(lowered(parse(text), SMALL), SM_90)
    windows, weights, out = source.tensor_maps
    assert (windows.shape[-1], windows.strides[-2], windows.count) == (56, 168, 3)
    assert (windows.encoded().count, windows.encoded().apart) == (3, 112)
    assert (weights.shape, weights.count, out.count) == ((3, 56, 9, 56), 1, 1)
    assert "const __grid_constant__ TensorMaps<3> x_windows" in source.text
    assert "fetch_windows(to, x_windows + batch, full, blocks, k % 64," in source.text
    assert "fetch_tile(to, w_map, full, blocks, k % 64, k / 64, column_tile * 64 + column, batch);" in source.text


def test_boxes_end_with_their_group() -> None:
    """A tile that is as wide as a group: the weights' rows and the result's columns go on in the next one's."""
    text = convolution((8, 28, 28, 336), 336, (3, 3), padding=(1, 1), groups=3, dtype="bf16")
    for wide in (56, 112):
        source = emit_kernel(lowered(parse(text), schedule(128, wide, 4)), SM_90)
        _, weights, out = source.tensor_maps
        assert (weights.shape, weights.box) == ((336, 9, 112), (wide, 1, 64))
        assert (out.shape, out.box) == ((8 * 28 * 28, 336 // wide, wide), (64, 1, 64))
        each = 112 // wide
        begin = f"batch * 112 + column_tile * {wide} + column"
        assert f"fetch_tile(to, w_map, full, blocks, k % 128, k / 128, {begin});" in source.text
        tile = "batch + column_tile" if each == 1 else f"batch * {each} + column_tile"
        assert f"store_tile(y_map, from, column, {tile}, row_tile * 128 + row);" in source.text


def test_channels_that_are_no_whole_steps_are_fetched_by_place() -> None:
    source = emit_kernel(lowered(parse(CASES["windows_of_96_channels"][0]), SMALL), SM_90)
    windows, weights, *_ = source.tensor_maps
    assert windows.shape[-1] == 96
    assert (weights.shape, weights.strides, weights.box) == ((128, 15, 96), (15 * 96, 96, 1), (64, 1, 64))
    assert "fetch_tile(to, w_map, full, blocks, k % 128, k / 128, column_tile * 64 + column);" in source.text
    assert "kSteps = 30" in source.text


def test_tiles_that_are_no_whole_boxes_end_with_their_columns() -> None:
    """Boxes of 64 columns are clipped at an axis of a tile's columns, not of the result's."""
    source = emit_kernel(lowered(parse(linear(512, 128, 448)), schedule(128, 224, 4, (2, 1))), SM_90)
    result = source.tensor_maps[-1]
    assert (result.shape, result.strides, result.box) == ((512, 2, 224), (448, 224, 1), (64, 1, 64))
    assert "store_tile(y_map, from, column, column_tile, row_tile * 128 + row);" in source.text
    single = emit_kernel(lowered(parse(linear(512, 32, 168)), schedule(128, 168, 5)), SM_90)
    assert single.tensor_maps[-1].shape == (512, 168)


def test_boxes_begin_where_the_swizzle_does() -> None:
    with pytest.raises(LoweringError, match="boxes of 84 rows of w"):
        emit_kernel(lowered(parse(linear(512, 64, 168)), schedule(128, 168, 5, (2, 1))), SM_90)


def test_two_products() -> None:
    source = emit_kernel(lowered(parse(SWIGLU), schedule(128, 128, 4)), SM_90)
    assert "kDots = 2" in source.text
    assert "values[1][0]" in source.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (linear(128, 100, 128), "can't be fetched by TMA"),
        (linear(128, 64, 128).replace("bf16", "f64"), "16 bits"),
        (linear(1, 64, 128), "can't be fetched by TMA"),
        (product("384, 256", "256, 512", "contract=[1]x[0]", "384, 512", "f32"), "does not lie along K"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    program = lower(parse(text), "cuda:sm_90", precision="tf32", selector=Fixed(SM_90, schedule=TOGETHER)).program
    assert not any(isinstance(k.template, HopperGemm) for k in program.kernels)
    assert any(reason in d.reason for d in program.declined)


SIZED = """graph @linear<B in [2, 9], T in [2, 700]>(%x: bf16[B, T, 256], %w: bf16[192, 256], %r: bf16[B, T, 192]) {
  %h = linear(%x, %w) : bf16[B, T, 192]
  %y = add(%h, %r) : bf16[B, T, 192]
  return %y
}"""


@pytest.mark.parametrize("pipeline", [TOGETHER, PING_PONG, SMALL], ids=["together", "ping-pong", "small"])
def test_rows_of_symbolic_extent(pipeline: HopperGemmSchedule) -> None:
    kernel = lowered(parse(SIZED), pipeline)
    source = emit_kernel(kernel, SM_90)
    assert [s.name for s in source.sizes] == ["B", "T"]
    assert "kBatches = 1, kRowTiles = -1" in source.text
    assert "int row_tiles() const { return ((B * T) + 127) / 128; }" in source.text
    rows = mul(*source.sizes)
    assert [m.shape for m in source.tensor_maps if m.parameter != 1][:1] == [(rows, 256)]
    columns, cluster = -(-192 // pipeline.n), pipeline.pipeline.cluster_m
    few, many = (evaluate(source.grid[0], dict(zip("BT", at, strict=True))) for at in ((2, 3), (9, 700)))
    assert few == columns * cluster
    assert columns * cluster <= many <= 132
    if has_nvrtc():
        saved = compile_kernels([kernel], SM_90)
        (cubin,) = saved.cubins.values()
        assert (cubin.registers, cubin.spills <= 64) == (168, True)
        again = CudaModule.from_bytes(saved.to_bytes())
        assert again.text == saved.text


def test_columns_of_symbolic_extent_are_left_to_triton() -> None:
    text = """graph @scores<N in [2, 700]>(%x: bf16[256, 128], %w: bf16[N, 128]) {
  %y = linear(%x, %w) : bf16[256, N]
  return %y
}"""
    with pytest.raises(LoweringError, match="symbolic"):
        lowered(parse(text), SMALL)


def test_symbolic_rows_of_8_bits() -> None:
    text = """graph @scaled<M in [1, 700]>(%x: f8e4m3[M, 256], %w: f8e4m3[192, 256], %s: f32[M, 1]) {
  %h = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[M, 192]
  %p = mul(%h, %s) : f32[M, 192]
  %c = minimum(%p, f32(448.0)) : f32[M, 192]
  %d = maximum(%c, f32(-448.0)) : f32[M, 192]
  %y = cast(%d) : f8e4m3[M, 192]
  return %y
}"""
    source = emit_kernel(lowered(parse(text), eight(128, 64, 6, promotes=1)), SM_90)
    assert [s.name for s in source.sizes] == ["M"]
    assert "kRowTiles = -1" in source.text
    assert "kEights = 1" in source.text


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize(("rows", "cluster"), [(4096, (2, 1)), (4224, (1, 2)), (4104, (1, 1))])
def test_batches_with_rows_of_their_own(rows: int, cluster: tuple[int, int], tmp_path: Path) -> None:
    """Outer products of groups: where a group's rows end is read on the device, and sums stay where they grow."""
    text = f"""graph @outer(%x: bf16[16384, {rows}], %y: bf16[16384, 2048], %ends: i32[32]) {{
        %g = grouped_outer(%x, %y, %ends) : bf16[32, {rows}, 2048]
        return %g
    }}"""

    class With(GpuSelector):
        def lower(self, context: LoweringContext) -> LoweredGroup:
            return lower_with(context, HopperOuterSchedule(128, 256, 64, 4, Pipeline(*cluster, 8, False)))

    (kernel,) = lower(parse(text), "cuda:sm_90", selector=With(SM_90)).program.kernels
    source = emit_kernel(kernel, SM_90).text
    for line in ("kGrouped = true", "kSteps = 4", "int all_k() const { return 16384; }", "int past_k(int batch) const"):
        assert line in source, line
    (cubin,) = compile_kernels([kernel], SM_90).cubins.values()
    assert cubin.spills == 0
    if disassembler() is not None:
        (tmp_path / "kernel.cubin").write_bytes(cubin.code)
        command = [str(disassembler()), str(tmp_path / "kernel.cubin")]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert len(set(re.findall(r"HGMMA\S* (R\d+)", code))) == 1
