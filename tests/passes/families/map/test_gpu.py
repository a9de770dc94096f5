"""Map kernels on GPUs: transpositions in tiles, everything else in runs of neighbours."""

from __future__ import annotations

import re

import pytest
from programs import check


def permuted(shape: list[int], permutation: list[int], dtype: str = "f32") -> str:
    result = [shape[p] for p in permutation]
    return f"""graph @g(%x: {dtype}{shape}, %b: {dtype}[{result[-1]}]) {{
  %t = permute(%x) {{permutation={permutation}}} : {dtype}{result}
  %y = add(%t, %b) : {dtype}{result}
  return %y
}}"""


def iterators(text: str) -> list[str]:
    """The iterators of the store."""
    run = check(text, target="cuda:sm_90")
    assert run.kernels == ["map"]
    found = re.search(r"store .* for (.*)", run.lowered.stages["tile"])
    assert found is not None
    return re.findall(r"(\w+):", found.group(1))


@pytest.mark.parametrize("shape", [[16, 16], [100, 70], [1000, 3], [3, 1000], [65, 129]])
def test_a_transposition_is_made_in_tiles(shape: list[int]) -> None:
    assert iterators(permuted(shape, [1, 0])) == ["j", "i"]


@pytest.mark.parametrize("permutation", [[0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
def test_permutations_that_move_the_last_axis(permutation: list[int], dtype: str) -> None:
    assert iterators(permuted([9, 33, 40], permutation, dtype)) == ["j", "i"]


def test_what_lies_along_the_result_is_read_in_runs() -> None:
    assert iterators(permuted([5, 33, 40], [1, 0, 2])) == ["i"]
    assert iterators(permuted([4, 5], [1, 0])) == ["i"]


def test_a_turned_result_of_rows_that_are_not() -> None:
    text = permuted([40, 50], [1, 0]).replace("return %y", "%z = mul(%x, %x) : f32[40, 50]\n  return %z, %y")
    run = check(text, target="cuda:sm_90")
    assert "map" in run.kernels


def test_a_small_turned_operand_decides_nothing() -> None:
    text = """graph @g(%x: f32[20, 16, 16], %w: f32[16, 16]) {
  %t = permute(%w) {permutation=[1, 0]} : f32[16, 16]
  %y = mul(%x, %t) : f32[20, 16, 16]
  return %y
}"""
    assert iterators(text) == ["i"]


def test_halves_of_a_join_are_computed_by_one_block() -> None:
    text = """graph @g(%x: f32[9, 64]) {
  %a = slice(%x) {starts=[0, 0], stops=[9, 32], steps=[1, 1]} : f32[9, 32]
  %b = slice(%x) {starts=[0, 32], stops=[9, 64], steps=[1, 1]} : f32[9, 32]
  %d = sub(%a, %b) : f32[9, 32]
  %e = add(%a, %b) : f32[9, 32]
  %y = concat(%d, %e) {axis=1} : f32[9, 64]
  return %y
}"""
    tile = check(text, target="cuda:sm_90").lowered.stages["tile"]
    assert tile.count("store") == 2
    assert "select" not in tile


def test_unequal_parts_of_a_join_are_computed_where_they_are() -> None:
    text = """graph @g(%x: f32[9, 16], %y: f32[9, 33]) {
  %z = concat(%x, %y) {axis=1} : f32[9, 49]
  return %z
}"""
    tile = check(text, target="cuda:sm_90").lowered.stages["tile"]
    assert tile.count("store") == 1


PADDED = """graph @g(%x: DTYPE[2, 300, 20, CHANNELS], %b: f32[CHANNELS]) {
  %f = cast(%x) : f32[2, 300, 20, CHANNELS]
  %s = add(%f, %b) : f32[2, 300, 20, CHANNELS]
  %c = cast(%s) : DTYPE[2, 300, 20, CHANNELS]
  %y = pad(%c, DTYPE(0.0)) {low=[0, 1, 1, 0], high=[0, 1, 1, 0]} : DTYPE[2, 302, 22, CHANNELS]
  return %y
}"""


@pytest.mark.parametrize(("dtype", "channels", "vector"), [("bf16", 56, 8), ("f16", 64, 8), ("bf16", 60, 1)])
def test_the_place_of_a_vector_is_computed_once(dtype: str, channels: int, vector: int) -> None:
    """Where one is along the channels alone."""
    text = PADDED.replace("DTYPE", dtype).replace("CHANNELS", str(channels))
    found = iterators(text)
    assert found == (["i", "j"] if vector > 1 else ["i"])


def test_few_elements_and_few_divisions_have_no_vectors() -> None:
    text = PADDED.replace("DTYPE", "bf16").replace("CHANNELS", "64")
    few = text.replace("300", "9").replace("302", "11")
    assert iterators(few) == ["i"]
    plain = """graph @g(%x: bf16[12000, 64], %b: bf16[64]) {
  %y = add(%x, %b) : bf16[12000, 64]
  return %y
}"""
    assert iterators(plain) == ["i"]


def test_more_blocks_than_a_launch_has_on_its_second_axis() -> None:
    """One block for each place of the outer axes: in Triton's text they are counted on one axis."""
    from fusec.codegen.triton.source import module_source
    from fusec.ir.parse import parse
    from fusec.passes.pipeline import lower
    from fusec.target.gpu import gpu_target

    program = lower(parse(permuted([70000, 40, 200], [0, 2, 1])), "cuda:sm_90").program
    (kernel,) = module_source(program.kernels, gpu_target("cuda:sm_90")).kernels
    assert kernel.grid[1:] == (1, 1)
    assert kernel.grid[0] % 70000 == 0
