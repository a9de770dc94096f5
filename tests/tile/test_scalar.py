"""Scalar expressions, rewritten."""

from __future__ import annotations

from fusec.ir.types import f32
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, rewrite, rewrite_upward, walk

X = Load(Buffer("x", f32, (), (), "tile"), ())


def _doubled(levels: int) -> ScalarExpr:
    """2**levels of X, each sum's arguments one and the same."""
    e: ScalarExpr = X
    for _ in range(levels):
        e = Apply("add", (e, e), f32)
    return e


def test_arguments_are_done_first() -> None:
    seen = []

    def change(e: Apply) -> ScalarExpr:
        seen.append(e)
        return Const(1.0, f32) if e.op == "neg" else e

    inner = Apply("neg", (X,), f32)
    assert rewrite_upward(Apply("exp", (inner,), f32), change) == Apply("exp", (Const(1.0, f32),), f32)
    assert [e.op for e in seen] == ["neg", "exp"]
    assert seen[1].args == (Const(1.0, f32),)


def test_what_does_not_change_stays_itself() -> None:
    e = _doubled(3)
    assert rewrite_upward(e, lambda node: node) is e
    assert rewrite(e, lambda node: None) is e


def test_shared_parts_are_visited_once_and_stay_shared() -> None:
    calls = []

    def turn(e: Apply) -> ScalarExpr:
        calls.append(e)
        return Apply("mul", e.args, f32)

    made = rewrite_upward(_doubled(60), turn)
    assert len(calls) == 60
    assert len({id(node) for node in walk(made)}) == 61
