"""Where epilogues are cut in two, so that the second part runs under the next tile's products."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from eight_bit_cases import EIGHT_BITS
from hopper_cases import CASES, PAIRED, SMALL, SWIGLU, TOGETHER, TWO_OUTPUTS, linear, lowered

from fusec.codegen.cuda.deferred import deferred_epilogue, whole_epilogue
from fusec.codegen.cuda.emit import emit_kernel
from fusec.ir.parse import parse
from fusec.ir.types import DTYPES
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule
from fusec.target.gpu import gpu_target
from fusec.tile.nodes import Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr

SCALED = """graph @scaled(%x: bf16[384, 256], %w: bf16[256, 256], %r: bf16[384, 256], %s: f32[384, 1]) {
  %h = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[384, 256]
  %scaled = mul(%h, %s) : f32[384, 256]
  %half = cast(%scaled) : bf16[384, 256]
  %y = add(%half, %r) : bf16[384, 256]
  return %y
}"""
SM_90 = gpu_target("cuda:sm_90")
BF16, F32 = DTYPES["bf16"], DTYPES["f32"]
PRODUCT = Load(Buffer("acc", F32, (), (), "tile"), ())
OTHER = Load(Buffer("other", F32, (), (), "tile"), ())
READ = Load(Buffer("r", BF16, (), ()), ())


def rounded(e: ScalarExpr) -> Apply:
    return Apply("cast", (e,), BF16)


def store(e: ScalarExpr, dtype: str = "bf16") -> Store:
    return Store((), Buffer("y", DTYPES[dtype], (), ()), (), e)


def test_cut_is_nearest_the_products() -> None:
    half = rounded(Apply("add", (PRODUCT, READ), F32))
    found = deferred_epilogue([store(rounded(Apply("tanh", (half,), F32)))], [PRODUCT.buffer])
    assert found is not None
    assert found.values == (half,)
    (rest,) = found.rest
    assert rest.value == rounded(Apply("tanh", (Load(found.slots[0], ()),), F32))


def test_a_rounding_that_may_be_left_out_is_a_place_to_cut() -> None:
    implied = Apply("copy", (Apply("add", (PRODUCT, READ), F32),), BF16)
    found = deferred_epilogue([store(Apply("tanh", (implied,), BF16))], [PRODUCT.buffer])
    assert found is not None
    assert found.values == (implied,)


def test_what_is_stored_is_rounded_at_the_latest() -> None:
    wide = Apply("tanh", (PRODUCT,), F32)
    for value in (wide, rounded(wide)):
        found = deferred_epilogue([store(value)], [PRODUCT.buffer])
        assert found is not None
        assert found.values == (rounded(wide),)
        assert found.rest[0].value == Load(found.slots[0], ())


def test_two_outputs_go_on_from_one_value() -> None:
    half = rounded(PRODUCT)
    found = deferred_epilogue([store(half), store(rounded(Apply("exp", (half,), F32)))], [PRODUCT.buffer])
    assert found is not None
    assert found.values == (half,)


def test_each_of_two_products_has_its_place() -> None:
    value = Apply("mul", (rounded(PRODUCT), rounded(OTHER)), F32)
    found = deferred_epilogue([store(rounded(value))], [PRODUCT.buffer, OTHER.buffer])
    assert found is not None
    assert found.values == (rounded(PRODUCT), rounded(OTHER))


@pytest.mark.parametrize(
    "stores",
    [
        [store(PRODUCT, "f32")],
        [store(Apply("add", (rounded(PRODUCT), PRODUCT), F32), "f32")],
        [store(rounded(PRODUCT)), store(rounded(Apply("exp", (PRODUCT,), F32)))],
        [store(READ)],
    ],
)
def test_not_cut(stores: list[Store]) -> None:
    assert deferred_epilogue(stores, [PRODUCT.buffer]) is None


def text_of(graph: str, schedule: HopperGemmSchedule) -> str:
    return emit_kernel(lowered(parse(graph), schedule), SM_90).text


def test_plan_in_two_parts() -> None:
    text = text_of(linear(512, 512, 512), TOGETHER)
    first, second = text[text.index("void defer(") :].split("void finish(")
    assert "kDeferred = 1" in text
    assert "return {load<2>(b + (column + column_tile * 256))};" in text
    assert "early.b_pair[0]" in first
    assert "tanh" not in first
    assert "tanh" in second
    assert "deferred[0]" in second


def test_gates_are_put_off_with_their_biases_added() -> None:
    text = text_of(
        SWIGLU.replace("%g)", "%g, %gb)")
        .replace("%u)", "%u, %ub)")
        .replace("%u: bf16[512, 256])", "%u: bf16[512, 256], %gb: bf16[512], %ub: bf16[512])"),
        PAIRED,
    )
    first, second = text[text.index("void defer(") :].split("void finish(")
    assert "early.gb_pair[0]" in first
    assert "exp" not in first
    assert "exp" in second


def test_ragged_columns_are_read_within_the_limit() -> None:
    text = text_of(linear(300, 200, 216), TOGETHER)
    assert "column = minimum(column, column_tile * -256 + 216 - 2);" in text
    assert "row = minimum(row, row_tile * -128 + 300 - 1);" in text
    assert "early.b_pair" in text


def test_rows_are_not_read_early() -> None:
    text = text_of(SCALED, SMALL)
    first, second = text[text.index("void defer(") :].split("void finish(")
    assert "s[row" in first
    assert "return {};" in text
    assert "of_beside.pair[0]" in second  # the residual, which TMA has fetched
    assert "r_map" not in first


def test_products_side_by_side_are_rounded_where_they_are_parked() -> None:
    assert "kDeferred = 2" in text_of(SWIGLU, PAIRED)
    assert "kDeferred = 1" in text_of(TWO_OUTPUTS, SMALL)


@pytest.mark.parametrize("name", ["in_turns", "tf32", "split"])
def test_left_whole(name: str) -> None:
    graph, schedule = CASES[name]
    assert "kDeferred = 0" in text_of(graph, schedule)


def test_whole_sums_are_deferred() -> None:
    found = whole_epilogue([store(rounded(Apply("add", (PRODUCT, READ), F32)))], [PRODUCT, OTHER])
    assert found.values == (PRODUCT, OTHER)
    assert (found.words, found.whole) == (4, True)
    (rest,) = found.rest
    assert rest.value == rounded(Apply("add", (Load(found.slots[0], ()), READ), F32))


@pytest.mark.parametrize(
    ("name", "words"), [("e4m3", 2), ("gated", 4), ("bytes_whole", 2), ("e4m3_192", 0), ("e4m3_in_turns", 0)]
)
def test_sums_of_8_bits_are_deferred_where_registers_hold_them(name: str, words: int) -> None:
    text, s = EIGHT_BITS[name]
    source = emit_kernel(lowered(parse(text), s), SM_90).text
    assert f"kDeferred = {words}, kPromotes = {s.pipeline.promotes};" in source
    assert ("deferred[1] = " in source) == bool(words)
