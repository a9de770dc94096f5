"""A product with one row, or one column, is a sum of products along memory; those of weights, and others, stay."""

from __future__ import annotations

import pytest
from programs import Dot, check, dot_program, group_kinds

from fusec.ir.parse import parse
from fusec.passes.vectors import open_vectors


@pytest.mark.parametrize(
    "dot",
    [
        ("f32[3, 1, 5]", "f32[3, 5, 1]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[3, 1, 1]"),
        ("f32[2, 3, 1, 70]", "f32[2, 3, 9, 70]", "{contract=[3]x[3], batch=[0, 1]x[0, 1]}", "f32[2, 3, 1, 9]"),
        ("f32[2, 3, 1, 300]", "f32[2, 3, 300, 70]", "{contract=[3]x[2], batch=[0, 1]x[0, 1]}", "f32[2, 3, 1, 70]"),
        ("f32[2, 9, 5]", "f32[2, 5, 1]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[2, 9, 1]"),
        ("f32[9, 3, 5]", "f32[5, 3]", "{contract=[2]x[0], batch=[1]x[1]}", "f32[3, 9]"),
        ("f32[4, 5, 3]", "f32[5, 3, 9, 4]", "{contract=[0, 1]x[3, 0], batch=[2]x[1]}", "f32[3, 9]"),
        ("f32[2, 3, 5]", "f32[3, 9, 2, 5]", "{contract=[2]x[3], batch=[0, 1]x[2, 0]}", "f32[2, 3, 9]"),
        ("f64[3, 1, 5]", "f64[3, 5, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "f64[3, 1, 9]"),
        ("bf16[3, 1, 65]", "bf16[3, 65, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "bf16[3, 1, 9]"),
        ("f16[3, 1, 65]", "f16[3, 9, 65]", "{contract=[2]x[2], batch=[0]x[0], dtype=f32}", "f32[3, 1, 9]"),
        ("f32[3, 1, 0]", "f32[3, 0, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[3, 1, 9]"),
        ("f32[1, 5]", "f32[5, 9]", "{contract=[1]x[0]}", "f32[1, 9]"),
        ("f32[7, 300]", "f32[300]", "{contract=[1]x[0]}", "f32[7]"),
        ("f32[300, 7]", "f32[300, 1]", "{contract=[0]x[0]}", "f32[7, 1]"),
        ("f32[300]", "f32[300]", "{contract=[0]x[0]}", "f32[]"),
        ("f32[4, 5]", "f32[5, 4]", "{contract=[0, 1]x[1, 0]}", "f32[]"),
        ("bf16[7, 65]", "bf16[65]", "{contract=[1]x[0]}", "bf16[7]"),
        ('f32[5] parameter "v"', 'f32[5] parameter "w"', "{contract=[0]x[0]}", "f32[]"),
    ],
    ids=str,
)
def test_a_vector(dot: Dot) -> None:
    run = check(dot_program(dot), slack=4)
    assert "= dot(" not in run.lowered.stages["vectors"]
    assert "gemm" not in group_kinds(run.lowered)


@pytest.mark.parametrize(
    "dot",
    [
        ("f32[1, 5]", 'f32[5, 9] parameter "w"', "{contract=[1]x[0]}", "f32[1, 9]"),
        ("f32[1, 5]", 'f32[5, 9] static "w"', "{contract=[1]x[0]}", "f32[1, 9]"),
        ("f32[1]", "f32[9]", "{contract=[]x[]}", "f32[1, 9]"),
        ("f32[3, 2, 5]", "f32[3, 5, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[3, 2, 9]"),
        ("i32[3, 1, 5]", "i32[3, 5, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "i32[3, 1, 9]"),
    ],
    ids=["weights", "weights kept packed", "outer", "two rows", "integers"],
)
def test_others_stay_products(dot: Dot) -> None:
    assert group_kinds(check(dot_program(dot), slack=4).lowered) == ["gemm"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_one_query_reads_keys_and_values_as_they_lie(dtype: str) -> None:
    text = f"""graph @token(%q: {dtype}[12, 1, 64], %k: {dtype}[12, 77, 64], %v: {dtype}[12, 77, 64]) {{
        %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {dtype}[12, 1, 77]
        %z = mul(%s, {dtype}(0.125)) : {dtype}[12, 1, 77]
        %p = softmax(%z) {{axis=2}} : {dtype}[12, 1, 77]
        %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : {dtype}[12, 1, 64]
        return %o
    }}"""
    run = check(text, slack=4)
    assert group_kinds(run.lowered) == ["row", "row", "row"]


def test_on_a_gpu_they_stay_products() -> None:
    from fusec.ir.parse import parse
    from fusec.passes.pipeline import graph_passes

    text = dot_program(("f32[3, 1, 5]", "f32[3, 5, 9]", "{contract=[2]x[1], batch=[0]x[0]}", "f32[3, 1, 9]"))
    graph = parse(text)
    assert graph_passes("cuda:sm_90")["vectors"](graph) is graph


def test_views_of_weights_stay_packed() -> None:
    text = """graph @linear(%x: f32[1, 5], %w: f32[9, 5] parameter "w") {
        %t = permute(%w) {permutation=[1, 0]} : f32[5, 9]
        %z = dot(%x, %t) {contract=[1]x[0]} : f32[1, 9]
        return %z
    }"""
    assert group_kinds(check(text, slack=4).lowered) == ["gemm"]


def test_a_large_matrix_that_is_read_across() -> None:
    """Sums across more than the caches hold are slow; along memory they are not."""

    def opened(dot: Dot) -> bool:
        return "dot" not in {op.name for op in open_vectors(parse(dot_program(dot))).ops}

    for dtype, k in (("f32", 2048), ("bf16", 4096)):
        x, rows, columns = f"{dtype}[1, {k}]", f"{dtype}[{k}, 1024]", f"{dtype}[1025, {k}]"
        assert opened((x, rows, "{contract=[1]x[0]}", f"{dtype}[1, 1024]"))
        assert not opened((x, rows.replace("1024", "1025"), "{contract=[1]x[0]}", f"{dtype}[1, 1025]"))
        assert opened((x, columns, "{contract=[1]x[1]}", f"{dtype}[1, 1025]"))
