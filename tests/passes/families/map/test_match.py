"""Chains of maps over one shape are one kernel, with maps over other shapes inlined where that costs little."""

from __future__ import annotations

import pytest
from programs import Run, check, group_kinds, reasons

from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.fuse import fuse
from fusec.passes.pipeline import lower


def one_map(text: str, **options: object) -> Run:
    run = check(text, **options)  # type: ignore[arg-type]
    assert group_kinds(run.lowered) == ["map"], run.lowered.stages["fuse"]
    return run


@pytest.mark.parametrize(
    "text",
    [
        """%e = exp(%x) : f32[6, 10]
        %y = permute(%e) {permutation=[1, 0]} : f32[10, 6]
        %z = mul(%y, f32(2.0)) : f32[10, 6]""",
        """%e = exp(%x) : f32[6, 10]
        %y = slice(%e) {starts=[5, 1], stops=[-1, 10], steps=[-2, 3]} : f32[3, 3]
        %z = neg(%y) : f32[3, 3]""",
        """%e = exp(%x) : f32[6, 10]
        %y = reshape(%e) : f32[4, 15]
        %z = neg(%y) : f32[4, 15]""",
        """%e = exp(%x) : f32[6, 10]
        %n = neg(%x) : f32[6, 10]
        %z = concat(%e, %x, %n) {axis=1} : f32[6, 30]""",
        """%e = exp(%x) : f32[6, 10]
        %z = pad(%e, f32(-1.0)) {low=[0, 2], high=[1, 0]} : f32[7, 12]""",
        """%e = mul(%x, f32(3.0)) : f32[6, 10]
        %w = windows(%e) {axis=1, size=3, step=2} : f32[6, 4, 3]
        %z = add(%w, f32(1.0)) : f32[6, 4, 3]""",
        """%e = exp(%x) : f32[6, 10]
        %w = strided(%e) {strides=[11, 1], offset=2} : f32[5, 3]
        %z = neg(%w) : f32[5, 3]""",
        """%r = slice(%x) {starts=[0, 5], stops=[6, 10], steps=[1, 1]} : f32[6, 5]
        %l = slice(%x) {starts=[0, 0], stops=[6, 5], steps=[1, 1]} : f32[6, 5]
        %n = neg(%r) : f32[6, 5]
        %c = concat(%n, %l) {axis=1} : f32[6, 10]
        %s = sin(%c) : f32[6, 10]
        %z = add(%x, %s) : f32[6, 10]""",
    ],
    ids=["permute", "slice", "reshape", "concat", "pad", "windows", "strided", "rotary"],
)
def test_producers_below_views_are_inlined(text: str) -> None:
    one_map(f"graph @g(%x: f32[6, 10]) {{\n{text}\nreturn %z\n}}")


def test_broadcasts_of_every_kind() -> None:
    one_map("""graph @g(%x: f32[6, 1, 10], %r: f32[10], %c: f32[4, 1], %s: f32[], %k: f32[1, 4, 1]) {
        %a = add(%x, %r) : f32[6, 1, 10]
        %b = mul(%a, %c) : f32[6, 4, 10]
        %d = sub(%b, %s) : f32[6, 4, 10]
        %e = maximum(%d, %k) : f32[6, 4, 10]
        return %e
    }""")


def test_a_dear_producer_that_is_read_often_gets_its_own_kernel() -> None:
    text = """graph @g(%x: f32[40, 33], %b: f32[33]) {
        %e = tanh(%b) : f32[33]
        %y = mul(%x, %e) : f32[40, 33]
        return %y
    }"""
    assert check(text).kernels == ["map", "map"]


def test_a_cheap_producer_with_two_readers_of_other_shapes_is_stored_once() -> None:
    text = """graph @g(%x: f32[40, 33]) {
        %e = mul(%x, f32(2.0)) : f32[40, 33]
        %a = slice(%e) {starts=[0, 0], stops=[20, 33], steps=[1, 1]} : f32[20, 33]
        %b = neg(%a) : f32[20, 33]
        %c = concat(%e, %b) {axis=0} : f32[60, 33]
        return %b, %c
    }"""
    run = check(text)
    assert sum("mul" in op.attributes.body.__str__() for op in run.lowered.graph.ops) == 1  # type: ignore[attr-defined]


