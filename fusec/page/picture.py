# SPDX-License-Identifier: Apache-2.0
"""A graph as SVG: a box for each input, op and kernel, a line for each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fusec.ir.attributes import ConstantAttributes, ExternAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op, Value
from fusec.page.layout import Layout, lay_out

_LETTER, _LINE, _PAD = 6.7, 15.0, 8.0
_OPS_SHOWN = 14
_LETTERS_SHOWN = 44


@dataclass(frozen=True)
class _Box:
    """What is drawn: the lines of text (the first is the title), a CSS class, and what pointing at it shows."""

    lines: tuple[str, ...]
    style: str
    hint: str
    kernels: tuple[str, ...] = ()
    """What a kernel's report may be called."""

    @property
    def size(self) -> tuple[float, float]:
        return max(map(len, self.lines)) * _LETTER + 2 * _PAD, len(self.lines) * _LINE + 2 * _PAD - 3


def picture(graph: Graph) -> str:
    """The graph as an ``svg`` element that scales with its frame."""
    boxes: list[_Box] = []
    edges: list[tuple[int, int]] = []
    hints: list[str] = []
    made: dict[Value, int] = {}
    for value, port in zip(graph.inputs, graph.input_ports, strict=True):
        made[value] = len(boxes)
        name = port.path.removeprefix("self.") or value.name
        boxes.append(_Box((_short(name), str(value.type)), port.role, f"{port.role} {port.path}: {value.type}"))
    for op in graph.ops:
        if isinstance(op.attributes, ConstantAttributes):
            continue
        for value in dict.fromkeys(op.operands):
            if value in made:
                edges.append((made[value], len(boxes)))
                hints.append(f"{value}: {value.type}")
        made |= {result: len(boxes) for result in op.results}
        boxes.append(_box(op))
    for number, value in enumerate(graph.outputs):
        if value in made:
            edges.append((made[value], len(boxes)))
            hints.append(f"{value}: {value.type}")
        boxes.append(_Box((f"output {number}", str(value.type)), "output", f"{value}: {value.type}"))
    return _drawn(boxes, hints, lay_out([box.size for box in boxes], edges))


def height_of(drawn: str) -> float:
    """The height of a picture, in the pixels of its text at its own size."""
    _, _, size = drawn.partition('viewBox="')
    return float(size.split()[3].rstrip('"'))


def _box(op: Op) -> _Box:
    where = f"\n{op.location.short}" if op.location is not None else ""
    types = ", ".join(str(value.type) for value in op.results)
    match op.attributes:
        case FusedAttributes(kind=kind, body=body):
            ops = [o for o in body.ops if not isinstance(o.attributes, ConstantAttributes)]
            lines = [f"{o.name} {', '.join(map(str, o.results))}" for o in ops[:_OPS_SHOWN]]
            more = [f"and {len(ops) - _OPS_SHOWN} more"] if len(ops) > _OPS_SHOWN else []
            hint = "\n".join(f"{o.name} {', '.join(map(str, o.results))}{_at(o)}" for o in ops)
            return _Box(
                (f"{kind} kernel", *map(_short, lines), *more, _short(types)),
                f"kernel {kind}",
                hint,
                tuple(f"{kind}_{r.name}" for r in op.results),
            )
        case ExternAttributes(target=target):
            return _Box((_short(target), _short(types)), "extern", f"library call: {target}{where}")
    title = f"{op.name} {', '.join(map(str, op.results))}"
    return _Box((_short(title), _short(types)), f"op {op.definition.kind}", f"{op!r}{where}")


def _at(op: Op) -> str:
    return f"  {op.location.short}" if op.location is not None else ""


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS_SHOWN else text[: _LETTERS_SHOWN - 1] + "…"


def _drawn(boxes: Sequence[_Box], hints: Sequence[str], layout: Layout) -> str:
    margin = 12.0
    size = f"{-margin:g} {-margin:g} {layout.width + 2 * margin:g} {layout.height + 2 * margin:g}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="{size}" role="img">']
    for bends, hint in zip(layout.bends, hints, strict=True):
        lines.append(f'<path class="edge" d="{_curve(bends)}"><title>{escape(hint)}</title></path>')
    for box, (x, y) in zip(boxes, layout.at, strict=True):
        width, height = box.size
        kernels = f' data-kernels="{escape(" ".join(box.kernels))}"' if box.kernels else ""
        lines.append(f'<g class="{escape(box.style)}"{kernels}><title>{escape(box.hint)}</title>')
        lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>')
        for number, text in enumerate(box.lines):
            style = ' class="title"' if number == 0 else ""
            at = f'x="{x + _PAD:.1f}" y="{y + _PAD + _LINE * number + 9:.1f}"'
            lines.append(f"<text {at}{style}>{escape(text)}</text>")
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"])


def _curve(bends: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = bends
    parts = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        middle = (y + ny) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {nx:.1f} {middle:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    return "".join(parts)
