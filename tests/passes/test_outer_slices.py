"""Slices that kernels read of inputs, outside of them."""

from __future__ import annotations

import re

import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes.fuse import fuse
from fusec.passes.outer_slices import with_outer_slices
from fusec.passes.pipeline import lower


def layers(count: int, width: int = 32) -> str:
    """Layers whose weights are one array, and their gains another."""
    lines = []
    for k in range(count):
        matrix, row = f"f32[1, {width}, {width}]", f"f32[1, {width}]"
        lines += [
            f"%a{k} = slice(%w) {{starts=[{k}, 0, 0], stops=[{k + 1}, {width}, {width}], steps=[1, 1, 1]}} : {matrix}",
            f"%b{k} = slice(%g) {{starts=[{k}, 0], stops=[{k + 1}, {width}], steps=[1, 1]}} : {row}",
            f"%v{k} = reshape(%a{k}) : f32[{width}, {width}]",
            f"%n{k} = layer_norm(%x{k}) {{axes=[1], eps=1e-5}} : f32[70, {width}]",
            f"%m{k} = mul(%n{k}, %b{k}) : f32[70, {width}]",
            f"%x{k + 1} = linear(%m{k}, %v{k}) : f32[70, {width}]",
        ]
    head = f"graph @layers(%w: f32[{count}, {width}, {width}], %g: f32[{count}, {width}], %x0: f32[70, {width}]) {{"
    return "\n".join([head, *lines, f"return %x{count}", "}"])


@pytest.mark.parametrize("count", [2, 5])
def test_layers_are_one_kernel(count: int) -> None:
    program = check(layers(count), target="cuda:sm_90", slack=6).lowered.program
    assert len(program.steps) == count * len(lower(parse(layers(1)), "cuda:sm_90").program.steps)
    assert len(program.kernels) == len(lower(parse(layers(1)), "cuda:sm_90").program.kernels)


def cut(body: str, of: str = "%w", more: str = "") -> str:
    """What stands before the kernel that reads ``of``."""
    graph = parse(f"graph @g(%w: f32[6, 8], %x: f32[4, 8]) {{\n{body}\nreturn %y{more}\n}}")
    text = str(with_outer_slices(fuse(graph, blocked=True), blocked=True))
    return re.split(r"fused\(", text)[0].split("{", 1)[1]


SLICE = "%s = slice(%w) {starts=[2, 0], stops=[6, 8], steps=[1, 1]} : f32[4, 8]"


def test_a_slice_alone_is_outside() -> None:
    assert "slice" in cut(f"{SLICE}\n%y = add(%s, %x) : f32[4, 8]")


@pytest.mark.parametrize(
    "body",
    [
        f"{SLICE}\n{SLICE.replace('%s', '%o').replace('starts=[2, 0], stops=[6', 'starts=[0, 0], stops=[4')}\n"
        "%y = add(%s, %o) : f32[4, 8]",
        "%s = slice(%w) {starts=[2, 0], stops=[-1, 8], steps=[-1, 1]} : f32[3, 8]\n%y = exp(%s) : f32[3, 8]",
        "%s = slice(%w) {starts=[2, 1], stops=[6, 8], steps=[1, 1]} : f32[4, 7]\n%y = exp(%s) : f32[4, 7]",
        "%e = exp(%w) : f32[6, 8]\n%f = reduce_sum(%e) {axes=[0]} : f32[8]\n"
        "%s = slice(%e) {starts=[2, 0], stops=[6, 8], steps=[1, 1]} : f32[4, 8]\n%y = add(%s, %f) : f32[4, 8]",
    ],
    ids=["two of one", "backwards", "an odd address", "of what a kernel makes"],
)
def test_others_stay_inside(body: str) -> None:
    assert "slice" not in cut(body)


