"""What groups take a GPU's lanes and its memory."""

from __future__ import annotations

from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.passes.cost.lanes import INSTRUCTIONS, bytes_read, group_work

ROWS = """graph @f(%x: f32[64, 128], %t: f32[100, 16], %i: i64[8]) {
  %e = exp(%x) : f32[64, 128]
  %s = reduce_sum(%e) {axes=[1]} : f32[64]
  %p = slice(%x) {starts=[0, 0], stops=[64, 4], steps=[1, 1]} : f32[64, 4]
  %g = gather(%t, %i) {axis=0} : f32[8, 16]
  return %s, %p, %g
}"""


def body() -> Graph:
    return parse(ROWS)


def test_ops_and_reduced_elements_are_counted() -> None:
    work = group_work(body())
    assert work.instructions == (INSTRUCTIONS["exp"] + 1) * 64 * 128
    assert work.specials == 64 * 128


def test_what_is_picked_is_read_alone() -> None:
    assert bytes_read(body()) == 4 * 64 * 128 + 4 * 8 * 16 + 8 * 8
    sliced = """graph @f(%x: f32[64, 128]) {
  %p = slice(%x) {starts=[0, 0], stops=[64, 4], steps=[1, 1]} : f32[64, 4]
  %y = neg(%p) : f32[64, 4]
  return %y
}"""
    assert bytes_read(parse(sliced)) == 4 * 64 * 4
