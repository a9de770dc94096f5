"""Predicted times follow the work: what is counted, what bounds it, and what the rates say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusec.ir.index import floordiv, mod, symbol
from fusec.ir.parse import parse
from fusec.ir.types import bool_, f32
from fusec.passes.cost.instructions import DIVISION, row_instructions
from fusec.passes.cost.kernel import estimate, waited_for
from fusec.passes.pipeline import lower
from fusec.runtime.program import KernelReport, Program
from fusec.target.cpu import cpu_target
from fusec.target.rates import Rates, usual_rates
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Grid, Iter, Loop, Reduce, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load

ZEN = cpu_target("cpu:znver5")
AMX = cpu_target("cpu:sapphirerapids")


def program(text: str, target: str = "cpu:znver5", threads: int = 2) -> Program:
    return lower(parse(text), target, threads=threads).program


def only(text: str, target: str = "cpu:znver5", threads: int = 2) -> KernelReport:
    (report,) = program(text, target, threads).reports
    return report


def linear(m: int, n: int, k: int, dtype: str = "f32") -> str:
    return f"""graph @f(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}] static "w") {{
        %h = linear(%x, %w) : {dtype}[{m}, {n}]
        return %h
    }}"""


def pointwise(op: str, n: int, dtype: str = "f32") -> str:
    return f"graph @f(%x: {dtype}[{n}]) {{\n%y = {op}(%x) : {dtype}[{n}]\nreturn %y\n}}"


def test_a_block_on_tiles_fetches_its_panel_from_l2_each_time() -> None:
    """Stores come a block later than products: the first block stands before the loop over the others."""
    m, n, k = 512, 3072, 768
    l2 = dict(only(linear(m, n, k, "bf16"), "cpu:sapphirerapids").parts)["L2"]
    panels = (m // 32) * (n // 32) * 32 * k * 2
    assert 1.0 <= l2 / (panels / usual_rates(AMX, 2).l2 / 2) < 1.5


def test_k_in_parts_reads_all_of_the_weights() -> None:
    """Of one row; the parts of K are statements of their own."""
    report = only(linear(1, 2048, 8192), threads=1)
    memory = dict(report.parts)["memory"]
    assert memory == pytest.approx(4 * 2048 * 8192 / usual_rates(ZEN, 1).beyond_l2(2**30, 1).read, rel=0.02)


def test_a_large_product_is_bound_by_multiplying() -> None:
    report = only(linear(1024, 1024, 1024))
    assert report.bound == "multiply"
    assert 1.0 <= report.predicted / (2 * 1024**3 / ZEN.peak_flops(32, 2)) < 1.35


def test_products_of_narrow_types_count_at_their_units_rates() -> None:
    times = {
        (dtype, target): only(linear(1024, 1024, 1024, dtype), f"cpu:{target}").predicted
        for dtype, target in (
            ("f32", "znver5"),
            ("bf16", "znver5"),
            ("f32", "sapphirerapids"),
            ("bf16", "sapphirerapids"),
        )
    }
    assert 1.5 < times["f32", "znver5"] / times["bf16", "znver5"] < 2.1
    assert 5 < times["f32", "sapphirerapids"] / times["bf16", "sapphirerapids"] < 16


def test_few_rows_are_bound_by_memory() -> None:
    report = only(linear(1, 8192, 8192))
    assert report.bound == "memory"
    bandwidth = usual_rates(ZEN, 2).beyond_l2(2**28, 2).read
    assert 1.0 <= report.predicted / (4 * 8192**2 / bandwidth) < 1.3


def test_maps_are_bound_by_memory_or_by_what_they_compute() -> None:
    far, near = only(pointwise("neg", 2**26)), only(pointwise("sin", 2**16))
    assert far.bound == "memory"
    assert near.bound == "elementwise"
    assert only(pointwise("neg", 8)).bound == "start"


def test_one_thread_takes_longer_and_is_not_started() -> None:
    one, two = (dict(only(linear(512, 512, 512), threads=n).parts) for n in (1, 2))
    assert 1.9 < one["multiply"] / two["multiply"] < 2.3


ATTENTION = """graph @a(%q: f32[4, 1024, 64], %k: f32[4, 1024, 64], %v: f32[4, 1024, 64]) {
    %s = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[4, 1024, 1024]
    MASK
    %p = softmax(%z) {axis=2} : f32[4, 1024, 1024]
    %o = dot(%p, %v) {contract=[2]x[1], batch=[0]x[0]} : f32[4, 1024, 64]
    return %o
}"""
CAUSAL = """%i = iota() {axis=0} : i64[1024, 1]
    %j = iota() {axis=1} : i64[1, 1024]
    %c = le(%j, %i) : bool[1024, 1024]
    %z = select(%c, %s, f32(-inf)) : f32[4, 1024, 1024]"""
FULL = "%z = mul(%s, f32(0.125)) : f32[4, 1024, 1024]"


def test_attention_counts_only_the_blocks_that_are_computed() -> None:
    full, causal = (only(ATTENTION.replace("MASK", mask)) for mask in (FULL, CAUSAL))
    assert 0.45 < dict(causal.parts)["multiply"] / dict(full.parts)["multiply"] < 0.65
    assert causal.limit < 0.65 * full.limit
    assert causal.predicted < 0.75 * full.predicted


def test_points_that_repeat_along_the_grid_are_looked_at_evenly() -> None:
    """Four tasks of queries in each of four heads: of every second one, the mean is a third too much."""
    full, causal = (
        only(ATTENTION.replace("MASK", mask).replace("1024", "4096").replace("f32", "bf16")) for mask in (FULL, CAUSAL)
    )
    assert dict(causal.schedule)["task"] == 1024
    assert 0.45 < dict(causal.parts)["multiply"] / dict(full.parts)["multiply"] < 0.6


def test_what_the_kernel_before_left_in_the_cache_is_not_read_from_memory() -> None:
    text = """graph @f(%x: f32[256, 256], %big: f32[64, 1024, 1024]) {
        %y = exp(%x) : f32[256, 256]
        %s = reduce_sum(%y) {axes=[1]} : f32[256]
        %t = reduce_sum(%big) {axes=[0]} : f32[1024, 1024]
        return %s, %t
    }"""
    parts = {r.kernel: dict(r.parts) for r in program(text).reports}
    (small,) = (p for name, p in parts.items() if "memory" not in p or p["memory"] < 1e-3)
    (large,) = (p for p in parts.values() if p is not small)
    assert large["memory"] > 2**28 / 80e9
    assert sum(small.values()) < large["memory"] / 10


def test_measured_rates_count() -> None:
    slow = replace(usual_rates(ZEN, 2), region=1e-3)
    graph = parse(linear(512, 512, 512))
    usual = lower(graph, "cpu:znver5", threads=2).program
    told = lower(graph, "cpu:znver5", threads=2, rates=slow).program
    assert told.reports[0].predicted - usual.reports[0].predicted == pytest.approx(1e-3 - 2e-6)
    assert told.reports[0].bound == "start"
    assert told.overhead >= slow.call


def waits(report: KernelReport) -> bool:
    """Whether what comes from beyond L2 adds to the longest of the other parts."""
    parts = dict(report.parts)
    far = parts.pop("L3", 0.0) + parts.pop("memory", 0.0)
    assert far > 0.02 * report.predicted
    return report.predicted >= far + max(parts.values())


def test_products_wait_for_their_operands_unless_those_are_fetched_ahead() -> None:
    assert waits(only(linear(512, 3072, 768, "bf16"), "cpu:sapphirerapids"))
    assert waits(only(linear(512, 3072, 768, "bf16")))
    assert not waits(only(linear(8, 8192, 8192)))


def test_rows_wait_but_short_ones_and_maps_overlap() -> None:
    def rows(width: int) -> KernelReport:
        count = 2**22 // width
        text = f"%y = reduce_sum(%x) {{axes=[1]}} : f32[{count}]"
        return only(f"graph @f(%x: f32[{count}, {width}]) {{\n{text}\nreturn %y\n}}")

    assert waits(rows(4096))
    assert not waits(rows(64))
    assert not waits(only(pointwise("exp", 2**22)))


def test_rows_that_fetch_to_l2_wait_for_nothing_beyond() -> None:
    """What is fetched to L1 waits there for lines from L3."""
    row, j = symbol("row", 0, 4095), symbol("j", 0, 1023)
    x, y = (Buffer(name, f32, (4096, 1024), (1024, 1)) for name in "xy")
    total = Buffer("total", f32, (1,), (1,), "tile")
    add_up = Reduce((Iter(j, 1024),), total, (0,), "sum", Load(x, (row, j)))
    levels: dict[bool, list[tuple[str, ...]]] = {}
    for ahead in (False, True):
        fetched = (Load(x, (row + 1, j)),) if ahead else ()
        store = Store((Iter(j, 1024),), y, (row, j), Load(total, (0,)), prefetch=fetched)
        grid = Grid((Iter(row, 4096),), (Alloc(total), add_up, store))
        levels[ahead] = [waited_for(grid, target) for target in (ZEN, AMX)]
    assert levels == {False: [("L3", "memory"), ("L3", "memory")], True: [("L3",), ()]}


def test_blocks_on_tiles_take_time_to_end() -> None:
    """More of it where a block's products are few."""
    rates = usual_rates(AMX, 2)
    quick = replace(rates, ends=dict.fromkeys(rates.ends, 0.0))

    def multiply(k: int, known: Rates) -> float:
        graph = parse(linear(1024, 1024, k, "bf16"))
        return dict(lower(graph, "cpu:sapphirerapids", threads=2, rates=known).program.reports[0].parts)["multiply"]

    assert multiply(64, rates) / multiply(64, quick) > 1.25
    assert 1.0 < multiply(2048, rates) / multiply(2048, quick) < 1.05


