"""A product takes in what follows it at the same points, and cheap maps that only it reads."""

from __future__ import annotations

import pytest
from programs import Dot, Run, check, dot_program, group_kinds, reasons

from fusec.ir.graph import FusedAttributes
from fusec.ir.parse import parse
from fusec.passes.fuse import fuse
from fusec.passes.pipeline import lower

DOT = "%h = dot(%x, %w) {contract=[1]x[0]} : f32[7, 9]"
INPUTS = "%x: f32[7, 5], %w: f32[5, 9]"


def product(*lines: str, inputs: str = "", returns: str = "%y") -> str:
    more = f", {inputs}" if inputs else ""
    body = "\n".join((DOT, *lines))
    return f"graph @product({INPUTS}{more}) {{\n{body}\nreturn {returns}\n}}"


def one_kernel(text: str) -> Run:
    run = check(text, slack=4)
    assert group_kinds(run.lowered) == ["gemm"], run.lowered.stages["fuse"]
    return run


@pytest.mark.parametrize(
    "text",
    [
        product("%y = add(%h, %b) : f32[7, 9]", inputs="%b: f32[9]"),
        product("%y = add(%h, %b) : f32[7, 9]", inputs="%b: f32[7, 1]"),
        product("%y = mul(%b, %h) : f32[7, 9]", inputs="%b: f32[]"),
        product("%g = add(%h, %b) : f32[7, 9]", "%y = gelu(%g) {approximate=none} : f32[7, 9]", inputs="%b: f32[9]"),
        product("%g = gelu(%h) {approximate=tanh} : f32[7, 9]", "%y = add(%g, %r) : f32[7, 9]", inputs="%r: f32[7, 9]"),
        product("%a = tanh(%h) : f32[7, 9]", "%y = add(%a, %r) : f32[7, 9]", inputs="%r: f32[7, 9]", returns="%y, %h"),
        product("%a = tanh(%h) : f32[7, 9]", "%y = exp(%h) : f32[7, 9]", returns="%y, %a"),
        product("%y = cast(%h) : f16[7, 9]"),
        product("%c = gt(%h, f32(0.0)) : bool[7, 9]", "%y = select(%c, %h, %r) : f32[7, 9]", inputs="%r: f32[7, 9]"),
        product(
            "%p = permute(%h) {permutation=[1, 0]} : f32[9, 7]",
            "%y = add(%p, %r) : f32[9, 7]",
            inputs="%r: f32[9, 7]",
        ),
        product("%p = reshape(%h) : f32[7, 3, 3]", "%y = add(%p, %r) : f32[7, 3, 3]", inputs="%r: f32[3, 3]"),
        product(
            "%p = reshape(%h) : f32[7, 3, 3]",
            "%q = permute(%p) {permutation=[1, 0, 2]} : f32[3, 7, 3]",
            "%y = mul(%q, f32(0.5)) : f32[3, 7, 3]",
        ),
    ],
    ids=[
        *("bias of columns", "bias of rows", "scalar", "gelu", "residual", "product also returned", "two results"),
        *("cast", "select", "permuted", "reshaped", "split and permuted"),
    ],
)
def test_epilogues(text: str) -> None:
    one_kernel(text)


@pytest.mark.parametrize(
    "text",
    [
        product("%y = copy(%h) : f32[7, 9]"),
        """graph @prologue(%x: f32[7, 5], %w: f32[5, 9]) {
            %a = tanh(%x) : f32[7, 5]
            %y = dot(%a, %w) {contract=[1]x[0]} : f32[7, 9]
            return %y
        }""",
        """graph @both(%x: f16[7, 5], %w: f16[5, 9], %s: f32[9]) {
            %a = cast(%x) : f32[7, 5]
            %b = cast(%w) : f32[5, 9]
            %c = mul(%b, %s) : f32[5, 9]
            %y = dot(%a, %c) {contract=[1]x[0]} : f32[7, 9]
            return %y
        }""",
        """graph @windows(%x: f32[7, 5], %z: f32[30]) {
            %w = windows(%z) {axis=0, size=5} : f32[26, 5]
            %y = dot(%x, %w) {contract=[1]x[1]} : f32[7, 26]
            return %y
        }""",
        """graph @side(%x: f32[7, 5], %w: f32[5, 9], %r: f32[7, 9]) {
            %h = dot(%x, %w) {contract=[1]x[0]} : f32[7, 9]
            %e = exp(%r) : f32[7, 9]
            %y = mul(%h, %e) : f32[7, 9]
            return %y
        }""",
    ],
    ids=["none", "activation", "casts and scale", "windows", "beside the epilogue"],
)
def test_prologues(text: str) -> None:
    one_kernel(text)


