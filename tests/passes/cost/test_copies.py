"""Narrow copies are counted by the blocks that turn in registers, others element by element."""

from __future__ import annotations

import pytest
from tile_harness import buffer, iters, load, sym

from fusec.ir.types import bf16, f32, i8
from fusec.passes.cost.copies import copying
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Map

ZEN = cpu_target("cpu:znver5")
Q, R, U = sym("q", 32), sym("r", 64), sym("u", 2)


def copy(dtype=bf16, *, transposed: bool) -> Map:
    """Rows of a matrix, as they are or transposed."""
    source, target = buffer("source", dtype, (32, 64)), buffer("target", dtype, (64, 32) if transposed else (32, 64))
    at = (R, Q) if transposed else (Q, R)
    return Map(iters((R, 64), (Q, 32)) if transposed else iters((Q, 32), (R, 64)), target, at, load(source, Q, R))


def pairs(*, rows: bool) -> Map:
    """Pairs of a matmul's operand: of two neighbours in a row of the source, or of two rows."""
    target = buffer("target", bf16, (32, 64, 2))
    source = buffer("source", bf16, (64, 64))
    value = load(source, Q * 2 + U, R) if rows else load(source, R, Q * 2 + U)
    return Map(iters((Q, 32), (R, 64), (U, 2)), target, (Q, R, U), value)


def test_turned_rows_of_16_bits_are_joined_to_groups() -> None:
    assert copying(copy(transposed=True), [64, 32], ZEN) == 8 * 32 * 64 / 32
    assert copying(copy(transposed=False), [32, 64], ZEN) is None


@pytest.mark.parametrize("dtype", [f32, i8])
def test_other_turned_copies_are_computed_element_by_element(dtype) -> None:
    assert copying(copy(dtype, transposed=True), [64, 32], ZEN) is None


def test_pairs_travel_as_words() -> None:
    """A vector of 16 pairs: two rows interleave in four or five instructions, a transposed block takes six for each."""
    vectors = 32 * 64 / 16
    assert 4 * vectors <= copying(pairs(rows=True), [32, 64, 2], ZEN) <= 5 * vectors
    assert copying(pairs(rows=False), [32, 64, 2], ZEN) == 6 * vectors


def test_without_avx512_nothing_turns_in_registers() -> None:
    assert copying(pairs(rows=True), [32, 64, 2], cpu_target("cpu:x86-64-v3")) is None