def test_siblings_over_one_shape_are_one_kernel() -> None:
    run = one_map("""graph @g(%x: f32[6, 10]) {
        %a = exp(%x) : f32[6, 10]
        %b = mul(%a, f32(2.0)) : f32[6, 10]
        %c = sub(%x, %b) : f32[6, 10]
        return %a, %b, %c
    }""")
    assert len(run.lowered.graph.ops[0].results) == 3


def test_outputs_in_two_orders_of_axes() -> None:
    one_map("""graph @g(%x: f32[6, 10]) {
        %a = exp(%x) : f32[6, 10]
        %t = permute(%a) {permutation=[1, 0]} : f32[10, 6]
        %b = neg(%t) : f32[10, 6]
        %r = reshape(%a) : f32[3, 20]
        %c = abs(%r) : f32[3, 20]
        return %b, %a, %c
    }""")


def test_a_value_and_its_transpose() -> None:
    """exp(x) is read at two places: computed twice it would cost more than a pass over memory; cheap maps are."""
    for name, kernels in (("erf", 2), ("neg", 1)):
        text = f"""graph @g(%x: f32[8, 8]) {{
            %a = {name}(%x) : f32[8, 8]
            %t = permute(%a) {{permutation=[1, 0]}} : f32[8, 8]
            %y = add(%a, %t) : f32[8, 8]
            return %y
        }}"""
        assert len(check(text).kernels) == kernels


def test_masks_of_indices_are_never_in_memory() -> None:
    run = one_map("""graph @g(%x: f32[6, 10]) {
        %i = iota() {axis=0} : i64[6, 1]
        %j = iota() {axis=1} : i64[1, 10]
        %m = le(%j, %i) : bool[6, 10]
        %k = logical_not(%m) : bool[6, 10]
        %w = concat(%j, %j) {axis=1} : i64[1, 20]
        %v = slice(%w) {starts=[0, 5], stops=[1, 15], steps=[1, 1]} : i64[1, 10]
        %f = cast(%v) : f32[1, 10]
        %a = select(%k, %x, %f) : f32[6, 10]
        return %a
    }""")
    assert all(slot.kind in ("input", "output") for slot in run.lowered.program.slots)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool"])
def test_moves_of_each_dtype(dtype: str) -> None:
    check(f"""graph @g(%x: {dtype}[6, 11], %i: i64[4]) {{
        %c = concat(%x, %x) {{axis=0}} : {dtype}[12, 11]
        %p = permute(%c) {{permutation=[1, 0]}} : {dtype}[11, 12]
        %g = gather(%p, %i) {{axis=0}} : {dtype}[4, 12]
        %y = copy(%g) : {dtype}[4, 12]
        return %y
    }}""")


def test_gather_elements() -> None:
    one_map("""graph @g(%x: f32[6, 11], %i: i32[6, 4]) {
        %g = gather_elements(%x, %i) {axis=1} : f32[6, 4]
        %y = neg(%g) : f32[6, 4]
        return %y
    }""")


def test_views_of_gathers_of_views() -> None:
    """A loaded subscript goes on through index arithmetic: reshapes, slices, padding and joins below a gather."""
    one_map("""graph @g(%x: f32[4, 9], %i: i64[3, 5]) {
        %r = reshape(%x) : f32[6, 6]
        %s = slice(%r) {starts=[5, 0], stops=[-1, 6], steps=[-1, 1]} : f32[6, 6]
        %c = concat(%s, %r) {axis=0} : f32[12, 6]
        %p = pad(%c, f32(7.0)) {low=[1, 0], high=[0, 0]} : f32[13, 6]
        %g = gather(%p, %i) {axis=0} : f32[3, 5, 6]
        %v = reshape(%g) : f32[15, 6]
        %w = windows(%v) {axis=0, size=4, step=3} : f32[4, 6, 4]
        %y = mul(%w, f32(2.0)) : f32[4, 6, 4]
        return %y
    }""")


