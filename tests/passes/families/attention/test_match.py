"""Attention is found by structure, whatever happens to the scores, and declined with a reason where it can't be."""

from __future__ import annotations

import numpy as np
import pytest
from attentions import beside_a_sink
from programs import Run, check, group_kinds, random_inputs, reasons

from fusec.ir.parse import parse
from fusec.passes.families.attention.elements import attention_parts

INPUTS = "%q: f32[2, 3, 9, 6], %k: f32[2, 3, 11, 6], %v: f32[2, 3, 11, 5]"
SCORES = "%s = dot(%q, %k) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 3, 9, 11]"
SOFTMAX = "%p = softmax(%z) {axis=3} : f32[2, 3, 9, 11]"
VALUES = "%o = dot(%p, %v) {contract=[3]x[2], batch=[0, 1]x[0, 1]} : f32[2, 3, 9, 5]"
SCALED = "%z = mul(%s, f32(0.3)) : f32[2, 3, 9, 11]"


def attention(
    change: str = SCALED,
    *,
    inputs: str = INPUTS,
    scores: str = SCORES,
    softmax: str = SOFTMAX,
    values: str = VALUES,
    returns: str = "%o",
) -> str:
    return f"graph @attention({inputs}) {{\n{scores}\n{change}\n{softmax}\n{values}\nreturn {returns}\n}}"


def fused(text: str, **options: object) -> Run:
    """Checks the numbers, and that all of it is one kernel."""
    run = check(text, slack=4, **options)  # type: ignore[arg-type]
    assert group_kinds(run.lowered) == ["attention"], reasons(run.lowered)
    assert run.kernels == ["attention"]
    return run


def declined(text: str, reason: str) -> None:
    run = check(text, slack=4)
    assert "attention" not in run.kernels
    assert any(reason in r for r in reasons(run.lowered)), reasons(run.lowered)


def change(*lines: str) -> str:
    """Lines that lead from %s to %z; the shape is added."""
    return "\n".join(f"{line} : f32[2, 3, 9, 11]" for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        attention(change("%z = mul(%s, f32(0.3))")),
        attention(change("%z = copy(%s)")),
        attention(
            "%b = mul(%q, f32(0.4)) : f32[2, 3, 9, 6]\n%s = dot(%b, %k) {contract=[3]x[3], batch=[0, 1]x[0, 1]}"
            " : f32[2, 3, 9, 11]\n%z = tanh(%s) : f32[2, 3, 9, 11]",
            scores="",
        ),
        attention(change("%c = mul(%s, f32(0.2))", "%t = tanh(%c)", "%z = mul(%t, f32(5.0))")),
        attention(change("%c = mul(%s, f32(0.2))", "%z = add(%c, %b)"), inputs=f"{INPUTS}, %b: f32[3, 9, 11]"),
        attention(change("%z = sub(%s, %b)"), inputs=f"{INPUTS}, %b: f32[2, 1, 1, 11]"),
        attention(change("%z = select(%m, %s, f32(-inf))"), inputs=f"{INPUTS}, %m: bool[2, 1, 9, 11]"),
        attention(change("%z = select(%m, f32(-3.4028235e38), %s)"), inputs=f"{INPUTS}, %m: bool[9, 11]"),
    ],
    ids=["scale", "none", "scaled queries", "soft cap", "bias", "row bias", "mask", "lowest fill"],
)
def test_changes_of_the_scores(text: str) -> None:
    fused(text)


@pytest.mark.parametrize("text", [attention(), beside_a_sink()], ids=["plain", "sink"])
def test_a_fused_attention_says_which_values_are_its_parts(text: str) -> None:
    stage = fused(text).lowered.stages["fuse"]
    assert "} {product=%" in stage
    again = parse(stage)
    assert str(again) == stage
    (op,) = (op for op in again.ops if op.name == "fused")
    parts = attention_parts(op)
    assert parts.score_dot.name == parts.value_dot.name == "dot"
    assert (parts.sink is not None) == ("sink=" in stage)