def test_an_operand_that_is_an_output_is_made_once_before_the_product() -> None:
    run = check(
        """graph @kept(%x: f32[7, 5], %w: f32[5, 9]) {
            %a = tanh(%x) : f32[7, 5]
            %y = dot(%a, %w) {contract=[1]x[0]} : f32[7, 9]
            return %y, %a
        }""",
        slack=4,
    )
    assert group_kinds(run.lowered) == ["map", "gemm"]


@pytest.mark.parametrize(
    "dot",
    [
        ("f32[3, 7, 5]", "f32[3, 5, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[3, 7, 9]"),
        ("f32[3, 5, 7]", "f32[3, 9, 5]", "{contract=[1]x[2], batch=[0]x[0]}", "f32[3, 7, 9]"),
        ("f32[7, 3, 5]", "f32[5, 9, 3]", "{contract=[2]x[0], batch=[1]x[2]}", "f32[3, 7, 9]"),
        ("f32[2, 3, 7, 5]", "f32[2, 3, 5, 9]", "{contract=[3]x[2], batch=[0, 1]x[0, 1]}", "f32[2, 3, 7, 9]"),
        ("f32[7, 5, 4]", "f32[4, 5, 9]", "{contract=[1, 2]x[1, 0]}", "f32[7, 9]"),
        ("f32[2, 7, 5]", "f32[5, 3, 4]", "{contract=[2]x[0]}", "f32[2, 7, 3, 4]"),
        ("f32[5]", 'f32[5, 9] parameter "w"', "{contract=[0]x[0]}", "f32[9]"),
        ('f32[7, 5] parameter "w"', "f32[5]", "{contract=[1]x[0]}", "f32[7]"),
        ("f32[7]", "f32[9]", "{contract=[]x[]}", "f32[7, 9]"),
        ("f64[7, 5]", "f64[5, 9]", "{contract=[1]x[0]}", "f64[7, 9]"),
        ("i32[7, 5]", "i32[5, 9]", "{contract=[1]x[0]}", "i32[7, 9]"),
        ("f16[7, 5]", "f16[5, 9]", "{contract=[1]x[0], dtype=f32}", "f32[7, 9]"),
        ("bf16[7, 5]", "bf16[5, 9]", "{contract=[1]x[0]}", "bf16[7, 9]"),
    ],
    ids=str,
)
def test_contractions(dot: Dot) -> None:
    one_kernel(dot_program(dot))


@pytest.mark.parametrize(
    ("x", "w"),
    [("[1, 7]", "[1, 5]"), ("[6, 1]", "[12, 1]"), ("[0, 1]", "[9, 1]"), ("[5, 1]", "[0, 0]"), ("[-5, 1]", "[9, -1]")],
)
def test_operands_with_strides(x: str, w: str) -> None:
    text = product("%y = tanh(%h) : f32[7, 9]").replace("f32[7, 5],", f"f32[7, 5] strides={x},")
    one_kernel(text.replace("%w: f32[5, 9])", f"%w: f32[5, 9] strides={w})"))


def test_results_with_strides() -> None:
    text = product("%y = tanh(%h) : f32[7, 9]", returns="%y strides=[1, 7], %h strides=[18, 2]")
    one_kernel(text.replace("%h strides=[18, 2]", "%h"))