def test_expressions_stay_small() -> None:
    lines = "\n".join(f"%x{k + 1} = mul(%x{k}, %x{k}) : f32[9]" for k in range(40))
    text = f"graph @powers(%x0: f32[9]) {{\n%y = tanh(%x0) : f32[9]\n{lines}\nreturn %x40\n}}"
    run = check(text.replace("tanh(%x0)", "abs(%x0)"), slack=100)
    assert len(run.kernels) == 4


def test_long_chains() -> None:
    lines = "\n".join(f"%x{k + 1} = sub(f32(1.0), %x{k}) : f32[9]" for k in range(300))
    assert len(check(f"graph @chain(%x0: f32[9]) {{\n{lines}\nreturn %x300\n}}", slack=100).kernels) == 5


def test_a_chain_of_products_reads_what_a_map_would_take_in() -> None:
    """All that is made from an op may be a whole network: fusion doesn't follow it to the end."""
    dots = (f"%x{k + 1} = dot(%x{k}, %e) {{contract=[1]x[0]}} : f32[2, 2]" for k in range(400))
    text = """graph @chain(%x0: f32[2, 2], %w: f32[2, 2], %y: f32[3, 2, 2]) {
        %e = abs(%w) : f32[2, 2]
        LINES
        %z = mul(%y, %e) : f32[3, 2, 2]
        return %x400, %z
    }"""
    fused = fuse(canonicalize(parse(text.replace("LINES", "\n".join(dots)))))
    assert sum(op.name == "fused" for op in fused.ops) >= 401


def test_stencils_don_t_double_at_each_step() -> None:
    lines = "\n".join(
        f"""%l{k} = slice(%x{k}) {{starts=[0], stops=[{63 - k}], steps=[1]}} : f32[{63 - k}]
        %r{k} = slice(%x{k}) {{starts=[1], stops=[{64 - k}], steps=[1]}} : f32[{63 - k}]
        %x{k + 1} = sub(%r{k}, %l{k}) : f32[{63 - k}]"""
        for k in range(12)
    )
    run = check(f"graph @differences(%x0: f32[64]) {{\n{lines}\nreturn %x12\n}}", slack=20)
    assert 3 <= len(run.kernels) <= 5


def test_a_reduction_between_maps_is_a_barrier_only_for_its_readers() -> None:
    text = """graph @g(%x: f32[6, 11], %y: f32[6, 10]) {
        %a = exp(%y) : f32[6, 10]
        %s = reduce_sum(%x) {axes=[0, 1]} : f32[]
        %b = mul(%a, %s) : f32[6, 10]
        %c = add(%b, %y) : f32[6, 10]
        return %c
    }"""
    assert check(text).kernels == ["row", "map"]


def test_the_reason_for_a_group_that_waits() -> None:
    text = """graph @g(%x: f32[6, 10]) {
        %a = tanh(%x) : f32[6, 10]
        %s = extern(%a) {target="numpy.sort", arguments="(($0,), {'axis': 1})"} : f32[6, 10]
        %b = add(%a, %s) : f32[6, 10]
        return %b
    }"""
    run = check(text)
    assert run.kernels == ["map", "map"]
    assert run.calls == ["numpy.sort"]
    assert any("numpy.sort" in d.rule for d in run.lowered.program.declined), reasons(run.lowered)


@pytest.mark.parametrize("shape", [[0], [3, 0], [0, 4, 2], []], ids=str)
def test_empty_and_0d(shape: list[int]) -> None:
    check(f"""graph @g(%x: f32{shape}, %y: f32[]) {{
        %a = add(%x, %y) : f32{shape}
        %b = exp(%a) : f32{shape}
        %c = gt(%b, f32(1.0)) : bool{shape}
        return %b, %c, %y
    }}""")


@pytest.mark.parametrize("strides", [[1, 6], [25, 2], [0, 1], [10, 0], [-10, 1], [10, -1], [0, 0]], ids=str)
def test_inputs_with_strides(strides: list[int]) -> None:
    one_map(f"""graph @g(%x: f32[6, 10] strides={strides}, %y: f32[6, 10]) {{
        %a = add(%x, %y) : f32[6, 10]
        return %a strides=[1, 6]
    }}""")


