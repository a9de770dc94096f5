"""The order of the passes, what each leaves, and what the whole gives."""

from __future__ import annotations

import pytest
from programs import check, execute, group_kinds, random_inputs
from random_graphs import random_graph

from fusec.errors import FusecError, VerifyError
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes import pipeline
from fusec.passes.pipeline import PASS_NAMES, lower
from fusec.runtime.program import Launch, Pack

MLP = """graph @mlp(%x: f32[6, 8], %w: f32[12, 8] parameter "w", %b: f32[12], %v: f32[5, 12] parameter "v") {
    %h = linear(%x, %w, %b) : f32[6, 12]
    %g = gelu(%h) {approximate=tanh} : f32[6, 12]
    %y = linear(%g, %v) : f32[6, 5]
    return %y
}"""


def test_stages_stand_in_order_and_parse() -> None:
    lowered = lower(parse(MLP), "cpu", check=True)
    assert list(lowered.stages) == ["capture", *PASS_NAMES, "schedule", "tile"]
    for name in ("capture", *PASS_NAMES):
        assert str(parse(lowered.stages[name])) == lowered.stages[name]
    assert set(PASS_NAMES) <= set(lowered.seconds)
    assert all(seconds >= 0 for seconds in lowered.seconds.values())


def test_every_stage_computes_the_same() -> None:
    graph = parse(MLP)
    inputs = random_inputs(graph)
    (wanted,) = interpret(graph, inputs, float64=True)
    lowered = lower(graph, "cpu")
    for name in PASS_NAMES:
        (found,) = interpret(parse(lowered.stages[name]), inputs, float64=True)
        assert abs(found - wanted).max() < 1e-12, name


def test_lowering_is_deterministic() -> None:
    first, second = (lower(parse(MLP), "cpu", threads=2) for _ in range(2))
    assert first.stages == second.stages
    assert first.program.reports == second.program.reports


def test_the_schedule_names_every_kernel_with_its_tiles_and_times() -> None:
    lines = lower(parse(MLP), "cpu", threads=2).stages["schedule"].splitlines()
    assert lines[0] == "schedule @mlp target=cpu"
    assert len(lines) == 3
    assert all(line.lstrip().startswith(f"%{name} = gemm(") for name, line in zip("gy", lines[1:], strict=True))
    assert all("tile_m=" in line and "predicted=" in line and "limit=" in line for line in lines[1:])


NEEDED = ("aliases", "lookups", "writes", "experts", "empty", "indices", "outputs")


@pytest.mark.parametrize("name", [n for n in PASS_NAMES if n not in (*NEEDED, "canonicalize")])
def test_any_other_pass_can_be_left_out(name: str) -> None:
    run = check(MLP, disable=frozenset({name}), slack=4)
    assert name not in run.lowered.stages
    if name == "fuse":
        assert len(run.kernels) > 10
        assert not run.calls


@pytest.mark.parametrize("name", [*NEEDED, "fission"])
def test_a_pass_that_can_t_be_left_out(name: str) -> None:
    with pytest.raises(FusecError, match=f"can't disable \\['{name}'\\]; passes: lookups"):
        lower(parse(MLP), "cpu", disable=frozenset({name}))


def test_a_broken_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "cse", lambda graph: graph.with_ops(graph.ops[1:]))
    with pytest.raises(VerifyError, match="cse"):
        lower(parse(MLP), "cpu", check=True)


def test_only_weights_that_are_said_to_stay_are_kept_packed() -> None:
    static = MLP.replace("parameter", "static")
    steps = lower(parse(static), "cpu").program.steps
    assert [type(s) for s in steps] == [Pack, Launch, Pack, Launch]
    assert all(s.cacheable for s in steps if isinstance(s, Pack))
    for text in (
        MLP,
        MLP.replace("parameter", "state"),
        MLP.replace(' parameter "w"', "").replace("parameter", "state"),
    ):
        assert [type(s) for s in lower(parse(text), "cpu").program.steps] == [Launch, Launch]
    one = lower(parse(static.replace(' static "w"', "")), "cpu").program
    assert [type(s) for s in one.steps] == [Launch, Pack, Launch]
    assert {k.kind for k in one.kernels} == {"gemm", "pack"}


def test_a_weight_that_its_kernel_can_t_read_is_packed_at_each_call() -> None:
    many = lower(parse(MLP.replace("[6", "[8192")), "cpu:znver5", threads=2).program
    kinds = {k.name: k.kind for k in many.kernels}
    assert [kinds[s.kernel] for s in many.steps if isinstance(s, Launch)] == ["pack", "gemm"] * 2


def test_kernels_that_differ_only_in_names_are_one() -> None:
    inputs = ", ".join(f'%w{k}: f32[9, 9] static "w{k}"' for k in range(4))
    lines = "\n".join(f"%x{k + 1} = linear(%x{k}, %w{k}) : f32[4, 9]" for k in range(4))
    program = lower(parse(f"graph @g(%x0: f32[4, 9], {inputs}) {{\n{lines}\nreturn %x4\n}}"), "cpu").program
    assert sorted(k.kind for k in program.kernels) == ["gemm", "pack"]
    assert len(program.steps) == 8
    assert len({s.group for s in program.steps if isinstance(s, Launch) and s.group}) == 4


