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
    text = str(with_outer_slices(fuse(graph, blocked=True)))
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
