# SPDX-License-Identifier: Apache-2.0
"""Groups that differ in names alone are scheduled and lowered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fusec.ir.nodes import Value
from fusec.passes.groups.structure import Key, structure_of
from fusec.passes.lower.context import LoweredGroup, LoweringContext, PackPlan
from fusec.passes.lower.pieces import Pieces
from fusec.tile.scalar import Buffer

Passed = tuple[Value | Buffer, ...]


@dataclass
class Alike:
    """Lowers a group by ``lower``, or gives what it made of one before, for this one's values.

    ``lower`` must depend on nothing but the group's structure, its layouts in memory and what is static of its inputs.
    The kernels of later groups keep the names of the first one's parameters. What becomes several ops is looked at each
    time: they are ops on its own values.
    """

    lower: Callable[[LoweringContext], LoweredGroup | Pieces]
    known: dict[Key, tuple[LoweredGroup, tuple[Value, ...]]] = field(default_factory=dict)

    def __call__(self, context: LoweringContext) -> LoweredGroup | Pieces:
        key, values = structure_of(context.op, lambda value: (context.strides[value], value in context.static))
        found = self.known.get(key)
        if found is None:
            made = self.lower(context)
            if isinstance(made, LoweredGroup):
                self.known[key] = made, values
            return made
        before, others = found
        return _for_values(before, dict(zip(others, values, strict=True)), context.name)


def _for_values(lowered: LoweredGroup, values: Mapping[Value, Value], name: str) -> LoweredGroup:
    """A lowered group with other values for those that it was lowered with."""

    def passed(arguments: Passed) -> Passed:
        return tuple(x if isinstance(x, Buffer) else values[x] for x in arguments)

    return replace(
        lowered,
        kernel=replace(lowered.kernel, name=name),
        arguments=passed(lowered.arguments),
        packs=tuple(_pack_for(p, values) for p in lowered.packs),
        reductions=tuple(replace(r, arguments=passed(r.arguments)) for r in lowered.reductions),
    )


def _pack_for(plan: PackPlan, values: Mapping[Value, Value]) -> PackPlan:
    """The plan for other values, the copy under the name of its own source."""
    known = plan.name or plan.packed.name
    old = next((v for v in plan.sources if known.startswith(v.name)), None)
    name = known if old is None else values[old].name + known.removeprefix(old.name)
    return replace(plan, sources=tuple(values[v] for v in plan.sources), name=name)