@pytest.mark.parametrize("kept", ["", ' static "w"'], ids=["read in place", "kept packed"])
def test_products_of_one_operand_are_one_kernel(kept: str) -> None:
    weights = ", ".join(f"%{name}: f32[9, 5]{kept.replace('w', name)}" for name in "abc")
    text = f"""graph @qkv(%x: f32[7, 5], {weights}, %d: f32[9]) {{
        %q = linear(%x, %a, %d) : f32[7, 9]
        %k = linear(%x, %b) : f32[7, 9]
        %v = linear(%x, %c) : f32[7, 9]
        %g = silu(%q) : f32[7, 9]
        %u = mul(%g, %k) : f32[7, 9]
        return %u, %v
    }}"""
    one_kernel(text)


def test_products_of_different_shapes_stay_apart() -> None:
    text = """graph @two(%x: f32[7, 5], %a: f32[5, 9], %b: f32[5, 4]) {
        %y = dot(%x, %a) {contract=[1]x[0]} : f32[7, 9]
        %z = dot(%x, %b) {contract=[1]x[0]} : f32[7, 4]
        return %y, %z
    }"""
    assert group_kinds(check(text, slack=4).lowered) == ["gemm", "gemm"]


def test_a_row_kernel_takes_the_epilogue_s_result() -> None:
    """The residual is added by the product; the norm reads the sum, which is made once."""
    text = product(
        "%s = add(%h, %r) : f32[7, 9]",
        "%y = layer_norm(%s) {axes=[1], eps=1e-5} : f32[7, 9]",
        inputs="%r: f32[7, 9]",
        returns="%y, %s",
    )
    run = check(text, slack=4)
    assert group_kinds(run.lowered) == ["gemm", "row"]
    assert [len(op.results) for op in run.lowered.graph.ops] == [1, 1]


def test_what_reads_the_product_at_other_points_is_another_kernel() -> None:
    text = """graph @symmetric(%x: f32[7, 5], %w: f32[5, 7]) {
        %h = dot(%x, %w) {contract=[1]x[0]} : f32[7, 7]
        %t = permute(%h) {permutation=[1, 0]} : f32[7, 7]
        %y = add(%h, %t) : f32[7, 7]
        return %y
    }"""
    run = check(text, slack=4)
    assert run.kernels == ["gemm", "map"]
    assert "it reads %h and %t at different points" in reasons(run.lowered)


def test_an_op_that_also_waits_for_a_reduction_of_the_product() -> None:
    text = product(
        "%m = reduce_max(%h) {axes=[1]} : f32[7]",
        "%k = reshape(%m) : f32[7, 1]",
        "%y = sub(%h, %k) : f32[7, 9]",
    )
    run = check(text, slack=4)
    assert run.kernels == ["gemm", "row"]
    assert "it also reads a value that another kernel makes from this one" in reasons(run.lowered)


def test_a_producer_with_another_reader_is_not_made_twice() -> None:
    text = """graph @shared(%x: f32[7, 5], %w: f32[5, 9]) {
        %a = tanh(%x) : f32[7, 5]
        %y = dot(%a, %w) {contract=[1]x[0]} : f32[7, 9]
        %m = reduce_sum(%a) {axes=[0]} : f32[5]
        return %y, %m
    }"""
    assert "gemm" in check(text, slack=4).kernels