def test_alibi_slopes_times_distance() -> None:
    text = attention(
        """%i = iota() {axis=0} : f32[9, 1]
        %j = iota() {axis=1} : f32[1, 11]
        %d = sub(%j, %i) : f32[9, 11]
        %far = mul(%slopes, %d) : f32[3, 9, 11]
        %z = add(%s, %far) : f32[2, 3, 9, 11]""",
        inputs=f"{INPUTS}, %slopes: f32[3, 1, 1]",
    )
    fused(text)


def test_grouped_queries_by_reshape_and_broadcast() -> None:
    text = """graph @grouped(%q: f32[2, 6, 9, 4], %k: f32[2, 2, 11, 4], %v: f32[2, 2, 11, 5]) {
        %k1 = reshape(%k) : f32[2, 2, 1, 11, 4]
        %k2 = broadcast(%k1) : f32[2, 2, 3, 11, 4]
        %k3 = reshape(%k2) : f32[2, 6, 11, 4]
        %v1 = reshape(%v) : f32[2, 2, 1, 11, 5]
        %v2 = broadcast(%v1) : f32[2, 2, 3, 11, 5]
        %v3 = reshape(%v2) : f32[2, 6, 11, 5]
        %s = dot(%q, %k3) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 6, 9, 11]
        %p = softmax(%s) {axis=3} : f32[2, 6, 9, 11]
        %o = dot(%p, %v3) {contract=[3]x[2], batch=[0, 1]x[0, 1]} : f32[2, 6, 9, 5]
        return %o
    }"""
    run = fused(text)
    assert [v.type.static_shape for v in run.lowered.graph.ops[0].operands] == [
        v.type.static_shape for v in run.lowered.graph.inputs
    ]


def test_heads_split_from_and_merged_into_rows() -> None:
    """[tokens, heads * size] in and out, as a transformer's layer has it: no copy is made of any operand."""
    text = """graph @layer(%q: f32[7, 12], %k: f32[8, 12], %v: f32[8, 12]) {
        %q1 = reshape(%q) : f32[7, 3, 4]
        %k1 = reshape(%k) : f32[8, 3, 4]
        %v1 = reshape(%v) : f32[8, 3, 4]
        %q2 = permute(%q1) {permutation=[1, 0, 2]} : f32[3, 7, 4]
        %k2 = permute(%k1) {permutation=[1, 2, 0]} : f32[3, 4, 8]
        %v2 = permute(%v1) {permutation=[1, 0, 2]} : f32[3, 8, 4]
        %s = matmul(%q2, %k2) : f32[3, 7, 8]
        %p = softmax(%s) {axis=2} : f32[3, 7, 8]
        %o = matmul(%p, %v2) : f32[3, 7, 4]
        %o1 = permute(%o) {permutation=[1, 0, 2]} : f32[7, 3, 4]
        %y = reshape(%o1) : f32[7, 12]
        return %y
    }"""
    fused(text)


def test_weights_on_the_right_of_the_second_product() -> None:
    fused(attention(values="%o = dot(%v, %p) {contract=[2]x[3], batch=[0, 1]x[0, 1]} : f32[2, 3, 5, 9]"))


def test_softmax_over_the_queries_axis_of_a_transposed_product() -> None:
    fused(
        attention(
            "%z = mul(%s, f32(0.3)) : f32[2, 3, 11, 9]",
            scores="%s = dot(%k, %q) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 3, 11, 9]",
            softmax="%p = softmax(%z) {axis=2} : f32[2, 3, 11, 9]",
            values="%o = dot(%p, %v) {contract=[2]x[2], batch=[0, 1]x[0, 1]} : f32[2, 3, 9, 5]",
        )
    )


def test_what_follows_at_the_same_points_joins() -> None:
    text = attention(
        values=f"{VALUES}\n%r = add(%o, %x) : f32[2, 3, 9, 5]\n%y = tanh(%r) : f32[2, 3, 9, 5]",
        inputs=f"{INPUTS}, %x: f32[2, 3, 9, 5]",
        returns="%y, %o",
    )
    fused(text)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_with_casts_inside(dtype: str) -> None:
    text = f"""graph @half(%q: {dtype}[3, 9, 6], %k: {dtype}[3, 11, 6], %v: {dtype}[3, 11, 5]) {{
        %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {dtype}[3, 9, 11]
        %c = mul(%s, {dtype}(0.25)) : {dtype}[3, 9, 11]
        %p = softmax(%c) {{axis=2}} : {dtype}[3, 9, 11]
        %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : {dtype}[3, 9, 5]
        return %o
    }}"""
    fused(text)


