"""How long the memory of a program's values is held, and what that is at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.report import explain_program
from fusec.runtime.lifetimes import Lifetimes
from fusec.runtime.program import Launch, Program

ELEMENTS = 1 << 20
GPU = "cuda:sm_90"


def products(count: int = 6, n: int = 2048) -> Program:
    """Matmuls one after another, each a kernel whose result the next one reads; the last is the only result."""
    lines = [f"%y{k} = matmul(%y{k - 1}, %w) : bf16[{n}, {n}]" for k in range(1, count + 1)]
    text = f"graph @g(%y0: bf16[{n}, {n}], %w: bf16[{n}, {n}]) {{\n" + "\n".join(lines) + f"\nreturn %y{count}\n}}"
    return lower(parse(text), GPU).program


def rows_of(program: Program) -> list[list[int]]:
    """What is launched together: kernels between library calls."""
    numbers = range(len(program.steps))
    return [list(row) for _, row in groupby(numbers, lambda k: isinstance(program.steps[k], Launch))]


def test_spans_begin_and_end_with_the_steps_that_touch() -> None:
    program = products()
    lifetimes = Lifetimes(program)
    spans = {program.slots[slot].name: span for slot, span in lifetimes.spans.items()}
    assert spans["y0"] == (-1, 0)
    assert spans["w"] == (-1, 5)
    assert spans["y2"] == (1, 2)
    assert {program.slots[slot].name for slot in lifetimes.kept} == {"y6"}
    assert {program.slots[slot].name for slot in lifetimes.inner} == {f"y{k}" for k in range(1, 6)}


def test_scratch_shares_memory_without_cutting_rows() -> None:
    program = products()
    size = 2 * 2048 * 2048
    lifetimes = Lifetimes(program)
    assert lifetimes.peak(rows_of(program)) == 3 * size  # two of scratch in turn, and the result
    assert not lifetimes.better_cut(rows_of(program))


def gradients(n: int = 4096) -> Program:
    """A backward's form: each of several large inputs is read once, for a result of its own."""
    names = range(4)
    inputs = ", ".join(f"%x{k}: bf16[{n}, {n}]" for k in names)
    lines = [f"%s{k} = matmul(%x{k}, %w) : bf16[{n}, {n}]\n%r{k} = matmul(%s{k}, %w) : bf16[{n}, {n}]" for k in names]
    results = ", ".join(f"%r{k}" for k in names)
    return lower(
        parse(f"graph @g({inputs}, %w: bf16[{n}, {n}]) {{\n" + "\n".join(lines) + f"\nreturn {results}\n}}"), GPU
    ).program


def test_inputs_that_are_handed_over_make_room_for_results() -> None:
    program = gradients()
    rows, size = rows_of(program), 2 * 4096 * 4096
    mine, handed = Lifetimes(program), Lifetimes(program, frozenset(program.inputs))
    assert not mine.better_cut(rows)
    assert handed.better_cut(rows)
    parts = [part for row in rows for part in handed.cut(row)]
    assert len(parts) > len(rows)
    assert [k for part in parts for k in part] == [k for row in rows for k in row]
    assert handed.peak(rows) == 5 * size
    assert handed.peak(parts, handed.apart(handed.inner)) <= 2 * size


def told(program: Program, *, owned: bool = False) -> str:
    return " ".join(explain_program(program, owned=owned).split())


def test_explain_tells_the_peak() -> None:
    text = told(gradients())
    assert "160 MiB at most at a time beside its inputs; 128 MiB are results" in text
    text = told(gradients(), owned=True)
    assert "32 MiB at most at a time beside its inputs, which are let go once they have been read" in text
    assert "at most at a time" not in told(gradients(64))


# What a call really lets go


class Looking:
    """A call of the library's that looks whether a tensor is still there."""

    def __init__(self) -> None:
        self.watched: weakref.ref[torch.Tensor] | None = None
        self.found: list[bool] = []

    def note(self) -> None:
        if self.watched is not None:
            self.found.append(self.watched() is not None)


LOOKING = Looking()


@torch.library.custom_op("fusec_lifetimes::first", mutates_args=())
def first(x: torch.Tensor) -> torch.Tensor:
    LOOKING.watched = weakref.ref(x)
    return x + 1


@torch.library.custom_op("fusec_lifetimes::later", mutates_args=())
def later(x: torch.Tensor) -> torch.Tensor:
    LOOKING.note()
    return x + 1


@torch.library.custom_op("fusec_lifetimes::forth", mutates_args=())
def forth(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@first.register_fake
@later.register_fake
@forth.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


forth.register_autograd(lambda context, gradient: later(gradient))


@pytest.fixture(autouse=True)
def looking() -> Iterator[Looking]:
    LOOKING.watched, LOOKING.found = None, []
    yield LOOKING
    LOOKING.watched, LOOKING.found = None, []


def test_what_a_library_call_got_is_let_go(looking: Looking) -> None:
    def chained(x: Any) -> Any:
        return later(first(x * 2).exp()) + 1

    fast = fusec.jit(chained)
    x = torch.rand(ELEMENTS)
    for _ in range(3):
        torch.testing.assert_close(fast(x), (x * 2 + 1).exp() + 2)
    assert looking.found == [False] * 3


def test_results_and_inputs_are_kept(looking: Looking) -> None:
    def chained(x: Any) -> Any:
        y = x * 2
        return y, later(first(y).exp())

    fast = fusec.jit(chained)
    x = torch.rand(ELEMENTS)
    for _ in range(2):
        y, z = fast(x)
        torch.testing.assert_close(y, x * 2)
        torch.testing.assert_close(z, (x * 2 + 1).exp() + 1)
    assert looking.found == [True] * 2


def saving(x: Any) -> Any:
    """Its backward reads what the call gave, then calls the library, then multiplies."""
    return forth(x * 2).sin()


@pytest.mark.parametrize("way", ["jit", "torch.compile"])
def test_a_backward_lets_go_what_was_saved(way: str, looking: Looking) -> None:
    fast: Any = fusec.jit(saving) if way == "jit" else torch.compile(saving, backend="fusec")
    found = []
    for _ in range(3):
        x = torch.rand(ELEMENTS, requires_grad=True)
        y = fast(x)
        (saved,) = y.grad_fn.saved_tensors
        looking.watched = weakref.ref(saved)
        del saved
        y.backward(torch.ones_like(y))
        found.append(looking.found[-1])
        torch.testing.assert_close(x.grad, 2 * ((2 * x.detach()).cos() + 1))
    assert not any(found[1:])  # the first call compiles


@pytest.mark.parametrize("way", ["jit", "torch.compile"])
def test_a_backward_that_may_run_again_keeps_it(way: str, looking: Looking) -> None:
    fast: Any = fusec.jit(saving) if way == "jit" else torch.compile(saving, backend="fusec")
    x = torch.rand(ELEMENTS, requires_grad=True)
    y = fast(x)
    for count in range(1, 4):
        y.backward(torch.ones_like(y), retain_graph=True)
        torch.testing.assert_close(x.grad, count * 2 * ((2 * x.detach()).cos() + 1))


def test_small_values_are_not_let_go_one_by_one() -> None:
    """It would cost small programs more than it saves."""
    text = "graph @g(%x: f32[64]) {\n%y = exp(%x) : f32[64]\nreturn %y\n}"
    program = lower(parse(text), "cpu").program
    assert not Lifetimes(program, frozenset(program.inputs)).released([0])
    assert np.prod(program.slots[program.inputs[0]].type.static_shape) == 64