@pytest.mark.parametrize("sizes", [(0, 5, 9), (7, 0, 9), (7, 5, 0)])
def test_empty_axes(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    text = f"""graph @empty(%x: f32[{m}, {k}], %w: f32[{k}, {n}], %b: f32[{n}]) {{
        %h = dot(%x, %w) {{contract=[1]x[0]}} : f32[{m}, {n}]
        %y = add(%h, %b) : f32[{m}, {n}]
        return %y
    }}"""
    assert "gemm" not in check(text).kernels


def test_integers_without_a_kernel_run_in_the_interpreter() -> None:
    text = product("%y = add(%h, %b) : f32[7, 9]", inputs="%b: f32[9]").replace("f32", "i64")
    run = check(text)
    assert run.calls == ["fusec.interpret"]
    assert run.kernels == ["map"]
    assert "no matmul of i64 on this target" in reasons(run.lowered)


def test_a_norm_squares_what_a_gpu_product_stored() -> None:
    """The residual sum goes to memory once, in its own type; on a CPU the epilogue goes on with what it has."""
    text = """graph @g(%x: bf16[16, 32], %w: bf16[32, 64], %r: bf16[16, 64]) {
  %h = dot(%x, %w) {contract=[1]x[0]} : bf16[16, 64]
  %s = add(%r, %h) : bf16[16, 64]
  %f = cast(%s) : f32[16, 64]
  %m = mul(%f, %f) : f32[16, 64]
  %t = reduce_sum(%m) {axes=[1]} : f32[16]
  %k = reshape(%t) : f32[16, 1]
  %n = mul(%f, %k) : f32[16, 64]
  return %n, %s
}"""
    lowered = lower(parse(text), "cuda:sm_90", check=True)
    assert group_kinds(lowered) == ["gemm", "row"]
    assert "%s = fused(%x, %w, %r) gemm @s" in lowered.stages["fuse"]
    assert [slot.name for slot in lowered.program.slots if slot.kind == "workspace"] == []


def test_a_product_reads_an_epilogue_s_result_from_memory() -> None:
    """Its operands come by copies, so the cast is not left to it."""
    text = """graph @g(%x: f32[16, 32], %w: f32[32, 64], %v: bf16[64, 16]) {
  %h = dot(%x, %w) {contract=[1]x[0]} : f32[16, 64]
  %c = cast(%h) : bf16[16, 64]
  %y = dot(%c, %v) {contract=[1]x[0]} : bf16[16, 16]
  return %y
}"""
    assert group_kinds(lower(parse(text), "cuda:sm_90", check=True)) == ["gemm", "gemm"]


def test_a_bias_of_a_half_type_is_widened_where_it_is_added() -> None:
    text = """graph @linear(%x: bf16[7, 5], %w: bf16[5, 9], %b: bf16[9]) {
        %h = dot(%x, %w) {contract=[1]x[0], dtype=f32} : f32[7, 9]
        %c = cast(%b) : f32[9]
        %y = add(%h, %c) : f32[7, 9]
        return %y
    }"""
    one_kernel(text)


def test_a_half_value_is_stored_once_for_those_who_read_it_in_f32() -> None:
    """Readers of the half value and of its cast see the same digits, and less goes through memory."""
    text = """graph @product(%x: bf16[7, 5], %w: bf16[5, 9]) {
      %h = dot(%x, %w) {contract=[1]x[0]} : bf16[7, 9]
      %f = cast(%h) : f32[7, 9]
      %m = reduce_max(%f) {axes=[1]} : f32[7]
      %k = reshape(%m) : f32[7, 1]
      %c = cast(%k) : bf16[7, 1]
      %y = sub(%h, %c) : bf16[7, 9]
      return %y
    }"""
    lowered = check(text, slack=4).lowered
    assert group_kinds(lowered) == ["gemm", "row"]
    assert "%h = fused(%x, %w)" in lowered.stages["fuse"]


def test_a_sum_of_matmuls_is_the_last_ones() -> None:
    """Each adds to what those before it made: none is kept until the end."""
    text = """graph @g(%a: f32[64, 32], %b: f32[32, 48], %c: f32[64, 40], %d: f32[40, 48], %e: f32[64, 24],
                       %f: f32[24, 48]) {
      %x = dot(%a, %b) {contract=[1]x[0]} : f32[64, 48]
      %y = dot(%c, %d) {contract=[1]x[0]} : f32[64, 48]
      %s = add(%x, %y) : f32[64, 48]
      %z = dot(%e, %f) {contract=[1]x[0]} : f32[64, 48]
      %t = add(%s, %z) : f32[64, 48]
      return %t
    }"""
    graph = fuse(parse(text), blocked=True)
    bodies = [op.attributes.body for op in graph.ops if isinstance(op.attributes, FusedAttributes)]
    assert [[op.name for op in body.ops] for body in bodies] == [["dot"], ["dot", "add"], ["dot", "add"]]
