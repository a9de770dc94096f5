"""Which matmuls have operands of 8 bits, and which of f16, after the pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rewriting import becomes, unchanged

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.eight_bits import multiply_in_8_bits
from fusec.runtime.program import Declined
from fusec.target.gpu import gpu_target

HOPPER = partial(multiply_in_8_bits, target=gpu_target("cuda:sm_90"))
AMPERE = partial(multiply_in_8_bits, target=gpu_target("cuda:sm_80"))


def product(tail: str, result: str, kind: str = "f8e4m3", other: str = "", wide: str = "f32", rows: int = 96) -> str:
    return f"""graph @g(%x: {kind}[{rows}, 256], %w: {other or kind}[80, 256], %s: f32[{rows}, 1]) {{
      %a = cast(%x) : {wide}[{rows}, 256]
      %b = cast(%w) : {wide}[80, 256]
      %h = dot(%a, %b) {{contract=[1]x[1]}} : {wide}[{rows}, 80]
      {tail}
      return {result}
    }}"""


ROUNDED = """%p = mul(%h, %s) : f32[96, 80]
      %y = cast(%p) : bf16[96, 80]"""


def operands(graph: Graph) -> list[str]:
    (dot,) = (op for op in graph.ops if op.name == "dot")
    return [*(v.type.dtype.name for v in dot.operands), dot.result.type.dtype.name]


def test_a_result_that_is_rounded_soon_is_multiplied_in_8_bits() -> None:
    becomes(
        HOPPER,
        product(ROUNDED, "%y"),
        """graph @g(%x: f8e4m3[96, 256], %w: f8e4m3[80, 256], %s: f32[96, 1]) {
          %h = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[96, 80]
          %p = mul(%h, %s) : f32[96, 80]
          %y = cast(%p) : bf16[96, 80]
          return %y
        }""",
    )


def test_sums_of_f32_are_those_of_f16() -> None:
    becomes(
        HOPPER,
        product("%y = mul(%h, %s) : f32[96, 80]", "%y"),
        """graph @g(%x: f8e4m3[96, 256], %w: f8e4m3[80, 256], %s: f32[96, 1]) {
          %h_f16 = cast(%x) : f16[96, 256]
          %h_f16_1 = cast(%w) : f16[80, 256]
          %h = dot(%h_f16, %h_f16_1) {contract=[1]x[1], dtype=f32} : f32[96, 80]
          %y = mul(%h, %s) : f32[96, 80]
          return %y
        }""",
    )


def test_bytes_are_added_up_in_32_bits() -> None:
    becomes(
        HOPPER,
        product("%y = mul(%h, %s) : f32[96, 80]", "%y", "i8"),
        """graph @g(%x: i8[96, 256], %w: i8[80, 256], %s: f32[96, 1]) {
          %h_dot = dot(%x, %w) {contract=[1]x[1], dtype=i32} : i32[96, 80]
          %h = cast(%h_dot) : f32[96, 80]
          %y = mul(%h, %s) : f32[96, 80]
          return %y
        }""",
    )


CLAMPED = """%g = gt(%h, f32(448.0)) : bool[96, 80]
      %c = select(%g, f32(448.0), %h) : f32[96, 80]
      %l = lt(%c, f32(-448.0)) : bool[96, 80]
      %d = select(%l, f32(-448.0), %c) : f32[96, 80]
      %y = cast(%d) : f8e4m3[96, 80]"""


NAMED = """%c = minimum(%h, f32(448.0)) : f32[96, 80]
      %d = maximum(%c, f32(-448.0)) : f32[96, 80]
      %r = reshape(%d) : f32[7680]
      %y = cast(%r) : f8e4m3[7680]"""


@pytest.mark.parametrize(
    ("tail", "wanted"),
    [
        (ROUNDED, "f8e4m3"),
        (CLAMPED, "f8e4m3"),
        ("%y = cast(%h) : f16[96, 80]", "f16"),
        ("%y = cast(%h) : f8e4m3[96, 80]", "f16"),  # NaN beyond 464
        (CLAMPED.replace("448", "449"), "f16"),
        (CLAMPED.replace("gt(%h", "lt(%h"), "f16"),
        (CLAMPED.replace("f8e4m3[", "f8e5m2[").replace("448", "57344"), "f8e4m3"),
        (NAMED, "f8e4m3"),
        (NAMED.replace("maximum", "minimum"), "f16"),
        (NAMED.replace("reshape(%d)", "reshape(%c)"), "f16"),
        ("%p = floor(%h) : f32[96, 80]\n%y = cast(%p) : bf16[96, 80]", "f16"),
        ("%g = gt(%h, f32(1.0)) : bool[96, 80]\n%y = select(%g, f32(1.0), f32(0.0)) : f32[96, 80]", "f16"),
        ("%t = reduce_sum(%h) {axes=[1]} : f32[96]\n%y = cast(%t) : bf16[96]", "f16"),
        ("%c = cast(%h) : i32[96, 80]\n%y = cast(%c) : bf16[96, 80]", "f16"),
        ("%t = permute(%h) {permutation=[1, 0]} : f32[80, 96]\n%y = cast(%t) : bf16[80, 96]", "f8e4m3"),
    ],
)
def test_what_needs_the_digits_of_f32(tail: str, wanted: str) -> None:
    assert operands(HOPPER(parse(product(tail, "%y"))))[0] == wanted


def test_why_not_in_8_bits_is_said() -> None:
    told: list[Declined] = []
    HOPPER(parse(product("%y = mul(%h, %s) : f32[96, 80]", "%y")), log=told.append)
    assert [d.reason for d in told] == ["%h goes on in f32, with all its digits"]
    HOPPER(parse(product(ROUNDED, "%y")), log=told.append)
    HOPPER(parse(product("%y = mul(%h, %s) : f32[96, 80]", "%y", "i8")), log=told.append)
    assert len(told) == 1


def test_an_output_that_is_not_rounded_needs_them() -> None:
    assert operands(HOPPER(parse(product(ROUNDED, "%y, %h"))))[0] == "f16"
    assert operands(HOPPER(parse(product(ROUNDED, "%y, %p"))))[0] == "f16"
    assert operands(HOPPER(parse(product(ROUNDED, "%y, %p")), rounds=True))[0] == "f8e4m3"


def test_products_of_half_types() -> None:
    assert operands(HOPPER(parse(product("", "%h", wide="bf16")))) == ["f8e4m3", "f8e4m3", "bf16"]
    assert operands(HOPPER(parse(product("", "%h", wide="f16")))) == ["f16", "f16", "f16"]
    assert operands(HOPPER(parse(product("", "%h", "i8", wide="f16")))) == ["i8", "i8", "i32"]
    assert operands(AMPERE(parse(product("", "%h", wide="bf16")))) == ["bf16", "bf16", "bf16"]


def test_both_kinds_of_floats_may_meet_but_no_bytes() -> None:
    assert operands(HOPPER(parse(product(ROUNDED, "%y", other="f8e5m2"))))[:2] == ["f8e4m3", "f8e5m2"]
    assert operands(HOPPER(parse(product(ROUNDED, "%y", other="i8"))))[:2] == ["f32", "f32"]


def test_gpus_without_such_instructions() -> None:
    assert operands(AMPERE(parse(product(ROUNDED, "%y")))) == ["f16", "f16", "f32"]
    assert operands(AMPERE(parse(product(ROUNDED, "%y", "i8")))) == ["f16", "f16", "f32"]


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "hip:gfx942"])
def test_floats_that_no_kernel_multiplies_are_widened(target: str) -> None:
    text = """graph @g(%x: f8e4m3[M, 256], %w: f8e4m3[80, 256]) {
      %h = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[M, 80]
      return %h
    }"""
    large, small, columns = text.replace("M,", "96,"), text.replace("M,", "3,"), text.replace("80", "N")
    kinds = [operands(multiply_in_8_bits(parse(t), gpu_target(target)))[0] for t in (large, text, small, columns)]
    hopper = "f8e4m3" if target == "cuda:sm_90" else "f16"
    assert kinds == [hopper, hopper, "f16", "f16"]


def test_bytes_with_symbolic_rows_are_multiplied_as_f16() -> None:
    text = product("", "%h", "i8").replace("96,", "M,").replace("@g(", "@g<M in [1, 900]>(")
    assert operands(HOPPER(parse(text)))[0] == "f16"


def test_few_rows_wait_for_memory() -> None:
    def of(rows: int, kind: str = "f8e4m3") -> list[str]:
        tail = f"%y = cast(%h) : bf16[{rows}, 80]"
        return operands(HOPPER(parse(product(tail, "%y", kind, rows=rows))))

    assert of(64)[0] == of(64, "i8")[0] == "f16"
    assert of(1)[0] == "f32"


def test_sums_that_32_bits_do_not_hold() -> None:
    text = """graph @g(%x: i8[96, 131072], %w: i8[80, 131072]) {
      %a = cast(%x) : f32[96, 131072]
      %b = cast(%w) : f32[80, 131072]
      %h = dot(%a, %b) {contract=[1]x[1]} : f32[96, 80]
      return %h
    }"""
    assert operands(HOPPER(parse(text)))[0] == "f16"
    assert operands(HOPPER(parse(text.replace("131072", "131071"))))[0] == "i8"


def test_batches_and_what_was_not_8_bits_stay() -> None:
    unchanged(
        HOPPER,
        """graph @g(%x: f8e4m3[2, 96, 256], %w: f8e4m3[2, 80, 256]) {
          %a = cast(%x) : f32[2, 96, 256]
          %b = cast(%w) : f32[2, 80, 256]
          %h = dot(%a, %b) {contract=[2]x[2], batch=[0]x[0]} : f32[2, 96, 80]
          return %h
        }""",
    )
    unchanged(HOPPER, product(ROUNDED, "%y", "bf16"))
    unchanged(HOPPER, product(ROUNDED, "%y", other="bf16"))


def test_views_and_two_casts_before_a_product() -> None:
    graph = HOPPER(
        parse("""graph @g(%x: f8e4m3[8, 16, 256], %w: f8e4m3[256, 80]) {
          %f = cast(%x) : f32[8, 16, 256]
          %a = cast(%f) : bf16[8, 16, 256]
          %r = reshape(%a) : bf16[128, 256]
          %v = cast(%w) : f32[256, 80]
          %b = cast(%v) : bf16[256, 80]
          %h = dot(%r, %b) {contract=[1]x[0]} : bf16[128, 80]
          return %h
        }""")
    )
    assert [op.name for op in graph.ops] == ["reshape", "dot"]
    assert operands(graph) == ["f8e4m3", "f8e4m3", "bf16"]


@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2", "i8"])
@pytest.mark.parametrize("wide", ["f32", "bf16"])
def test_it_computes_the_same(kind: str, wide: str) -> None:
    graph = parse(product("", "%h", kind, wide=wide))
    rng = np.random.default_rng(0)
    given = [(rng.standard_normal(v.type.static_shape) * 8).astype(v.type.dtype.numpy) for v in graph.inputs]
    (wanted,), (found,) = interpret(graph, given), interpret(HOPPER(graph), given)
    assert found.dtype == wanted.dtype
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=2**-7 if wide == "bf16" else 1e-5, atol=1e-2)