def test_one_unit_divides_while_others_compute() -> None:
    """On Intel's servers a division by what differs takes as long as 32 other instructions, which may be beside it."""

    def elementwise(body: str, target: str) -> float:
        text = f"graph @f(%x: f32[65536], %y: f32[65536]) {{\n{body}\nreturn %z\n}}"
        return dict(only(text, target).parts)["elementwise"]

    by, by_exp = "%z = div(%x, %y) : f32[65536]", "%e = exp(%x) : f32[65536]\n%z = div(%e, %y) : f32[65536]"
    alone, beside = (elementwise(text, "cpu:sapphirerapids") for text in (by, by_exp))
    assert alone == pytest.approx(beside)
    assert alone > 3 * elementwise(by.replace("div", "mul"), "cpu:sapphirerapids")
    assert elementwise(by_exp, "cpu:znver5") > 1.5 * elementwise(by, "cpu:znver5")


def test_what_says_where_a_row_lies_is_divided_once_a_row() -> None:
    row, lane = symbol("row", 0, 99), symbol("lane", 0, 19)
    window, line = floordiv(row, 10), mod(row, 10)
    source = Buffer("source", f32, (10, 1000), (1000, 1))
    assert row_instructions(Load(source, (line, window + lane)), (window, line, lane), lane) == 2 * DIVISION
    assert row_instructions(Load(source, (line, lane)), (row, lane), lane) == DIVISION
    assert row_instructions(Load(source, (row, floordiv(lane, 2))), (row, lane), lane) == 0


