"""Vector instructions of elementwise code: rounding to half types, and what goes with it."""

from __future__ import annotations

import pytest
from tile_harness import buffer, load, sym

from fusec.ir.types import bf16, f16, f32
from fusec.passes.cost.instructions import DIVIDING, EVERY_OTHER, ROUNDING, ROUNDING_BY_HAND, WIDENING, instructions
from fusec.target.cpu import cpu_target
from fusec.tile.scalar import Apply, Const

ZEN, PLAIN = cpu_target("cpu:znver5"), cpu_target("cpu:x86-64-v4")
J = sym("j", 768)
X, HALF = load(buffer("x", f32, (768,)), J), load(buffer("h", bf16, (768,)), J)


def test_bf16_is_rounded_by_the_instruction_only_where_it_is_multiplied() -> None:
    """A load, a store, and the rounding: row kernels of Zen 5 have eight instructions of it, the store among them."""
    assert instructions(X, J, ZEN, bf16) == 2 + ROUNDING_BY_HAND
    assert instructions(X, J, ZEN, bf16, halves=True) == 2 + ROUNDING
    assert instructions(X, J, PLAIN, bf16, halves=True) == 2 + ROUNDING_BY_HAND
    assert instructions(X, J, ZEN, f16) == 2 + ROUNDING


@pytest.mark.parametrize("halves", [False, True])
def test_a_number_that_is_rounded_within_is_widened_again(halves: bool) -> None:
    within = Apply("mul", (Apply("cast", (Apply("cast", (X,), bf16),), f32), X), f32)
    exact = Apply("mul", (X, X), f32)
    more = instructions(within, J, ZEN, f32, halves=halves) - instructions(exact, J, ZEN, f32, halves=halves)
    assert more >= (ROUNDING if halves else ROUNDING_BY_HAND) + WIDENING


def test_the_last_cast_is_the_stores() -> None:
    assert instructions(Apply("cast", (X,), bf16), J, ZEN, bf16) <= 3 + ROUNDING_BY_HAND


def test_copies_of_halves_are_neither_widened_nor_rounded() -> None:
    assert instructions(HALF, J, ZEN, bf16) == 2
    assert instructions(HALF, J, ZEN, f32) == 3


def test_what_is_the_same_on_all_lanes_is_multiplied_by() -> None:
    """On Intel's servers, whose unit is slow. Blocks that are transposed have another divisor in each row."""
    server = cpu_target("cpu:sapphirerapids")
    shared = load(buffer("d", f32, (1,)), 0)

    def by(divisor) -> float:
        return instructions(Apply("div", (X, divisor), f32), J, server, f32)

    assert by(X) == DIVIDING
    assert by(Const(3.0, f32)) == by(shared) < DIVIDING
    row = sym("r", 64)
    transposed = Apply("div", (load(buffer("t", f32, (768, 64)), J, row), load(buffer("n", f32, (64,)), row)), f32)
    assert instructions(transposed, J, server, f32, [row]) == DIVIDING
    assert instructions(transposed, J, ZEN, f32, [row]) < DIVIDING


def test_every_other_element_is_picked_from_two_vectors() -> None:
    def at(step: int) -> float:
        return instructions(load(buffer("x", f32, (4096,)), J * step), J, ZEN, f32)

    assert at(1) + EVERY_OTHER - 1 == at(2) < at(3)


def test_what_the_result_before_has_read_is_there() -> None:
    value = Apply("mul", (X, load(buffer("y", f32, (768,)), J)), f32)
    assert instructions(value, J, ZEN, f32) - instructions(value, J, ZEN, f32, known={X}) == 1
