"""Matmuls of 8 bits by the library: which scales are the call's, and that call and map give what the group gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fusec.ir.attributes import ExternAttributes  # noqa: E402
from fusec.ir.graph import FusedAttributes  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.ir.types import contiguous_strides  # noqa: E402
from fusec.passes.families.gemm.library_eight_bits import library_in_eight_bits  # noqa: E402
from fusec.passes.lower.context import LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Pieces  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.runtime.calls import bind_call  # noqa: E402
from fusec.runtime.eight_bit_matmuls import eight_bit_matmul_from_text  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402
from tests.row_scales import ROW_SCALES  # noqa: E402

CARD = gpu_target("cuda:sm_90")

HEAD = """graph @g(%x: f8e4m3[96, 256], %w: f8e4m3[80, 256], %s: f32[], %t: f32[1, 1], %r: f32[96, 1], %c: f32[80],
      %b: bf16[80]) {
  %h = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[96, 80]
"""
MUL = "  %{0} = mul(%{1}, %{2}) : f32[96, 80]\n"
CAST = "  %y = cast(%{0}) : bf16[96, 80]\n  return %y\n}}"
CASES = {
    "one scale": (HEAD + MUL.format("p", "h", "s") + CAST.format("p"), ("bf16", True, False, 1)),
    "two scales": (
        HEAD + MUL.format("p", "h", "s") + MUL.format("q", "t", "p") + CAST.format("q"),
        ("bf16", True, True, 1),
    ),
    "rows and columns": (
        HEAD + MUL.format("p", "h", "r") + MUL.format("q", "p", "c") + CAST.format("q"),
        ("bf16", True, True, 1),
    ),
    "columns and rows": (
        HEAD + MUL.format("p", "h", "c") + MUL.format("q", "p", "r") + CAST.format("q"),
        ("bf16", True, True, 1),
    ),
    "rows alone": (HEAD + MUL.format("p", "h", "r") + CAST.format("p"), ("f32", False, False, 2)),
    "no scale": (HEAD + CAST.format("h"), ("bf16", False, False, 1)),
    "one scale and a bias": (
        HEAD
        + MUL.format("p", "h", "s")
        + "  %f = cast(%b) : f32[80]\n  %q = add(%p, %f) : f32[96, 80]\n"
        + CAST.format("q"),
        ("f32", True, False, 2),
    ),
    "a scale that is used twice": (
        HEAD + MUL.format("p", "h", "s") + "  %q = mul(%p, %p) : f32[96, 80]\n" + CAST.format("q"),
        ("f32", True, False, 2),
    ),
    "bytes": (
        (HEAD + MUL.format("p", "f", "s") + CAST.format("p"))
        .replace("f8e4m3", "i8")
        .replace("dtype=f32} : f32[96, 80]", "dtype=i32} : i32[96, 80]\n  %f = cast(%h) : f32[96, 80]"),
        ("i32", False, False, 2),
    ),
}


def context_of(text: str) -> LoweringContext:
    graph = lower(parse(text), "cuda:sm_90").graph
    (op,) = (o for o in graph.ops if isinstance(o.attributes, FusedAttributes))
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    return LoweringContext(op, strides, "group")


def pieces_of(context: LoweringContext) -> Pieces:
    (alternative,) = library_in_eight_bits(context, CARD)
    assert 0 < alternative.seconds < 1e-3
    pieces = alternative.lower(context)
    assert isinstance(pieces, Pieces)
    return pieces


@pytest.mark.parametrize("name", CASES)
def test_which_scales_are_the_calls(name: str) -> None:
    text, (dtype, rows, columns, count) = CASES[name]
    call, *rest = pieces_of(context_of(text)).ops
    assert isinstance(call.attributes, ExternAttributes)
    matmul = eight_bit_matmul_from_text(call.attributes.arguments)
    assert (matmul.dtype, matmul.rows is not None, matmul.columns is not None, len(rest) + 1) == (
        dtype,
        rows,
        columns,
        count,
    )


@pytest.mark.parametrize("name", CASES)
def test_call_and_map_give_what_the_group_gives(name: str) -> None:
    if not ROW_SCALES and name in ("rows and columns", "columns and rows"):
        pytest.skip("PyTorch's CPU matmul of 8 bits has no scales of rows")
    context = context_of(CASES[name][0])
    rng = np.random.default_rng(0)
    given = [(rng.standard_normal(v.type.static_shape) * 3).astype(v.type.dtype.numpy) for v in context.body.inputs]
    (wanted,) = interpret(context.body, given, float64=True)
    known = dict(zip(context.body.inputs, map(np.asarray, given), strict=True))
    for op in pieces_of(context).ops:
        operands = [known[v] for v in op.operands]
        if isinstance(op.attributes, ExternAttributes):
            results = [to_numpy(t) for t in bind_call(op.attributes, "torch")(*map(to_torch, operands))]
        else:
            assert isinstance(op.attributes, FusedAttributes)
            results = list(interpret(op.attributes.body, operands))
        known.update(zip(op.results, results, strict=True))
    found = known[context.body.outputs[0]].astype(np.float64)
    assert np.abs(found - wanted).max() <= 0.01 * np.abs(wanted).max()


STORED = {"bfloat16": (np.int16, torch.bfloat16), "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn)}


def to_torch(array: Any) -> Any:
    if array.dtype.name not in STORED:
        return torch.from_numpy(array)
    stored, wanted = STORED[array.dtype.name]
    return torch.from_numpy(array.view(stored)).view(wanted)


def to_numpy(tensor: Any) -> Any:
    return tensor.float().numpy().astype("bfloat16") if tensor.dtype is torch.bfloat16 else tensor.numpy()


@pytest.mark.parametrize(
    "text",
    [
        CASES["no scale"][0].replace("256", "250"),
        CASES["no scale"][0].replace("80", "81"),
        CASES["no scale"][0].replace("f8e4m3", "f8e5m2"),
        CASES["no scale"][0].replace("f8e4m3[80, 256]", "f8e4m3[256, 80]").replace("[1]x[1]", "[1]x[0]"),
    ],
    ids=["K", "columns", "e5m2", "columns side by side"],
)
def test_what_the_library_does_not_take(text: str) -> None:
    assert not library_in_eight_bits(context_of(text), CARD)
    assert not library_in_eight_bits(context_of(CASES["no scale"][0]), gpu_target("cuda:sm_80"))