def test_f64() -> None:
    fused(attention().replace("f32", "f64"))


@pytest.mark.parametrize("fill", ["-inf", "-1e30"])
def test_fully_masked_rows_give_what_the_code_as_written_gives(fill: str) -> None:
    text = attention(change(f"%z = select(%m, %s, f32({fill}))"), inputs=f"{INPUTS}, %m: bool[9, 11]")
    arrays = random_inputs(parse(text))
    arrays[3][4] = False
    arrays[3][0, :-1] = False
    run = fused(text, inputs=arrays)
    assert np.isnan(run.outputs[0][:, :, 4]).all() == (fill == "-inf")
    assert np.isfinite(run.outputs[0][:, :, 0]).all()


def test_rows_without_a_finite_score_of_sdpa() -> None:
    text = """graph @sdpa(%q: f32[2, 9, 6], %k: f32[2, 11, 6], %v: f32[2, 11, 5], %m: bool[9, 11]) {
        %o = sdpa(%q, %k, %v, %m) {causal=false, scale=none, grouped=false} : f32[2, 9, 5]
        return %o
    }"""
    q, k, v, mask = arrays = random_inputs(parse(text))
    mask[4], mask[5], mask[6] = False, np.arange(11) < 7, np.arange(11) < 8
    q[...], k[:, :7, 2], v[1, 2, 3] = abs(q), -np.inf, np.nan
    (out,) = fused(text, inputs=arrays).outputs
    assert (out[0, 4:6] == 0).all()
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1, :, 3]).all()


GUARDED = """
%x = reduce_max(%z) {axes=[3]} : f32[2, 3, 9]
%y = reshape(%x) : f32[2, 3, 9, 1]
%n = eq(%y, f32(-inf)) : bool[2, 3, 9, 1]
%h = select(%n, f32(0.0), %y) : f32[2, 3, 9, 1]
%d = sub(%z, %h) : f32[2, 3, 9, 11]
%e = exp(%d) : f32[2, 3, 9, 11]
%t = reduce_sum(%e) {axes=[3]} : f32[2, 3, 9]
%u = reshape(%t) : f32[2, 3, 9, 1]
%w = eq(%u, f32(0.0)) : bool[2, 3, 9, 1]
%c = select(%w, f32(1.0), %u) : f32[2, 3, 9, 1]
%p = div(%e, %c) : f32[2, 3, 9, 11]"""
"""A softmax whose rows of only -inf give zeros, as the library's attention has it."""


def empty_row() -> list[np.ndarray]:
    q, k, v = random_inputs(parse(attention()))
    q[:, :, 4], k[...] = -np.inf, abs(k)
    return [q, k, v]


def test_guarded_softmax() -> None:
    (out,) = fused(attention(softmax=GUARDED), inputs=empty_row()).outputs
    assert (out[:, :, 4] == 0).all()
    (out,) = fused(attention(), inputs=empty_row()).outputs
    assert np.isnan(out[:, :, 4]).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sub(%z, %h)", "sub(%z, %y)"),
        ("div(%e, %c)", "div(%e, %u)"),
        ("eq(%y, f32(-inf))", "eq(%y, f32(1.0))"),
        ("select(%n, f32(0.0), %y)", "select(%n, f32(2.0), %y)"),
        ("eq(%u, f32(0.0))", "eq(%u, f32(2.0))"),
        ("eq(%u, f32(0.0))", "ne(%u, f32(0.0))"),
        ("select(%w, f32(1.0), %u)", "select(%w, f32(3.0), %u)"),
        ("select(%w, f32(1.0), %u)", "select(%w, %u, f32(1.0))"),
        ("eq(%u, f32(0.0))", "eq(%y, f32(0.0))"),
    ],
)
def test_other_guards_stay_as_they_are(old: str, new: str) -> None:
    assert old in GUARDED
    assert "attention" not in check(attention(softmax=GUARDED.replace(old, new)), empty_row(), slack=4).kernels


