# SPDX-License-Identifier: Apache-2.0
"""Which plan a call would run now, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusec.frontend.capture import AsWritten
from fusec.frontend.structures import CallSpec, Integer, Node, Static, Structure
from fusec.ir.index import Symbol
from fusec.ir.indexing import evaluate
from fusec.ir.types import contiguous_strides
from fusec.runtime.arrays import Layout
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.dynamic import Opening, is_open
from fusec.runtime.plan import Plan, Signature


def standing_plan(dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
    """The plan that serves a call; None where it is not made yet, or where the call can't have one."""
    counting = dispatcher.counting
    if counting is not None:
        found = standing_plan(counting, (*args, *counting.values), kwargs)
        if found is not None:
            return found
    call = dispatcher.read(args, kwargs)
    if isinstance(call, AsWritten):
        return None
    own = dispatcher.own_plans
    return next((plan for plan in own if _serves(plan, call[-1]) and _holds(plan)), None)


def _holds(plan: Plan) -> bool:
    """Whether all that the capture read outside the arguments is what it was."""
    return plan.capture is None or plan.capture.environment.holds()


def _serves(plan: Plan, signature: Signature) -> bool:
    if plan.signature is None:
        return False
    library, spec, layouts, mode = plan.signature
    asked_library, asked, asked_layouts, asked_mode = signature
    if library != asked_library or mode != asked_mode:
        return False
    if plan.structure is not None:
        return layouts == asked_layouts and _same_structure(plan.structure, asked)
    if plan.opening is not None:
        return spec == asked and _in_ranges(plan.opening, layouts, asked_layouts)
    return plan.signature == signature


def _in_ranges(opening: Opening, known: Sequence[Layout], asked: Sequence[Layout]) -> bool:
    extents: dict[str, int] = {}
    for number, (shape, old, new) in enumerate(zip(opening.shapes, known, asked, strict=True)):
        if not is_open(shape):
            if old != new:
                return False
            continue
        found = new.type.static_shape
        kinds = [(x.type.dtype, x.type.rank, x.type.device, x.flags) for x in (old, new)]
        if kinds[0] != kinds[1]:
            return False
        for wanted, extent in zip(shape, found, strict=True):
            if isinstance(wanted, Symbol) and wanted.name not in extents:
                if extent < (wanted.lo or 0) or (wanted.hi is not None and extent > evaluate(wanted.hi, extents)):
                    return False
                extents[wanted.name] = extent
        if tuple(evaluate(n, extents) for n in shape) != found:
            return False
        steps = opening.steps.get(number)
        if new.strides != (tuple(evaluate(n, extents) for n in steps) if steps else contiguous_strides(found)):
            return False
    return True


def _same_structure(pattern: CallSpec, asked: CallSpec) -> bool:
    """Whether a call's structure is a pattern's, in which integers may stand for ranges."""
    if [name for name, _ in pattern.kwargs] != [name for name, _ in asked.kwargs]:
        return False
    integers: dict[str, int] = {}

    def same(wanted: Structure, found: Structure) -> bool:
        if isinstance(wanted, Integer):
            value = found.value if isinstance(found, Static) else None
            known = integers.setdefault(wanted.name, value) if type(value) is int else None
            return known is not None and known == value and wanted.least <= known <= wanted.most
        if isinstance(wanted, Node) and isinstance(found, Node):
            alike = (wanted.kind, wanted.keys, len(wanted.parts)) == (found.kind, found.keys, len(found.parts))
            return alike and all(map(same, wanted.parts, found.parts))
        return wanted == found

    parts = [*pattern.args, *(part for _, part in pattern.kwargs)]
    given = [*asked.args, *(part for _, part in asked.kwargs)]
    return len(parts) == len(given) and all(map(same, parts, given))