def test_of_the_terms_that_a_mask_may_hide_half_are_counted() -> None:
    """Rows of keys that a bool for each of them hides, which memory bounds."""

    def predicted(branches: bool) -> float:
        row, lane, group = symbol("row", 0, 4095), symbol("lane", 0, 511), symbol("group", 0, 7)
        at = row + group * 4096
        keys, seen = Buffer("keys", f32, (32768, 512), (512, 1)), Buffer("seen", bool_, (32768,), (1,))
        out, total = Buffer("out", f32, (32768,), (1,)), Buffer("total", f32, (1,), (1,), "tile")
        term = Apply("select", (Load(seen, (at,)), Load(keys, (at, lane)), Const(0.0, f32)), f32)
        reduce = Reduce((Iter(lane, 512),), total, (0,), "sum", term, branches=branches)
        one = Iter(symbol("one", 0, 0), 1)
        body = Loop(row, 0, 4096, 1, (Alloc(total), reduce, Store((one,), out, (at,), Load(total, (0,)))))
        kernel = Kernel("hidden", "row", (keys, seen, out), 1, (Grid((Iter(group, 8),), (body,)),))
        return estimate(kernel, ZEN, usual_rates(ZEN, 2), 2).seconds

    assert predicted(True) / predicted(False) == pytest.approx(0.5, rel=0.1)