def test_nan_and_infinity_in_the_operands() -> None:
    text = attention()
    arrays = random_inputs(parse(text))
    arrays[0][0, 0, 2, 3] = np.nan
    arrays[2][1, 2, 4, 1] = np.inf
    fused(text, inputs=arrays)


# what must not become one loop


def test_scores_that_are_also_an_output() -> None:
    declined(attention(returns="%o, %z"), "%z is also an output")


def test_weights_that_are_also_an_output() -> None:
    declined(attention(returns="%o, %p"), "%p is also an output")


def test_weights_with_a_second_reader() -> None:
    text = attention(
        values=f"{VALUES}\n%n = reduce_sum(%p) {{axes=[2]}} : f32[2, 3, 11]",
        returns="%o, %n",
    )
    declined(text, "%p is also read by reduce_sum")


def test_two_products_in_the_scores() -> None:
    text = attention(
        "%s2 = dot(%r, %k) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 3, 9, 11]\n"
        "%z = add(%s, %s2) : f32[2, 3, 9, 11]",
        inputs=f"{INPUTS}, %r: f32[2, 3, 9, 6]",
    )
    declined(text, "2 dots of the scores' size")


def test_the_second_product_contracts_the_queries() -> None:
    text = """graph @queries(%q: f32[9, 6], %k: f32[11, 6], %v: f32[9, 5]) {
        %s = dot(%q, %k) {contract=[1]x[1]} : f32[9, 11]
        %p = softmax(%s) {axis=1} : f32[9, 11]
        %o = dot(%p, %v) {contract=[0]x[0]} : f32[11, 5]
        return %o
    }"""
    declined(text, "the dot does not contract the softmax's axis")


def test_scores_that_read_the_product_at_two_places() -> None:
    text = """graph @symmetric(%q: f32[9, 6], %k: f32[9, 6], %v: f32[9, 5]) {
        %s = dot(%q, %k) {contract=[1]x[1]} : f32[9, 9]
        %t = permute(%s) {permutation=[1, 0]} : f32[9, 9]
        %z = add(%s, %t) : f32[9, 9]
        %p = softmax(%z) {axis=1} : f32[9, 9]
        %o = dot(%p, %v) {contract=[1]x[0]} : f32[9, 5]
        return %o
    }"""
    declined(text, "the scores read the first dot at more than one position")


def test_a_maximum_of_the_wrong_row_is_no_softmax() -> None:
    text = """graph @wrong(%q: f32[9, 6], %k: f32[9, 6], %v: f32[9, 5]) {
        %s = dot(%q, %k) {contract=[1]x[1]} : f32[9, 9]
        %m = reduce_max(%s) {axes=[1]} : f32[9]
        %d = sub(%s, %m) : f32[9, 9]
        %e = exp(%d) : f32[9, 9]
        %t = reduce_sum(%e) {axes=[1]} : f32[9]
        %t1 = reshape(%t) : f32[9, 1]
        %p = div(%e, %t1) : f32[9, 9]
        %o = dot(%p, %v) {contract=[1]x[0]} : f32[9, 5]
        return %o
    }"""
    run = check(text, slack=4)
    assert "attention" not in run.kernels


def test_keys_permuted_wrongly_are_the_keys_that_are_read() -> None:
    """k of [heads, size, keys] where size equals keys: transposed or not, the numbers follow the code as written."""
    for permutation in ([0, 1, 2], [0, 2, 1]):
        text = f"""graph @square(%q: f32[3, 9, 8], %k: f32[3, 8, 8], %v: f32[3, 8, 5]) {{
            %t = permute(%k) {{permutation={permutation}}} : f32[3, 8, 8]
            %s = matmul(%q, %t) : f32[3, 9, 8]
            %p = softmax(%s) {{axis=2}} : f32[3, 9, 8]
            %o = matmul(%p, %v) : f32[3, 9, 5]
            return %o
        }}"""
        fused(text)


