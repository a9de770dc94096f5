"""Products by the library: which groups have them, and that the pieces give what the group gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fusec.ir.attributes import ExternAttributes  # noqa: E402
from fusec.ir.graph import FusedAttributes, Graph  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.nodes import Op  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.ir.types import bf16, contiguous_strides  # noqa: E402
from fusec.options import Precision  # noqa: E402
from fusec.passes.families.gemm.library import library_alternatives  # noqa: E402
from fusec.passes.lower.context import LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Pieces  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.runtime.calls import bind_call  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

CARD = gpu_target("cuda:sm_90")

LINEAR = """graph @f(%x: bf16[4, 32, 64], %w: bf16[48, 64], %b: bf16[48]) {{
  %h = linear(%x, %w, %b) : bf16[4, 32, 48]
  {rest}
}}"""
GELU = "%y = gelu(%h) {approximate=tanh} : bf16[4, 32, 48]\n  return %y"
CASES = {
    "linear": LINEAR.format(rest="return %h"),
    "relu": LINEAR.format(rest="%y = relu(%h) : bf16[4, 32, 48]\n  return %y"),
    "silu": LINEAR.format(rest="%y = silu(%h) : bf16[4, 32, 48]\n  return %y"),
    "both": LINEAR.format(rest="%y = relu(%h) : bf16[4, 32, 48]\n  return %y, %h"),
    "batched": """graph @f(%x: bf16[3, 20, 40], %y: bf16[3, 40, 24]) {
  %z = dot(%x, %y) {contract=[2]x[1], batch=[0]x[0]} : bf16[3, 20, 24]
  %r = tanh(%z) : bf16[3, 20, 24]
  return %r
}""",
    "gated": """graph @f(%x: bf16[20, 40], %g: bf16[24, 40], %u: bf16[24, 40]) {
  %a = dot(%x, %g) {contract=[1]x[1]} : bf16[20, 24]
  %b = dot(%x, %u) {contract=[1]x[1]} : bf16[20, 24]
  %s = silu(%a) : bf16[20, 24]
  %r = mul(%s, %b) : bf16[20, 24]
  return %r
}""",
    "single": """graph @f(%x: f32[20, 40], %g: f32[24, 40]) {
  %a = dot(%x, %g) {contract=[1]x[1]} : f32[20, 24]
  return %a
}""",
    "wide": """graph @f(%x: bf16[20, 40], %g: bf16[24, 40]) {
  %a = dot(%x, %g) {contract=[1]x[1], dtype=f32} : f32[20, 24]
  return %a
}""",
}


def frame_of(text: str) -> LoweringContext:
    """The context of the one group that the GPU's pipeline makes of the text."""
    graph = lower(parse(text), "cuda:sm_90").graph
    (op,) = (o for o in graph.ops if isinstance(o.attributes, FusedAttributes))
    layouts = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    return LoweringContext(op, layouts, "group")


def names(text: str) -> list[str]:
    return [a.text.removeprefix("library matmul").strip() for a in library_alternatives(frame_of(text), CARD)]


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("linear", ["", "with bias"]),
        ("relu", ["", "with bias", "with bias and relu"]),
        ("silu", ["", "with bias"]),
        ("both", ["", "with bias"]),
        ("batched", [""]),
        ("gated", [""]),
        ("single", [""]),
        ("wide", []),
    ],
)
def test_which_calls_a_group_can_be(case: str, wanted: list[str]) -> None:
    assert names(CASES[case]) == wanted


def test_gelu_is_told_by_its_values() -> None:
    text = """graph @f(%x: bf16[32, 64], %w: bf16[48, 64], %b: bf16[48]) {
  %h = linear(%x, %w, %b) : bf16[32, 48]
  %y = gelu(%h) {approximate=KIND} : bf16[32, 48]
  return %y
}"""
    assert "with bias and gelu" in names(text.replace("KIND", "tanh"))
    assert "with bias and gelu" not in names(text.replace("KIND", "none"))


@pytest.mark.parametrize("case", ["linear", "relu", "silu", "both", "batched", "gated"])
def test_pieces_give_what_the_group_gives(case: str) -> None:
    context = frame_of(CASES[case])
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.static_shape).astype(bf16.numpy) for v in context.body.inputs]
    wanted = interpret(context.body, given, float64=True)
    for alternative in library_alternatives(context, CARD):
        pieces = alternative.lower(context)
        assert isinstance(pieces, Pieces)
        for found, exact in zip(run(pieces, context.body, given), wanted, strict=True):
            error = np.abs(found.astype(np.float64) - exact) / (1 + np.abs(exact))
            assert float(error.max()) < 0.03, alternative.text