def test_reports_cover_each_kernel() -> None:
    program = lower(parse(MLP), "cpu", threads=2).program
    assert [r.kind for r in program.reports] == ["gemm", "gemm"]
    first = program.reports[0]
    assert any(str(o).startswith("dot %h") for o in first.fused)
    assert first.flops > 2 * 6 * 8 * 12
    assert first.bytes == 4 * (6 * 8 + 12 * 8 + 12 + 6 * 12)
    assert first.predicted >= first.limit > 0
    assert first.bound == max(first.parts, key=lambda part: part[1])[0]


def test_a_transformer_layer() -> None:
    text = """graph @layer(
        %x: f32[2, 7, 12], %wq: f32[12, 12] parameter "q", %wk: f32[12, 12] parameter "k",
        %wv: f32[12, 12] parameter "v", %wo: f32[12, 12] parameter "o", %g: f32[12], %b: f32[12],
        %w1: f32[24, 12] parameter "1", %b1: f32[24], %w2: f32[12, 24] parameter "2", %m: f32[2, 1, 1, 7]
    ) {
        %q = linear(%x, %wq) : f32[2, 7, 12]
        %k = linear(%x, %wk) : f32[2, 7, 12]
        %v = linear(%x, %wv) : f32[2, 7, 12]
        %q1 = reshape(%q) : f32[2, 7, 3, 4]
        %k1 = reshape(%k) : f32[2, 7, 3, 4]
        %v1 = reshape(%v) : f32[2, 7, 3, 4]
        %q2 = permute(%q1) {permutation=[0, 2, 1, 3]} : f32[2, 3, 7, 4]
        %k2 = permute(%k1) {permutation=[0, 2, 3, 1]} : f32[2, 3, 4, 7]
        %v2 = permute(%v1) {permutation=[0, 2, 1, 3]} : f32[2, 3, 7, 4]
        %s = matmul(%q2, %k2) : f32[2, 3, 7, 7]
        %s1 = mul(%s, f32(0.5)) : f32[2, 3, 7, 7]
        %s2 = add(%s1, %m) : f32[2, 3, 7, 7]
        %p = softmax(%s2) {axis=3} : f32[2, 3, 7, 7]
        %o = matmul(%p, %v2) : f32[2, 3, 7, 4]
        %o1 = permute(%o) {permutation=[0, 2, 1, 3]} : f32[2, 7, 3, 4]
        %o2 = reshape(%o1) : f32[2, 7, 12]
        %o3 = linear(%o2, %wo) : f32[2, 7, 12]
        %r = add(%o3, %x) : f32[2, 7, 12]
        %n = layer_norm(%r, %g, %b) {axes=[2], eps=1e-5} : f32[2, 7, 12]
        %f = linear(%n, %w1, %b1) : f32[2, 7, 24]
        %f1 = gelu(%f) {approximate=none} : f32[2, 7, 24]
        %f2 = linear(%f1, %w2) : f32[2, 7, 12]
        %y = add(%f2, %n) : f32[2, 7, 12]
        return %y
    }"""
    run = check(text, slack=6, atol=1e-5)
    assert group_kinds(run.lowered) == ["gemm", "attention", "gemm", "row", "gemm", "gemm"]
    assert not run.calls


def test_a_graph_without_ops() -> None:
    run = check("graph @g(%x: f32[3], %y: f32[0]) {\nreturn %y, %x, %x\n}")
    assert run.lowered.program.steps == ()


def test_library_calls_between_kernels() -> None:
    run = check("""graph @g(%x: f32[5, 7]) {
        %a = mul(%x, f32(2.0)) : f32[5, 7]
        %t = permute(%a) {permutation=[1, 0]} : f32[7, 5]
        %s = extern(%t) {target="numpy.sort", arguments="(($0,), {'axis': 1})"} : f32[7, 5]
        %u = slice(%s) {starts=[6, 0], stops=[-1, 5], steps=[-1, 1]} : f32[7, 5]
        %y = exp(%u) : f32[7, 5]
        return %y, %s
    }""")
    assert run.calls == ["numpy.sort"]
    assert run.kernels == ["map", "map"]


def test_programs_run_in_the_tile_interpreter_too() -> None:
    """Which is stricter: a read out of bounds, or of what was never written, is an error there."""
    for seed in range(100, 130):
        graph, data = random_graph(seed)
        program = lower(graph, "cpu", threads=2).program
        execute(program, data, compiled=False)


def test_texts_are_made_when_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile prints nothing: that took an eighth of its time."""
    made: list[str] = []
    plain = Graph.__str__

    def printed(graph: Graph) -> str:
        made.append(graph.name)
        return plain(graph)

    monkeypatch.setattr(Graph, "__str__", printed)
    lowered = lower(parse(MLP), "cpu")
    assert made == []
    assert lowered.stages["fuse"] == lowered.stages["fuse"]
    assert len(made) == 1