def test_one_key() -> None:
    text = """graph @one(%q: f32[9, 6], %k: f32[1, 6], %v: f32[1, 5]) {
        %s = dot(%q, %k) {contract=[1]x[1]} : f32[9, 1]
        %p = softmax(%s) {axis=1} : f32[9, 1]
        %o = dot(%p, %v) {contract=[1]x[0]} : f32[9, 5]
        return %o
    }"""
    declined(text, "there is only one key")


def test_no_keys() -> None:
    text = """graph @none(%q: f32[9, 6], %k: f32[0, 6], %v: f32[0, 5]) {
        %o = sdpa(%q, %k, %v) {causal=false, scale=none, grouped=false} : f32[9, 5]
        return %o
    }"""
    assert (check(text).outputs[0] == 0).all()


def test_every_query_with_keys_of_its_own() -> None:
    text = """graph @own(%q: f32[5, 9, 6], %k: f32[5, 4, 6], %v: f32[9, 4, 7]) {
        %s = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[5, 9, 4]
        %p = softmax(%s) {axis=2} : f32[5, 9, 4]
        %o = dot(%p, %v) {contract=[2]x[1], batch=[1]x[0]} : f32[9, 5, 7]
        return %o
    }"""
    declined(text, "every query has keys of its own")


@pytest.mark.parametrize("last", ["cast(%b)", "copy(%b)"])
def test_a_product_finishes_the_queries_that_it_makes(last: str) -> None:
    """Bias and rounding are the product's epilogue; what is done to given queries is the attention's."""
    text = f"""graph @layer(%x: f32[9, 8], %w: f32[8, 6], %c: f32[6], %k: f32[11, 6], %v: f32[11, 5]) {{
        %h = dot(%x, %w) {{contract=[1]x[0]}} : f32[9, 6]
        %b = add(%h, %c) : f32[9, 6]
        %q = {last} : f32[9, 6]
        %s = dot(%q, %k) {{contract=[1]x[1]}} : f32[9, 11]
        %p = softmax(%s) {{axis=1}} : f32[9, 11]
        %o = dot(%p, %v) {{contract=[1]x[0]}} : f32[9, 5]
        return %o
    }}"""
    run = check(text, slack=4)
    assert group_kinds(run.lowered) == ["gemm", "attention"]
    product = run.lowered.stages["fuse"].split("attention")[0]
    assert "add(" in product


def pages(queries: int = 1, returns: str = "%o", made: str = "%pool") -> str:
    """Attention to keys that a table of pages names."""
    scores, out = f"f32[2, 3, {queries}, 20]", f"f32[2, 3, {queries}, 8]"
    return f"""graph @pages(%q: f32[2, 3, {queries}, 8], %pool: f32[9, 5, 3, 8], %table: i64[2, 4]) {{
      %low = maximum(%table, i64(1)) : i64[2, 4]
      %at = minimum(%low, i64(8)) : i64[2, 4]
      %w = mul(%pool, f32(2.0)) : f32[9, 5, 3, 8]
      %picked = gather({made}, %at) {{axis=0}} : f32[2, 4, 5, 3, 8]
      %row = reshape(%picked) : f32[2, 20, 3, 8]
      %k = permute(%row) {{permutation=[0, 2, 1, 3]}} : f32[2, 3, 20, 8]
      %s = dot(%q, %k) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {scores}
      %p = softmax(%s) {{axis=3}} : {scores}
      %o = dot(%p, %k) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : {out}
      %total = reduce_sum(%row) {{axes=[1]}} : f32[2, 3, 8]
      return {returns}
    }}"""


def on_a_gpu(text: str) -> Run:
    arrays = random_inputs(parse(text))
    return check(text, arrays, target="cuda:sm_90", slack=4, atol=2e-6)


def test_pages_are_picked_by_the_kernel_that_reads_them() -> None:
    """With the numbers of what is picked; not where the array has to be made."""
    assert on_a_gpu(pages()).kernels == ["attention"]
    assert on_a_gpu(pages(made="%w")).kernels == ["map", "attention"]


def test_pages_that_others_read_too_are_picked_once() -> None:
    assert on_a_gpu(pages(returns="%o, %total")).kernels[0] == "map"


def test_pages_that_many_queries_read_are_picked_once() -> None:
    assert on_a_gpu(pages(queries=1100)).kernels == ["map", "attention"]
