"""Masks made of data on a CPU: a task looks at them once, and visits the keys from the first to the last that count."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from fixed_schedule import Fixed
from programs import Built, Run, build, check_built, random_inputs

from fusec.ir.parse import parse
from fusec.ir.types import bf16
from fusec.passes.families.attention.schedule.cpu import AttentionSchedule, LowPrecisionAttentionSchedule
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import RegisterTile

N = 150
F32 = AttentionSchedule(32, 16, RegisterTile(4, 32), RegisterTile(4, 32), 1)
GROUPS = LowPrecisionAttentionSchedule(64, 32, 64, 32, RegisterTile(6, 32), RegisterTile(5, 32))
TILES = LowPrecisionAttentionSchedule(
    64, 32, 64, 32, RegisterTile(32, 32, tiles=True), RegisterTile(16, 32, tiles=True)
)
AMX = "cpu:sapphirerapids"
needs_groups = pytest.mark.skipif(not cpu_target().multiplies(bf16), reason="no AVX512-BF16 here")


WAYS = pytest.mark.parametrize(
    ("schedule", "target"),
    [
        (F32, "cpu"),
        (replace(F32, split=3), "cpu"),
        pytest.param(GROUPS, "cpu", marks=needs_groups),
        pytest.param(replace(GROUPS, chunk=256), "cpu", marks=needs_groups),
        pytest.param(replace(GROUPS, shared=True), "cpu", marks=needs_groups),
        (TILES, AMX),
        (replace(TILES, shared=True), AMX),
    ],
    ids=["f32", "f32 in parts", "bf16", "bf16 in one chunk", "bf16 in parts", "tiles", "tiles in parts"],
)


def masked(dtype: str, *lines: str, inputs: str, queries: int = N, fill: str = "-inf") -> str:
    shape = f"[2, {queries}, {N}]"
    return "\n".join(
        (
            f"graph @g(%q: {dtype}[2, {queries}, 16], %k: {dtype}[2, {N}, 16], %v: {dtype}[2, {N}, 16], {inputs}) {{",
            f"%s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {dtype}{shape}",
            f"%i = iota() {{axis=0}} : i64[{queries}, 1]",
            f"%j = iota() {{axis=1}} : i64[1, {N}]",
            *lines,
            f"%z = select(%c, %s, {dtype}({fill})) : {dtype}{shape}",
            f"%p = softmax(%z) {{axis=2}} : {dtype}{shape}",
            f"%o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : {dtype}[2, {queries}, 16]",
            "return %o\n}",
        )
    )


@cache
def built(schedule: CpuSchedule, target: str, text: str) -> Built:
    """One for all data: a mask made of data is the same program whatever it hides."""
    machine = cpu_target(target)
    selector = Fixed(machine, 2, {}, schedule, None)
    return build(text, selector=selector, target=target, compiled=machine.runs_here, disable=frozenset({"vectors"}))


def run(
    schedule: CpuSchedule, target: str, lines: tuple[str, ...], data: Any, *, found: bool = True, **how: Any
) -> Run:
    dtype = "f32" if isinstance(schedule, AttentionSchedule) else "bf16"
    made = built(schedule, target, masked(dtype, *lines, **how))
    arrays = [*random_inputs(made.graph)[:3], data]
    result = check_built(made, arrays, slack=6, atol=2e-6 if dtype == "f32" else 2e-3)
    assert ("within first_key" in result.lowered.stages["tile"]) == found
    return result


SAME = ("%a = reshape(%ids) : i64[2, 150, 1]", "%b = reshape(%ids) : i64[2, 1, 150]")
EQUAL = (*SAME, "%c = eq(%a, %b) : bool[2, 150, 150]")
EARLIER = (
    *SAME,
    "%e = eq(%a, %b) : bool[2, 150, 150]",
    "%l = le(%j, %i) : bool[150, 150]",
    "%c = logical_and(%e, %l) : bool[2, 150, 150]",
)


@pytest.mark.sweep(1)
@WAYS
@pytest.mark.parametrize("lines", [EQUAL, EARLIER], ids=["documents", "causal within documents"])
@pytest.mark.parametrize("kind", ["sorted", "shuffled", "one"])
def test_documents(schedule: CpuSchedule, target: str, lines: tuple[str, ...], kind: str) -> None:
    lengths = [150] if kind == "one" else [40, 3, 57, 50]
    ids = np.repeat(np.arange(len(lengths)), lengths)
    ids = np.stack([ids, ids[::-1]]).astype(np.int64)
    if kind == "shuffled":
        ids = np.random.default_rng(0).permuted(ids, axis=1)
    run(schedule, target, lines, ids, inputs="%ids: i64[2, 150]")


@pytest.mark.sweep(1)
@WAYS
@pytest.mark.parametrize("lengths", [(3, 150), (1, 64), (65, 0), (0, 0)], ids=str)
def test_lengths(schedule: CpuSchedule, target: str, lengths: tuple[int, int]) -> None:
    """Without a key a row of this code is NaN."""
    lines = ("%n = reshape(%length) : i64[2, 1, 1]", "%c = lt(%j, %n) : bool[2, 1, 150]")
    result = run(schedule, target, lines, np.asarray(lengths), inputs="%length: i64[2]")
    for length, rows in zip(lengths, result.outputs[0], strict=True):
        assert np.isnan(rows.astype(np.float32)).all() == (length == 0)


@pytest.mark.sweep(1)
@WAYS
@pytest.mark.parametrize("queries", [1, 4, 33])
@pytest.mark.parametrize("first", [0, 31, 32, 117])
def test_places_of_a_cache(schedule: CpuSchedule, target: str, queries: int, first: int) -> None:
    lines = (f"%n = reshape(%place) : i64[{queries}, 1]", f"%c = le(%j, %n) : bool[{queries}, 150]")
    places = np.arange(first, first + queries)
    run(schedule, target, lines, places, inputs=f"%place: i64[{queries}]", queries=queries)


@WAYS
def test_keys_outside_are_not_visited(schedule: CpuSchedule, target: str) -> None:
    """What is there does not reach the result, not even as 0 times NaN."""
    keep = np.zeros((2, N), bool)
    keep[:, 70:90] = True
    lines = ("%c = reshape(%keep) : bool[2, 1, 150]",)
    result = run(schedule, target, lines, keep, inputs="%keep: bool[2, 150]")
    dtype = "f32" if isinstance(schedule, AttentionSchedule) else "bf16"
    text = masked(dtype, *lines, inputs="%keep: bool[2, 150]")
    arrays = [*random_inputs(parse(text))[:3], keep]
    for place in arrays[1:3]:
        place[:, :64] = np.nan
        place[:, 96:] = np.inf
    from programs import run as run_only

    machine = cpu_target(target)
    how = {"selector": Fixed(machine, 2, {}, schedule, None), "target": target, "compiled": machine.runs_here}
    found = run_only(parse(text), arrays, **how)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.outputs[0], result.outputs[0])


@WAYS
def test_a_finite_fill_is_not_trusted(schedule: CpuSchedule, target: str) -> None:
    """A row of which every score is masked is the mean of all values."""
    lines, keep = ("%c = reshape(%keep) : bool[2, 1, 150]",), np.zeros((2, N), bool)
    run(schedule, target, lines, keep, found=False, inputs="%keep: bool[2, 150]", fill="-1e30")
