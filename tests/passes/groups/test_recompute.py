"""What a kernel would store for another is computed again where that moves fewer bytes: a batch norm's passes."""

from __future__ import annotations

import numpy as np
import pytest
from programs import group_kinds, random_inputs

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.runtime.program import Launch, Lowered, Slot

GPU = "cuda:sm_90"


def forward(n: int, size: int, c: int, dtype: str = "bf16", tail: str = "relu(%b)") -> str:
    """A batch norm of images with their channels last, with the statistics of the batch, and what follows."""
    image, channels = f"[{n}, {size}, {size}, {c}]", f"f32[1, 1, 1, {c}]"
    return f"""graph @g(%x: {dtype}{image}, %w: f32[{c}], %s: f32[{c}]) {{
  %v = cast(%x) : f32{image}
  %var = var(%v) {{axes=[0, 1, 2]}} : f32[{c}]
  %mean = mean(%v) {{axes=[0, 1, 2]}} : f32[{c}]
  %m = reshape(%mean) : {channels}
  %q = reshape(%var) : {channels}
  %e = add(%q, f32(1e-05)) : {channels}
  %r = rsqrt(%e) : {channels}
  %z = cast(%x) : f32{image}
  %d = sub(%z, %m) : f32{image}
  %h = mul(%d, %r) : f32{image}
  %u = mul(%h, %w) : f32{image}
  %a = add(%u, %s) : f32{image}
  %b = cast(%a) : {dtype}{image}
  %y = {tail} : {dtype}{image}
  return %y, %mean, %r
}}"""


def backward(n: int, size: int, c: int, dtype: str = "bf16") -> str:
    """The gradients of a batch norm and of the ReLU behind it."""
    image, channels = f"[{n}, {size}, {size}, {c}]", f"f32[1, 1, 1, {c}]"
    count = n * size * size
    inputs = ", ".join((*(f"%{name}: {dtype}{image}" for name in "gyx"), *(f"%{name}: f32[{c}]" for name in "mrw")))
    return f"""graph @g({inputs}) {{
  %le = le(%y, {dtype}(0.0)) : bool{image}
  %t = select(%le, {dtype}(0.0), %g) : {dtype}{image}
  %dy = cast(%t) : f32{image}
  %v = cast(%x) : f32{image}
  %db = reduce_sum(%dy) {{axes=[0, 1, 2]}} : f32[{c}]
  %mm = reshape(%m) : {channels}
  %d = sub(%v, %mm) : f32{image}
  %p = mul(%dy, %d) : f32{image}
  %dp = reduce_sum(%p) {{axes=[0, 1, 2]}} : f32[{c}]
  %rr = mul(%r, %r) : f32[{c}]
  %k = mul(%dp, f32({1 / count})) : f32[{c}]
  %kk = mul(%k, %rr) : f32[{c}]
  %k4 = reshape(%kk) : {channels}
  %f = mul(%d, %k4) : f32{image}
  %o = sub(%dy, %f) : f32{image}
  %mb = mul(%db, f32({1 / count})) : f32[{c}]
  %mb4 = reshape(%mb) : {channels}
  %q = sub(%o, %mb4) : f32{image}
  %rw = mul(%r, %w) : f32[{c}]
  %rw4 = reshape(%rw) : {channels}
  %z = mul(%q, %rw4) : f32{image}
  %dx = cast(%z) : {dtype}{image}
  %dw = mul(%dp, %r) : f32[{c}]
  return %dx, %dw, %db
}}"""


def large(lowered: Lowered, least: int) -> list[Slot]:
    return [s for s in lowered.program.slots if s.kind == "workspace" and s.type.size >= least]


def times_read(lowered: Lowered, name: str) -> int:
    """How many kernels read an input."""
    slot = next(k for k, s in enumerate(lowered.program.slots) if s.name == name)
    return sum(isinstance(step, Launch) and slot in step.arguments for step in lowered.program.steps)


def test_a_forward_reads_twice_and_stores_once() -> None:
    lowered = lower(parse(forward(64, 56, 64)), GPU, check=True)
    assert not large(lowered, 1 << 20)
    assert times_read(lowered, "x") <= 3  # three places of each part are a kernel before


def test_a_backward_reads_twice_and_stores_once() -> None:
    lowered = lower(parse(backward(64, 56, 64)), GPU, check=True)
    assert not large(lowered, 1 << 20)
    assert [times_read(lowered, name) for name in ("g", "y", "x")] == [2, 2, 2]
    assert group_kinds(lowered) in (["row", "row", "map"], ["map", "row", "row", "map"])


def test_sums_of_two_values_are_one_pass_and_put_together_by_one_kernel() -> None:
    lowered = lower(parse(backward(64, 56, 256)), GPU, check=True)
    assert group_kinds(lowered).count("row") == 2


@pytest.mark.parametrize("text", [forward(16, 56, 24, "f32"), backward(16, 56, 24, "f32")], ids=["forward", "backward"])
def test_the_same_results(text: str) -> None:
    graph = parse(text)
    lowered = lower(graph, GPU, check=True)
    given = random_inputs(graph)
    for mine, wanted in zip(interpret(lowered.graph, given), interpret(graph, given, float64=True), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=2e-3)