def run(pieces: Pieces, body: Graph, given: list[Any]) -> list[Any]:
    known = dict(zip(body.inputs, given, strict=True))
    for op in pieces.ops:
        operands = [known[v] for v in op.operands]
        results = _call(op, operands) if isinstance(op.attributes, ExternAttributes) else _group(op, operands)
        known.update(zip(op.results, results, strict=True))
    return [known[v] for v in body.outputs]


def _call(op: Op, operands: list[Any]) -> list[Any]:
    assert isinstance(op.attributes, ExternAttributes)
    tensors = [torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for a in operands]
    made = bind_call(op.attributes, "torch")(*tensors)
    assert [tuple(t.shape) for t in made] == [t.static_shape for t in op.attributes.types]
    return [t.contiguous().view(torch.int16).numpy().view(bf16.numpy) for t in made]


def _group(op: Op, operands: list[Any]) -> list[Any]:
    assert isinstance(op.attributes, FusedAttributes)
    assert op.attributes.kind == "map"
    return interpret(op.attributes.body, operands)


def test_operands_may_lie_in_any_strides() -> None:
    context = frame_of(CASES["gated"])
    x, g, *_ = context.body.inputs
    assert library_alternatives(LoweringContext(context.op, {**context.strides, x: (1, 20)}, "group"), CARD)
    assert library_alternatives(LoweringContext(context.op, {**context.strides, g: (400, 3)}, "group"), CARD)
    linear = frame_of(CASES["linear"])
    gapped = LoweringContext(linear.op, {**linear.strides, linear.body.inputs[0]: (5000, 64, 1)}, "group")
    assert not library_alternatives(gapped, CARD)  # its rows are no one axis


@pytest.mark.parametrize(
    ("rows", "columns", "chosen"),
    [(768, 3072, True), (3072, 768, True), (50304, 768, False)],  # 72 tiles for 132 SMs; 1179
)
def test_the_call_is_chosen_where_no_schedule_fills_the_card(rows: int, columns: int, chosen: bool) -> None:
    text = f"""graph @f(%g: bf16[8192, {rows}], %x: bf16[8192, {columns}]) {{
      %w = dot(%g, %x) {{contract=[0]x[0]}} : bf16[{rows}, {columns}]
      return %w
    }}"""
    assert (not lower(parse(text), "cuda:sm_90").program.kernels) == chosen


def test_what_is_left_to_a_kernel_takes_time() -> None:
    alone, biased = library_alternatives(frame_of(CASES["linear"]), CARD)
    assert biased.seconds < alone.seconds < float("inf")
    assert [a.seconds for a in library_alternatives(frame_of(CASES["gated"]), CARD)] == [float("inf")]


@pytest.mark.parametrize(("kind", "kernels"), [("tanh", 0), ("none", 1)])
def test_the_call_may_leave_an_activation_to_a_kernel(kind: str, kernels: int) -> None:
    """Three blocks of 128 rows by 32 of 128 columns leave a quarter of the card idle."""
    text = f"""graph @f(%x: bf16[300, 4096], %w: bf16[4096, 4096], %b: bf16[4096]) {{
      %h = linear(%x, %w, %b) : bf16[300, 4096]
      %y = gelu(%h) {{approximate={kind}}} : bf16[300, 4096]
      return %y
    }}"""
    program = lower(parse(text), "cuda:sm_90").program
    assert (len(program.kernels), len(program.steps)) == (kernels, kernels + 1)


@pytest.mark.parametrize(
    ("rows", "precision", "chosen"), [(4096, "ieee", True), (4096, "tf32", False), (8, "ieee", False)]
)
def test_large_matmuls_of_f32_are_the_librarys(rows: int, precision: Precision, chosen: bool) -> None:
    size = 4096 if rows > 8 else 256
    text = f"""graph @f(%x: f32[{rows}, {size}], %w: f32[{size}, {size}], %b: f32[{size}]) {{
      %h = linear(%x, %w, %b) : f32[{rows}, {size}]
      %y = relu(%h) : f32[{rows}, {size}]
      return %y
    }}"""
    assert (not lower(parse(text), "cuda:sm_90", precision=precision).program.kernels) == chosen