SCALES = """graph @g(%a: f32[64], %b: f32[64], %c: f32[32], %x: f32[9, 64]) {
  %p = rsqrt(%a) : f32[64]
  %q = exp(%b) : f32[64]
  %r = exp(%c) : f32[32]
  %s = reduce_sum(%x) {axes=[0]} : f32[64]
  %t = mul(%s, f32(0.5)) : f32[64]
  %u = tanh(%t) : f32[64]
  return %p, %q, %r, %u
}"""


def test_small_maps_of_arguments_over_one_shape_are_one_launch_on_a_gpu() -> None:
    run = check(SCALES, target="cuda:sm_90")
    assert sorted(group_kinds(run.lowered)) == ["map", "map", "row"], run.lowered.stages["fuse"]
    assert check(SCALES).kernels.count("map") == 3


def test_maps_that_take_time_and_maps_of_what_was_computed_stay_apart() -> None:
    large = SCALES.replace("64]", "300000]").replace("f32[9, 300000]", "f32[2, 300000]")
    assert group_kinds(check(large, target="cuda:sm_90").lowered).count("map") >= 3
    empty = SCALES.replace("64]", "0]").replace("f32[9, 0]", "f32[9, 0]")
    check(empty, target="cuda:sm_90")


def test_a_small_map_of_what_a_call_gives_waits_for_it() -> None:
    text = """graph @g(%a: f32[64], %b: f32[64]) {
        %p = rsqrt(%a) : f32[64]
        %s = extern(%p) {target="numpy.sort", arguments="(($0,), {'axis': 0})"} : f32[64]
        %u = tanh(%s) : f32[64]
        %q = exp(%b) : f32[64]
        return %u, %q
    }"""
    fused = lower(parse(text), "cuda:sm_90").stages["fuse"]
    assert fused.index("%p") < fused.index("numpy.sort") < fused.index("%u = fused(%s)"), fused
    assert fused.count(") map ") == 2


def test_padding_is_computed_in_each_window_on_a_gpu() -> None:
    text = """graph @g(%x: f32[2, 30, 8]) {
        %p = pad(%x, f32(-inf)) {low=[0, 24, 0], high=[0, 24, 0]} : f32[2, 78, 8]
        %w = windows(%p) {axis=1, size=49} : f32[2, 30, 8, 49]
        %y = reduce_max(%w) {axes=[3]} : f32[2, 30, 8]
        return %y
    }"""
    assert check(text, target="cuda:sm_90").kernels == ["map"]


TWO_CACHES = """graph @f(%c: f32[2, 9, 4], %d: f32[2, 9, 4], %x: f32[2, 1, 4], %i: i64[]) {{
  %e = exp(%x) : f32[2, 1, 4]
  %u = update(%c, %e, %i) {{starts=[0, 0, 0], axes=[1]}} : f32[2, 9, 4]
  %n = {made} : f32[2, 1, 4]
  %v = update({into}, %n, %i) {{starts=[0, 0, 0], axes=[1]}} : f32[2, 9, 4]
  return %u{first}, %v{second}
}}"""


@pytest.mark.parametrize(
    ("made", "into", "count"),
    [
        ("neg(%x)", "%d", 1),
        ("slice(%d) {starts=[0, 3, 0], stops=[2, 4, 4], steps=[1, 1, 1]}", "%d", 2),  # what it writes, elsewhere
        ("slice(%u) {starts=[0, 3, 0], stops=[2, 4, 4], steps=[1, 1, 1]}", "%d", 2),  # what the other has written
    ],
)
def test_writes_of_one_shape_into_different_arrays_are_one_kernel(made: str, into: str, count: int) -> None:
    """A layer's new keys and values."""
    text = TWO_CACHES.format(made=made, into=into, first=" mutates=0", second=" mutates=1")
    if "slice" in made:  # what is read is copied in another kernel's order: it is computed with
        text = text.replace("%n = slice", "%o = slice").replace("  %v =", "  %n = mul(%o, %x) : f32[2, 1, 4]\n  %v =")
    run = lower(parse(text), "cuda:sm_90", check=True)
    assert group_kinds(run) == ["map"] * count, run.stages["fuse"]