def test_what_is_dear_is_stored() -> None:
    """A tanh is computed once, though its operand has fewer bytes."""
    text = (
        forward(64, 56, 64)
        .replace("%v = cast(%x)", "%t = cast(%x)")
        .replace("  %var = ", "  %v = tanh(%t) : f32[64, 56, 56, 64]\n  %var = ")
    )
    text = text.replace("%z = cast(%x) : f32[64, 56, 56, 64]", "%z = add(%v, f32(1.0)) : f32[64, 56, 56, 64]")
    assert [s.type.dtype.name for s in large(lower(parse(text), GPU), 1 << 20)] == ["f32"]


def test_what_is_an_output_is_stored_once() -> None:
    text = forward(64, 56, 64).replace("return %y,", "return %v, %y,")
    lowered = lower(parse(text), GPU, check=True)
    assert not large(lowered, 1 << 20)


MATMUL = """graph @g(%x: bf16[50176, 256], %w: bf16[64, 256]) {
  %d = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[50176, 64]
  %y = cast(%d) {implied=true} : bf16[50176, 64]
  %v = cast(%y) : f32[50176, 64]
  %var = var(%v) {axes=[0]} : f32[64]
  %mean = mean(%v) {axes=[0]} : f32[64]
  %z = sub(%v, %mean) : f32[50176, 64]
  %e = add(%var, f32(1e-05)) : f32[64]
  %r = rsqrt(%e) : f32[64]
  %h = mul(%z, %r) : f32[50176, 64]
  %o = cast(%h) : bf16[50176, 64]
  return %o
}"""


def test_a_matmul_s_results_are_stored_rounded() -> None:
    """The three places of a part that moments are around are read of what it stores, not of what it rounds."""
    lowered = lower(parse(MATMUL), GPU, check=True)
    assert [s.type.dtype.name for s in large(lowered, 1 << 20)] == ["bf16"]


def blocks(count: int, n: int, size: int, c: int) -> str:
    """Gradients of residual blocks, each the next one's, and that of its own branch, where its result was not 0."""
    image = f"[{n}, {size}, {size}, {c}]"
    inputs = ", ".join(f"%{name}{k}: bf16{image}" for k in range(count) for name in "yx")
    lines = [f"  %g0 = copy(%h) : bf16{image}", f"  %d0 = copy(%e) : bf16{image}"]
    for k in range(count):
        if k:
            lines.append(f"""  %m{k} = dot(%r{k - 1}, %k) {{contract=[3]x[0], dtype=f32}} : f32{image}
  %d{k} = cast(%m{k}) {{implied=true}} : bf16{image}""")
        lines.append(f"""  %a{k} = add(%d{k}, %g{k}) : bf16{image}
  %le{k} = le(%y{k}, bf16(0.0)) : bool{image}
  %g{k + 1} = select(%le{k}, bf16(0.0), %a{k}) : bf16{image}
  %w{k} = cast(%g{k + 1}) : f32{image}
  %v{k} = cast(%x{k}) : f32{image}
  %p{k} = mul(%w{k}, %v{k}) : f32{image}
  %s{k} = reduce_sum(%w{k}) {{axes=[0, 1, 2]}} : f32[{c}]
  %t{k} = reduce_sum(%p{k}) {{axes=[0, 1, 2]}} : f32[{c}]
  %q{k} = mul(%v{k}, %t{k}) : f32{image}
  %f{k} = sub(%w{k}, %q{k}) : f32{image}
  %o{k} = sub(%f{k}, %s{k}) : f32{image}
  %r{k} = cast(%o{k}) : bf16{image}""")
    results = ", ".join(f"%r{k}" for k in range(count))
    return (
        f"graph @g(%h: bf16{image}, %e: bf16{image}, %k: bf16[{c}, {c}], {inputs}) {{\n"
        + "\n".join(lines)
        + f"\n  return {results}\n}}"
    )


def test_a_gradient_that_blocks_add_to_is_stored_once_a_block() -> None:
    """In 16 bits. Computed again, each block would read what all blocks behind it read."""
    lowered = lower(parse(blocks(4, 64, 28, 256)), GPU, check=True)
    assert {s.type.dtype.name for s in large(lowered, 1 << 20)} == {"bf16"}
    slots = lowered.program.slots
    for step in lowered.program.steps:
        if isinstance(step, Launch):
            assert sum(slots[k].type.size >= 1 << 20 for k in step.arguments) <= 5, step


def test_blocks_have_the_same_results() -> None:
    """The error's norm is at most twice that of the graph's own dtypes."""
    graph = parse(blocks(2, 4, 14, 256))
    given = [(x * 0.1).astype(x.dtype) for x in random_inputs(graph)]
    mine = interpret(lower(graph, GPU, check=True).graph, given)
    exact, eager = interpret(graph, given, float64=True), interpret(graph, given)
    for found, right, theirs in zip(mine, exact, eager, strict=True):
        assert np.linalg.norm(found - right) <= 2 * np.linalg.norm(theirs - right)
