"""Which dots, maps and dots are a score space."""

from __future__ import annotations

import pytest
from programs import group_kinds, reasons

from fusec.errors import LoweringError
from fusec.ir.graph import FusedAttributes, Graph, ScoresGroup
from fusec.ir.parse import parse
from fusec.passes.families.scores.elements import scores_parts
from fusec.passes.pipeline import lower
from fusec.runtime.program import Lowered


def chain(maps: str, returned: str = "%o", n: int = 128, inner: int = 16, values: int = 16) -> Graph:
    """``%s`` = q @ k.T, maps that make ``%p``, and ``%o`` = p @ v; ``%u`` is a vector along the columns."""
    s = f"f32[2, {n}, {n}]"
    return parse(f"""graph @g(%q: f32[2, {n}, {inner}], %k: f32[2, {n}, {inner}], %v: f32[2, {n}, {values}],
        %u: f32[2, 1, {n}]) {{
      %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {s}
      {maps.replace("SPACE", s)}
      %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, {n}, {values}]
      return {returned}
    }}""")


SQUARE = "%p = mul(%s, %s) : SPACE"


def on_gpu(graph: Graph) -> Lowered:
    return lower(graph, "cuda:sm_90", check=True)


def test_two_dots_with_maps_between() -> None:
    lowered = on_gpu(chain(SQUARE))
    (op,) = (o for o in lowered.graph.ops if o.name == "fused")
    assert isinstance(op.attributes, FusedAttributes)
    assert op.attributes.kind == "scores"
    roles = op.attributes.roles
    assert isinstance(roles, ScoresGroup)
    assert [v.name for v in roles.products] == ["s"]
    assert [v.name for v in roles.results] == ["o"]
    assert roles.sides == (0,)


def test_the_text_of_a_group_says_its_parts() -> None:
    lowered = on_gpu(chain(SQUARE))
    text = lowered.stages["fuse"]
    assert "{products=[%s], results=[%o], sides=[0]}" in text
    assert str(parse(text)) == text


def test_what_follows_the_result_joins() -> None:
    lowered = on_gpu(chain(f"{SQUARE}", "%o"))
    assert group_kinds(lowered) == ["scores"]
    text = str(chain(SQUARE)).replace("return %o", "%t = tanh(%o) : f32[2, 128, 16]\n  return %t")
    assert group_kinds(on_gpu(parse(text))) == ["scores"]


@pytest.mark.parametrize(
    ("maps", "returned", "reason"),
    [
        (SQUARE, "%o, %s", "%s is also an output, so it must be stored whole"),
        (f"{SQUARE}\n%r = reduce_max(%s) {{axes=[2]}} : f32[2, 128]", "%o, %r", "%s is also read by reduce_max"),
        (
            """%t = tanh(%s) : SPACE
            %r = reduce_max(%t) {axes=[2]} : f32[2, 128]
            %b = reshape(%r) : f32[2, 128, 1]
            %p = sub(%t, %b) : SPACE""",
            "%o",
            "%t is also read by reduce_max",
        ),
        (
            f"{SQUARE}\n%w = dot(%p, %s) {{contract=[2]x[1], batch=[0]x[0]}} : SPACE",
            "%o, %w",
            "multiplies values of the space with each other",
        ),
    ],
)
def test_values_that_are_needed_elsewhere(maps: str, returned: str, reason: str) -> None:
    lowered = on_gpu(chain(maps, returned))
    assert "scores" not in group_kinds(lowered)
    assert any(reason in r for r in reasons(lowered)), reasons(lowered)


@pytest.mark.parametrize(
    ("more", "returned", "stored"),
    [
        ("", "%o, %p", "p"),
        ("%r = reduce_max(%p) {axes=[2]} : f32[2, 128]", "%o, %r", "p"),
        ("%r = reduce_sum(%p) {axes=[0]} : f32[128, 128]", "%o, %r", "p"),
        ("%r = reduce_sum(%p) {axes=[1]} : f32[2, 128]", "%o, %r", "p"),
        ("%t = tanh(%p) : SPACE\n%r = reduce_sum(%t) {axes=[0]} : f32[128, 128]", "%o, %r", "p"),
    ],
)
def test_values_that_are_needed_elsewhere_are_stored(more: str, returned: str, stored: str) -> None:
    """What is made of one of them alone is computed where it is read."""
    lowered = on_gpu(chain(f"{SQUARE}\n{more}", returned))
    op = next(o for o in lowered.graph.ops if o.name == "fused" and o.expect(FusedAttributes).kind == "scores")
    roles = op.expect(FusedAttributes).roles
    assert isinstance(roles, ScoresGroup)
    assert [v.name for v in roles.stored] == [stored]
    assert "tanh" not in {inner.name for inner in op.expect(FusedAttributes).body.ops}


def test_a_cpu_stores_no_values_of_a_space() -> None:
    lowered = lower(chain(SQUARE, "%o, %p"), "cpu", check=True)
    assert "scores" not in group_kinds(lowered)
    assert any("is needed elsewhere" in r for r in reasons(lowered)), reasons(lowered)


def test_a_sum_of_rows_joins() -> None:
    graph = chain(f"{SQUARE}\n%r = reduce_sum(%p) {{axes=[2]}} : f32[2, 128]", "%o, %r")
    (op,) = (o for o in on_gpu(graph).graph.ops if o.name == "fused")
    assert isinstance(op.attributes, FusedAttributes)
    assert isinstance(op.attributes.roles, ScoresGroup)
    assert [v.name for v in op.attributes.roles.sums] == ["r"]


def test_two_layers_of_a_network_stay_products() -> None:
    """Its middle is not large beside the weights."""
    graph = parse("""graph @mlp(%x: f32[512, 256], %a: f32[256, 1000], %b: f32[1000, 256]) {
      %h = dot(%x, %a) {contract=[1]x[0]} : f32[512, 1000]
      %t = tanh(%h) : f32[512, 1000]
      %y = dot(%t, %b) {contract=[1]x[0]} : f32[512, 256]
      return %y
    }""")
    assert group_kinds(on_gpu(graph)) == ["gemm", "gemm"]


def test_rows_too_wide_for_a_block() -> None:
    lowered = on_gpu(chain(SQUARE, n=2048, inner=300))
    assert group_kinds(lowered) == ["gemm", "gemm"]
    assert any("rows of 300 elements" in r for r in reasons(lowered))


def test_a_softmax_is_attention() -> None:
    lowered = on_gpu(chain("%p = softmax(%s) {axis=2} : SPACE"))
    assert group_kinds(lowered) == ["attention"]


def test_a_map_has_no_score_space() -> None:
    graph = parse("graph @g(%x: f32[4]) {\n%y = exp(%x) : f32[4]\nreturn %y\n}")
    (op,) = (o for o in lower(graph, "cuda:sm_90").graph.ops if o.name == "fused")
    with pytest.raises(LoweringError, match="does not hold a score space"):
        scores_parts(op)
