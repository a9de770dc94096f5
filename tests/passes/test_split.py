"""Large reductions of few rows are made of partial ones; the rest are left whole."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check, reductions

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes import split
from fusec.passes.canonicalize import canonicalize


def reduction(shape: list[int], axes: list[int], name: str = "reduce_sum", dtype: str = "f32") -> Graph:
    kept = [n for a, n in enumerate(shape) if a not in axes]
    return parse(f"graph @g(%x: {dtype}{shape}) {{\n%y = {name}(%x) {{axes={axes}}} : {dtype}{kept}\nreturn %y\n}}")


def text(graph: Graph) -> str:
    return "\n".join(line.strip() for line in str(graph).splitlines()[1:-2])


def test_one_long_row() -> None:
    after = split.split_reductions(reduction([1 << 20], [0]), threads=2)
    assert text(after) == (
        "%y_apart = reshape(%x) : f32[16, 65536]\n"
        "%y_partial = reduce_sum(%y_apart) {axes=[1], dtype=f64} : f64[16]\n"
        "%y_of_parts = reduce_sum(%y_partial) {axes=[0]} : f64[]\n"
        "%y = cast(%y_of_parts) : f32[]"
    )


def test_columns_of_a_tall_matrix() -> None:
    after = split.split_reductions(reduction([1 << 16, 24], [0]), threads=2)
    assert text(after) == (
        "%y_apart = reshape(%x) : f32[16, 4096, 24]\n"
        "%y_partial = reduce_sum(%y_apart) {axes=[1], dtype=f64} : f64[16, 24]\n"
        "%y_of_parts = reduce_sum(%y_partial) {axes=[0]} : f64[24]\n"
        "%y = cast(%y_of_parts) : f32[24]"
    )


def test_what_does_not_divide_leaves_a_rest() -> None:
    after = split.split_reductions(reduction([4194319], [0]), threads=2)
    assert text(after) == (
        "%y_part = slice(%x) {starts=[0], stops=[4194304], steps=[1]} : f32[4194304]\n"
        "%y_apart = reshape(%y_part) : f32[16, 262144]\n"
        "%y_partial = reduce_sum(%y_apart) {axes=[1], dtype=f64} : f64[16]\n"
        "%y_of_parts = reduce_sum(%y_partial) {axes=[0]} : f64[]\n"
        "%y_part_1 = slice(%x) {starts=[4194304], stops=[4194319], steps=[1]} : f32[15]\n"
        "%y_rest = reduce_sum(%y_part_1) {axes=[0], dtype=f64} : f64[]\n"
        "%y_add = add(%y_of_parts, %y_rest) : f64[]\n"
        "%y = cast(%y_add) : f32[]"
    )


@pytest.mark.parametrize(
    ("shape", "axes", "threads"),
    [
        ([1 << 20], [0], 1),
        ([1 << 18], [0], 2),
        ([2, 1 << 19], [1], 2),
        ([1 << 10, 1 << 10], [1], 8),
        ([1 << 14, 128], [0], 2),
        ([1048583], [0], 2),
    ],
    ids=["one thread", "small", "a row for each thread", "many rows", "columns for each thread", "prime"],
)
def test_left_whole(shape: list[int], axes: list[int], threads: int) -> None:
    graph = reduction(shape, axes)
    assert split.split_reductions(graph, threads) is graph


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ([640], [0]),
        ([641], [0]),
        ([5, 160], [0, 1]),
        ([160, 5], [0, 1]),
        ([3, 320, 2], [0, 1]),
        ([320, 3, 2], [0, 2]),
        ([97, 7], [0]),
    ],
    ids=str,
)
def test_the_numbers_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: list[int], axes: list[int]
) -> None:
    monkeypatch.setattr(split, "SERIAL_ELEMENTS", 64)
    monkeypatch.setattr(split, "UNEVEN_ELEMENTS", 64)
    monkeypatch.setattr(split, "PART_ELEMENTS", 8)
    graph = reduction(shape, axes, name, "i32")
    after = split.split_reductions(graph, threads=4)
    assert len(after.ops) > 1
    data = np.random.default_rng(0).integers(-9, 10, shape).astype(np.int32)
    np.testing.assert_array_equal(interpret(after, [data])[0], interpret(graph, [data])[0])


def test_any_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "SERIAL_ELEMENTS", 64)
    monkeypatch.setattr(split, "UNEVEN_ELEMENTS", 64)
    monkeypatch.setattr(split, "PART_ELEMENTS", 8)
    for name, data in (("reduce_any", np.zeros(641, np.bool_)), ("reduce_all", np.ones(641, np.bool_))):
        after = split.split_reductions(reduction([641], [0], name, "bool"), threads=4)
        assert bool(interpret(after, [data])[0]) is (name == "reduce_all")
        data[640] = not data[640]
        assert bool(interpret(after, [data])[0]) is (name == "reduce_any")


def test_the_parts_are_one_kernel_with_what_makes_them() -> None:
    run = check(
        """graph @loss(%x: f32[2048, 512], %y: f32[2048, 512]) {
        %d = sub(%x, %y) : f32[2048, 512]
        %s = mul(%d, %d) : f32[2048, 512]
        %m = mean(%s) {axes=[0, 1]} : f32[]
        return %m
    }""",
        slack=8,
    )
    assert run.kernels == ["row", "row"]
    assert max(s.type.size for s in run.lowered.program.slots if s.kind == "workspace") <= 128


def blocks(shape: list[int], axes: list[int]) -> list[str]:
    """The shapes of what is reduced, one reduction after another, for a GPU of 132 multiprocessors."""
    after = split.split_for_blocks(reduction(shape, axes), 132)
    return [str(op.operands[0].type) for op in after.ops if op.definition.kind == "reduce"]


def test_parts_of_a_gpu_are_rows_that_a_block_holds() -> None:
    assert blocks([10**8], [0]) == ["f32[10000, 10000]", "f32[10000]"]
    assert blocks([4096, 8192], [1]) == ["f32[4096, 8192]"]


def test_prime_lengths_are_shared_on_a_gpu() -> None:
    first, joined, rest = blocks([4 * 10**6 + 3], [0])
    assert (first, joined, rest) == ("f32[488, 8196]", "f32[488]", "f32[355]")
    assert blocks([5 * 10**5 + 9], [0]) == ["f32[500009]"]


def test_columns_of_a_gpu_are_shared_among_blocks() -> None:
    assert blocks([16384, 1024], [0]) == ["f32[16, 1024, 1024]", "f32[16, 1024]"]
    assert blocks([16384, 8192], [0]) == ["f32[16384, 8192]"]


def test_few_columns_are_put_side_by_side() -> None:
    first, *rest = blocks([10**7, 3], [0])
    assert first.endswith(", 80, 3]")
    assert rest[-1] == "f32[80, 3]"
    assert blocks([10**7 + 19, 3], [0])[-1] != "f32[80, 3]"


def test_reductions_that_need_each_other_stay_whole_longer() -> None:
    text = """graph @g(%x: f32[8, ROW]) {
  %y = softmax(%x) {axis=1} : f32[8, ROW]
  return %y
}"""
    for length, count in ((60000, 2), (128256, 4)):
        graph = canonicalize(parse(text.replace("ROW", str(length))))
        after = split.split_for_blocks(graph, 132)
        assert sum(op.definition.kind == "reduce" for op in after.ops) == count


def test_reductions_with_a_product_between_them_do_not_need_each_other() -> None:
    """Squeeze and excite in one block, and in the next of the same size."""
    text = """graph @g(%x: bf16[64, 3136, 168], %w: bf16[168, 168]) {
  %f = cast(%x) : f32[64, 3136, 168]
  %s = reduce_sum(%f) {axes=[1]} : f32[64, 168]
  %c = cast(%s) : bf16[64, 168]
  %g = dot(%c, %w) {contract=[1]x[0]} : bf16[64, 168]
  %r = reshape(%g) : bf16[64, 1, 168]
  %y = mul(%x, %r) : bf16[64, 3136, 168]
  %h = cast(%y) : f32[64, 3136, 168]
  %u = reduce_sum(%h) {axes=[1]} : f32[64, 168]
  return %u
}"""
    after = split.split_for_blocks(parse(text), 132)
    assert len(reductions(after)) == 4


def test_what_is_cast_under_a_view_is_read_in_its_own_dtype() -> None:
    """Blocks of 64 columns of 16 bits, not of 32, are too few."""
    text = """graph @g(%x: bf16[64, 56, 56, 168]) {
  %f = cast(%x) : f32[64, 56, 56, 168]
  %r = reshape(%f) : f32[64, 3136, 168]
  %s = reduce_sum(%r) {axes=[1]} : f32[64, 168]
  return %s
}"""
    assert len(reductions(split.split_for_blocks(parse(text), 132))) == 2


def test_shared_reductions_give_the_same() -> None:
    for shape, axes in (([2 * 10**6, 3], [0]), ([3, 50021, 40], [1]), ([4 * 10**6 + 3], [0])):
        check(reduction(shape, axes), target="cuda:sm_90", slack=4)
