"""What a thread reads of neighbours along an axis, and expressions at each of those lanes."""

from __future__ import annotations

from fusec.codegen.cuda.lane_values import LaneValues
from fusec.ir.index import add, floordiv, mod, mul, symbol
from fusec.ir.types import bf16, bool_, i64, u8
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr

K = symbol("k", 0, 255)
LINE = symbol("line", 0, 39)
PACKED = Buffer("w", u8, (40, 128), (128, 1))
SCALES = Buffer("s", bf16, (40, 4), (4, 1))


def lanes_of(e: ScalarExpr, lanes: int = 32) -> tuple[LaneValues, list[ScalarExpr]]:
    values = LaneValues(K, lanes)
    for _ in range(2):
        found = [values.at(e, lane) for lane in range(lanes)]
        values.settle()
    return values, found


def test_neighbours_that_share_a_byte() -> None:
    values, found = lanes_of(Load(PACKED, (LINE, floordiv(K, 2))))
    (member,) = values.members
    assert (member.count, member.words, member.width) == (16, 4, 16)
    assert [e.index for e in found if isinstance(e, Load)] == [(lane // 2,) for lane in range(32)]
    assert not values.stays(member)


def test_what_all_lanes_share() -> None:
    values, _ = lanes_of(Load(SCALES, (LINE, floordiv(K, 64))))
    (member,) = values.members
    assert (member.count, member.width) == (1, 2)
    values, _ = lanes_of(Load(SCALES, (LINE, 2)))
    assert values.stays(values.members[0])


def test_what_the_lane_decides_is_gone() -> None:
    even = Apply("lt", (IndexValue(mod(K, 2)), Const(1, i64)), bool_)
    _, found = lanes_of(Apply("select", (even, Const(0, u8), Const(1, u8)), u8))
    assert [e.value for e in found if isinstance(e, Const)] == [0, 1] * 16


def test_what_blocks_decide_says_what_is_read() -> None:
    first = Apply("lt", (IndexValue(K), Const(128, i64)), bool_)
    low, high = Load(PACKED, (LINE, K)), Load(PACKED, (LINE, add(K, -128)))
    values, found = lanes_of(Apply("select", (first, low, high), u8))
    assert [m.when is not None and m.when[1] for m in values.members] == [True, False]
    assert len({e.args[0] for e in found if isinstance(e, Apply)}) == 1
    both, _ = lanes_of(Apply("add", (Apply("select", (first, low, high), u8), low), u8))
    assert [m.when is None for m in both.members] == [True, False]


def test_groups_that_blocks_cut() -> None:
    values, found = lanes_of(Load(Buffer("t", bf16, (22,), (1,)), (floordiv(K, 12),)), 8)
    assert all(m.count == 1 for m in values.members)
    assert len(found) == 8


def test_rows_at_odd_addresses() -> None:
    values, _ = lanes_of(Load(Buffer("w", u8, (40, 131), (131, 1)), (LINE, floordiv(K, 2))))
    assert values.members[0].width == 1
    values, _ = lanes_of(Load(Buffer("w", u8, (40, 132), (132, 1)), (LINE, floordiv(K, 2))))
    assert values.members[0].width == 4


def test_elements_apart() -> None:
    values, _ = lanes_of(Load(Buffer("w", u8, (1024,), (1,)), (mul(K, 4),)))
    assert len(values.members) == 32
