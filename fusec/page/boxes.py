# SPDX-License-Identifier: Apache-2.0
"""The boxes of a picture: inputs, ops, kernels, outputs, and layers of a model that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.attributes import ConstantAttributes, ExternAttributes
from fusec.ir.graph import FusedAttributes
from fusec.ir.nodes import Op, Port, Value
from fusec.report import time_text

LETTER, LINE, PAD = 6.7, 15.0, 8.0
_OPS_SHOWN = 14
_LETTERS_SHOWN = 44

Seconds = Mapping[str, float]
"""The time of each kernel, by its name in reports."""


@dataclass(frozen=True)
class Box:
    """What is drawn: the lines of text (the first is the title), a CSS class, and what pointing at it shows.

    kernels: what a kernel's report may be called.
    """

    lines: tuple[str, ...]
    style: str
    hint: str
    kernels: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[float, float]:
        return max(map(len, self.lines)) * LETTER + 2 * PAD, len(self.lines) * LINE + 2 * PAD - 3


def input_box(value: Value, port: Port) -> Box:
    """An argument, or a weight by its name in a ``state_dict``."""
    name = port.path.removeprefix("self.") or value.name
    return Box((_short(name), str(value.type)), port.role, f"{port.role} {port.path}: {value.type}")


def outside_box(value: Value, where: str) -> Box:
    """A value that a layer has from elsewhere, or gives there."""
    return Box((_short(where), str(value.type)), "outside", f"{where}\n{value}: {value.type}")


def output_box(number: int, value: Value) -> Box:
    """A result."""
    return Box((f"output {number}", str(value.type)), "output", f"{value}: {value.type}")


def op_box(op: Op, seconds: Seconds) -> Box:
    """An op, a library call, or a kernel with what it fused and its time."""
    where = f"\n{op.location.short}" if op.location is not None else ""
    types = ", ".join(str(value.type) for value in op.results)
    match op.attributes:
        case FusedAttributes(kind=kind, body=body):
            ops = [o for o in body.ops if not isinstance(o.attributes, ConstantAttributes)]
            lines = [f"{o.name} {', '.join(map(str, o.results))}" for o in ops[:_OPS_SHOWN]]
            more = [f"and {len(ops) - _OPS_SHOWN} more"] if len(ops) > _OPS_SHOWN else []
            hint = "\n".join(f"{o.name} {', '.join(map(str, o.results))}{_at(o)}" for o in ops)
            time = _time(seconds_of(op, seconds), seconds)
            texts = (f"{kind} kernel", *map(_short, lines), *more, _short(types), *time)
            return Box(texts, f"kernel {kind}", hint, _names(op, kind))
        case ExternAttributes(target=target):
            return Box((_short(target), _short(types)), "extern", f"library call: {target}{where}")
    title = f"{op.name} {', '.join(map(str, op.results))}"
    return Box((_short(title), _short(types)), f"op {op.definition.kind}", f"{op!r}{where}")


def layer_box(name: str, ops: Sequence[Op], seconds: Seconds) -> Box:
    """A layer as one box: its name, what is in it, and its kernels' time."""
    kinds = Counter(op.attributes.kind for op in ops if isinstance(op.attributes, FusedAttributes))
    calls = sum(isinstance(op.attributes, ExternAttributes) for op in ops)
    rest = len(ops) - calls - kinds.total()
    told = [f"{count} {kind}" for kind, count in kinds.most_common()]
    lines = [f"kernels: {', '.join(told)}"] if told else []
    lines += [f"{calls} library call{'s' if calls > 1 else ''}"] if calls else []
    lines += [f"{rest} op{'s' if rest > 1 else ''}"] if rest else []
    time = _time(sum(seconds_of(op, seconds) for op in ops), seconds)
    return Box((_short(name), *map(_short, lines), *time), "layer", f"{name}: press to unfold")


def seconds_of(op: Op, seconds: Seconds) -> float:
    """A kernel's time; 0 for one that is not known, and for other ops."""
    if not isinstance(op.attributes, FusedAttributes):
        return 0.0
    return next((seconds[name] for name in _names(op, op.attributes.kind) if name in seconds), 0.0)


def _names(op: Op, kind: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{result.name}" for result in op.results)


def _time(own: float, seconds: Seconds) -> list[str]:
    whole = sum(seconds.values())
    return [f"{time_text(own)}, {100 * own / whole:.0f} %"] if own > 0 and whole > 0 else []


def _at(op: Op) -> str:
    return f"  {op.location.short}" if op.location is not None else ""


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS_SHOWN else text[: _LETTERS_SHOWN - 1] + "…"
