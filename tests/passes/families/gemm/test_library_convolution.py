"""Convolutions by the library: which groups have them, what the call says, and that it gives what the group gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import convolution
from oracle import assert_close_to_oracle

torch = pytest.importorskip("torch")

from fusec.ir.attributes import ExternAttributes  # noqa: E402
from fusec.ir.graph import FusedAttributes  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.library_calls import Matrix, convolution_from_text  # noqa: E402
from fusec.ir.nodes import Op  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.ir.types import contiguous_strides  # noqa: E402
from fusec.passes.families.gemm.library_convolution import library_convolution  # noqa: E402
from fusec.passes.lower.context import LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Pieces  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.runtime.calls import bind_call  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

SM_90 = gpu_target("cuda:sm_90")


def context_of(text: str) -> LoweringContext:
    """Of the group with the dot."""
    graph = lower(parse(text), "cuda:sm_90").graph
    fused = [op for op in graph.ops if isinstance(op.attributes, FusedAttributes)]
    (op,) = (op for op in fused if any(o.name == "dot" for o in op.attributes.body.ops))  # type: ignore[union-attr]
    return LoweringContext(op, {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}, "g")


def call_of(context: LoweringContext) -> Op:
    (alternative,) = library_convolution(context, SM_90)
    pieces = alternative.lower(context)
    assert isinstance(pieces, Pieces)
    return next(op for op in pieces.ops if isinstance(op.attributes, ExternAttributes))


UNLIKE = convolution((8, 29, 28, 64), 96, (3, 5), stride=(2, 1), padding=(0, 2), dtype="bf16")


def test_what_the_call_says() -> None:
    attributes = call_of(context_of(UNLIKE)).attributes
    assert isinstance(attributes, ExternAttributes)
    said = convolution_from_text(attributes.arguments)
    assert said.image == Matrix(0, (8, 64, 29, 28), (29 * 28 * 64, 1, 28 * 64, 64), 0)
    assert said.weight == Matrix(1, (96, 64, 3, 5), (3 * 5 * 64, 1, 5 * 64, 64), 0)
    assert (said.stride, said.padding, said.dilation) == ((2, 1), (0, 2), (1, 1))
    assert said.shape == (8, 14, 28, 96)
    assert (said.groups, said.transposed) == (1, False)
    assert [t.dtype.name for t in attributes.types] == ["bf16"]


def asymmetric(low: int, high: int) -> str:
    return f"""graph @g(%x: f32[2, 8, 8], %w: f32[4, 3, 8]) {{
  %p = pad(%x, f32(0.0)) {{low=[0, {low}, 0], high=[0, {high}, 0]}} : f32[2, {8 + low + high}, 8]
  %s = windows(%p) {{axis=1, size=3}} : f32[2, {6 + low + high}, 8, 3]
  %y = dot(%s, %w) {{contract=[3, 2]x[1, 2]}} : f32[2, {6 + low + high}, 4]
  return %y
}}"""


@pytest.mark.parametrize(("low", "high", "count"), [(1, 1, 1), (2, 1, 1), (1, 2, 0), (0, 1, 0)])
def test_padding_behind_is_no_more_than_before(low: int, high: int, count: int) -> None:
    """Where it is less, there are windows that are left out."""
    assert len(library_convolution(context_of(asymmetric(low, high)), SM_90)) == count


@pytest.mark.parametrize(
    "text",
    [
        """graph @g(%x: bf16[32, 64], %w: bf16[64, 48]) {
          %y = dot(%x, %w) {contract=[1]x[0]} : bf16[32, 48]
          return %y
        }""",
        asymmetric(1, 1).replace("f32(0.0)", "i32(0)").replace("f32", "i32"),
    ],
    ids=["a matmul", "of integers"],
)
def test_what_is_no_call(text: str) -> None:
    assert library_convolution(context_of(text), SM_90) == []


BIAS = ("%b = add(%y, %r) : RESULT", "%z = maximum(%b, KIND(0.0)) : RESULT")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": (1, 1), "last": False},
        {"stride": (2, 1), "padding": (0, 2), "image_last": False},
        {"dilation": (2, 3), "padding": (2, 3), "tail": BIAS},
    ],
    ids=str,
)
def test_the_call_and_what_follows_give_what_the_group_gives(dtype: str, options: dict[str, Any]) -> None:
    tail = [line.replace("KIND", dtype) for line in options.get("tail", ())]
    more = f"%r: {dtype}[5]" if tail else ""
    text = convolution((2, 9, 10, 8), 5, (3, 3), **{**options, "dtype": dtype, "tail": tail, "more": more})
    context = context_of(text)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.static_shape).astype(v.type.dtype.numpy) for v in context.body.inputs]
    (alternative,) = library_convolution(context, SM_90)
    pieces = alternative.lower(context)
    assert isinstance(pieces, Pieces)
    known = dict(zip(context.body.inputs, given, strict=True))
    for op in pieces.ops:
        operands = [known[v] for v in op.operands]
        known.update(zip(op.results, _done(op, operands), strict=True))
    found = [known[v] for v in context.body.outputs]
    eager = interpret(context.body, given)
    assert_close_to_oracle(found, interpret(context.body, given, float64=True), eager, slack=8)


def _done(op: Op, operands: list[Any]) -> list[Any]:
    if isinstance(op.attributes, FusedAttributes):
        return interpret(op.attributes.body, operands)
    assert isinstance(op.attributes, ExternAttributes)
    half = operands[0].dtype.itemsize == 2
    tensors = [
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(a) for a in operands
    ]
    (made,) = bind_call(op.attributes, "torch")(*tensors)
    assert made.is_contiguous()
    return [made.view(torch.int16).numpy().view(operands[0].dtype) if half else made.numpy()]


def test_predicted_seconds() -> None:
    def seconds(channels: int, columns: int = 64) -> float:
        text = convolution((64, 56, 56, channels), columns, (3, 3), padding=(1, 1), dtype="bf16")
        (alternative,) = library_convolution(context_of(text), SM_90)
        return alternative.seconds

    assert seconds(64) < seconds(128) < seconds(256)
    assert seconds(62) > 2 * seconds(64)  # no multiple of 8