def test_a_layer_that_was_written_is_a_view_of_its_array() -> None:
    text = """graph @g(%c: f32[3, 4, 16], %x: f32[1, 4, 16]) {
        %u = update(%c, %x) {starts=[1, 0, 0]} : f32[3, 4, 16]
        %l = slice(%u) {starts=[1, 0, 0], stops=[2, 4, 16], steps=[1, 1, 1]} : f32[1, 4, 16]
        %y = exp(%l) : f32[1, 4, 16]
        return %u mutates=0, %y
    }"""
    program = check(text, target="cuda:sm_90").lowered.program
    read = program.slots[program.steps[-1].arguments[0]]  # type: ignore[union-attr]
    assert (read.kind, read.source, read.offset) == ("view", program.inputs[0], 64)


def steps(count: int, more: str = "") -> str:
    """A loop over time: each step reads a slice of one array."""
    lines = []
    for k in range(count):
        cut = f"starts=[0, {k}, 0], stops=[6, {k + 1}, 8], steps=[1, 1, 1]"
        lines += [
            f"%s{k} = slice(%x) {{{cut}}} : f32[6, 1, 8]",
            f"%r{k} = reshape(%s{k}) : f32[6, 8]",
            f"%d{k} = dot(%h{k}, %w) {{contract=[1]x[1]}} : f32[6, 8]",
            f"%a{k} = add(%d{k}, %r{k}) : f32[6, 8]",
            f"%h{k + 1} = tanh(%a{k}) : f32[6, 8]",
        ]
    head = f"graph @steps(%x: f32[6, {count}, 8]{more}, %h0: f32[6, 8], %w: f32[8, 8]) {{"
    return "\n".join([head, *lines, f"return %h{count}", "}"])


@pytest.mark.parametrize("count", [2, 7])
def test_steps_of_a_loop_are_one_kernel_on_a_cpu(count: int) -> None:
    program = check(steps(count), target="cpu:x86-64-v3").lowered.program
    assert (len(program.kernels), len(program.steps)) == (1, count)


def test_a_slice_in_a_kernel_like_no_other_stays_inside_on_a_cpu() -> None:
    graph = fuse(parse(steps(1)))
    assert with_outer_slices(graph, blocked=False) is graph


def test_slices_of_a_fixed_array_stay_inside_on_a_cpu() -> None:
    """What is packed from such an array is kept."""
    graph = fuse(parse(steps(3).replace("f32[6, 3, 8]", 'f32[6, 3, 8] static "x"')))
    assert with_outer_slices(graph, blocked=False) is graph


def test_slices_of_an_array_that_is_written_stay_inside_on_a_cpu() -> None:
    update = (
        "%m = exp(%n) : f32[6, 1, 8]\n%u = update(%x, %m) {starts=[0, 0, 0]} : f32[6, 3, 8]\nreturn %u mutates=0, %h3"
    )
    text = steps(3, ", %n: f32[6, 1, 8]").replace("return %h3", update)
    graph = fuse(parse(text))
    assert with_outer_slices(graph, blocked=False) is graph
    check(text, target="cpu:x86-64-v3")


def test_chunks_of_what_a_kernel_makes_are_one_kernel_on_a_cpu() -> None:
    body = "\n".join(
        f"%s{k} = slice(%e) {{starts=[{4 * k}, 0], stops=[{4 * k + 4}, 8], steps=[1, 1]}} : f32[4, 8]\n"
        f"%t{k} = permute(%s{k}) {{permutation=[1, 0]}} : f32[8, 4]\n"
        f"%y{k} = dot(%s{k}, %t{k}) {{contract=[1]x[0]}} : f32[4, 4]"
        for k in range(3)
    )
    text = f"graph @g(%a: f32[12, 16], %b: f32[16, 8]) {{\n%e = dot(%a, %b) {{contract=[1]x[0]}} : f32[12, 8]\n{body}\n"
    program = check(f"{text}return %y0, %y1, %y2\n}}", target="cpu:x86-64-v3").lowered.program
    assert (len(program.kernels), len(program.steps)) == (2, 4)
