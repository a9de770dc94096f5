# SPDX-License-Identifier: Apache-2.0
"""A graph as SVG: a box for each input, op and kernel, a line for each value; a large one by layers, which unfold.

A layer is drawn twice, as one box and with what is in it; ``page.css`` shows one of the two, ``page.js`` makes room.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType

from fusec.ir.attributes import ConstantAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Port, Value
from fusec.page.boxes import LINE, PAD, Box, Seconds, input_box, layer_box, op_box, output_box, outside_box
from fusec.page.layers import layers_of
from fusec.page.layout import Layout, lay_out

_FLAT = 40
"""Boxes of a graph that is drawn without layers."""

_HEAD = 26.0
_NO_SECONDS: Seconds = MappingProxyType({})


@dataclass
class _Scene:
    """Boxes in an order that all edges go along; a layer's box has what is in it beside it."""

    boxes: list[Box] = field(default_factory=list)
    inner: dict[int, _Scene] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    edges: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def add(self, key: Hashable, box: Box) -> None:
        self.numbers.setdefault(key, len(self.boxes))
        self.boxes.append(box)

    def join(self, start: Hashable, end: Hashable, value: Value) -> None:
        edge = (self.numbers[start], self.numbers[end])
        hints = self.edges.setdefault(edge, [])
        if (hint := f"{value}: {value.type}") not in hints:
            hints.append(hint)


def picture(graph: Graph, seconds: Seconds = _NO_SECONDS) -> str:
    """The graph as an ``svg`` element that scales with its frame. ``seconds``: of kernels, shown with their shares."""
    ops = [op for op in graph.ops if not isinstance(op.attributes, ConstantAttributes)]
    layers = layers_of(graph) if len(ops) + len(graph.inputs) > _FLAT else {}
    layers = layers if len(set(layers.values())) > 1 else {}
    drawn = set(ops)
    ordered = [*(op for op in ops if op not in layers), *(op for op in layers if op in drawn)]
    return _svg(_Drawing(graph, ordered, layers, seconds).whole())


def height_of(drawn: str) -> float:
    """The height of a picture, in the pixels of its text at its own size."""
    _, _, size = drawn.partition('viewBox="')
    return float(size.split()[3].rstrip('"'))


class _Drawing:
    """What is drawn of a graph. ops: in an order in which layers follow each other. layers: of some ops or of none."""

    def __init__(self, graph: Graph, ops: Sequence[Op], layers: Mapping[Op, str], seconds: Seconds) -> None:
        self.graph, self.ops, self.layers, self.seconds = graph, ops, layers, seconds
        self.ports: dict[Value, Port] = dict(zip(graph.inputs, graph.input_ports, strict=True))
        self.makers: dict[Value, Op] = {result: op for op in ops for result in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in ops:
            for value in dict.fromkeys(op.operands):
                self.readers.setdefault(value, []).append(op)

    def whole(self) -> _Scene:
        """Ops without a layer and the layers, between inputs and outputs."""
        scene = _Scene()
        for value, port in self.ports.items():
            if not self._is_inside(value):
                scene.add(value, input_box(value, port))
        for op in self.ops:
            if op not in self.layers:
                scene.add(op, op_box(op, self.seconds))
        by_name: dict[str, list[Op]] = {}
        for op in self.ops:
            if op in self.layers:
                by_name.setdefault(self.layers[op], []).append(op)
        for name, inside in by_name.items():
            scene.inner[len(scene.boxes)] = self._layer(name, inside)
            scene.add(name, layer_box(name, inside, self.seconds))
        for op in self.ops:
            for value in dict.fromkeys(op.operands):
                self._join(scene, value, self._place(op))
        for number, value in enumerate(self.graph.outputs):
            scene.add(("output", number), output_box(number, value))
            self._join(scene, value, ("output", number))
        return scene

    def _is_inside(self, value: Value) -> bool:
        """Whether layers alone read an input, and it is a weight, which each of them shows."""
        readers = self.readers.get(value, ())
        is_weight = self.ports[value].role not in ("argument", "integer")
        return (
            is_weight and bool(readers) and value not in self.graph.outputs and all(o in self.layers for o in readers)
        )

    def _join(self, scene: _Scene, value: Value, end: Hashable) -> None:
        maker = self.makers.get(value)
        start = value if maker is None else self._place(maker)
        if start in scene.numbers and start != end:
            scene.join(start, end, value)

    def _place(self, op: Op) -> Hashable:
        """The op's layer, or itself."""
        return self.layers.get(op, op)

    def _told(self, op: Op) -> str:
        """What a layer calls another, or an op outside."""
        return self.layers.get(op) or f"{op.name} {op.results[0]}"

    def _layer(self, name: str, inside: Sequence[Op]) -> _Scene:
        """A layer's ops between its weights, what comes from elsewhere, and what goes there."""
        scene = _Scene()
        for value in dict.fromkeys(value for op in inside for value in op.operands):
            port, maker = self.ports.get(value), self.makers.get(value)
            if port is not None and port.role not in ("argument", "integer"):
                scene.add(value, input_box(value, port))
            elif port is not None:
                scene.add(value, outside_box(value, f"from {value.name}"))
            elif maker is not None and self.layers.get(maker) != name:
                scene.add(value, outside_box(value, f"from {self._told(maker)}"))
        for op in inside:
            scene.add(op, op_box(op, self.seconds))
            for value in dict.fromkeys(op.operands):
                start: Hashable = value if value in scene.numbers else self.makers.get(value)
                if start in scene.numbers:
                    scene.join(start, op, value)
        for value in (value for op in inside for value in op.results):
            if goes := self._goes(value, name):
                scene.add(("to", value), outside_box(value, f"to {', '.join(goes)}"))
                scene.join(self.makers[value], ("to", value), value)
        return scene

    def _goes(self, value: Value, name: str) -> list[str]:
        """Where a layer's value goes outside of it."""
        readers = (op for op in self.readers.get(value, ()) if self.layers.get(op) != name)
        outputs = (f"output {k}" for k, output in enumerate(self.graph.outputs) if output is value)
        return [*dict.fromkeys(map(self._told, readers)), *outputs]


def _svg(scene: _Scene) -> str:
    layout = lay_out([box.size for box in scene.boxes], list(scene.edges))
    margin = 12.0
    size = f"{-margin:g} {-margin:g} {layout.width + 2 * margin:g} {layout.height + 2 * margin:g}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="{size}" role="img">'
    return "\n".join([head, *_drawn(scene, layout), "</svg>"])


def _drawn(scene: _Scene, layout: Layout) -> list[str]:
    lines = []
    for (edge, hints), bends, rows in zip(scene.edges.items(), layout.bends, layout.bend_rows, strict=True):
        points = " ".join(f"{x:.1f},{y:.1f},{row}" for (x, y), row in zip(bends, rows, strict=True))
        ends = f'data-from="{edge[0]}" data-to="{edge[1]}" data-points="{points}"' if scene.inner else ""
        hint = escape("\n".join(hints))
        lines.append(f'<path class="edge" {ends} d="{_curve(bends)}"><title>{hint}</title></path>')
    for number, (box, at, row) in enumerate(zip(scene.boxes, layout.at, layout.rows, strict=True)):
        inner = scene.inner.get(number)
        if inner is None:
            place = f' data-box="{number}" data-row="{row}"' if scene.inner else ""
            lines += [f"<g{place}{_attributes(box)}>", *_box(box, at), "</g>"]
        else:
            lines += _layer(box, inner, at, f'data-box="{number}" data-row="{row}"')
    return lines


def _layer(box: Box, inner: _Scene, at: tuple[float, float], place: str) -> list[str]:
    """A box, and the larger one with what is in it; the latter's middle is above the former's."""
    layout = lay_out([b.size for b in inner.boxes], list(inner.edges))
    width, height = layout.width + 4 * PAD, layout.height + _HEAD + 3 * PAD
    left = at[0] + box.size[0] / 2 - width / 2
    size = f'data-wide="{width:.1f}" data-high="{height:.1f}"'
    title = f'<text class="title" x="{left + 2 * PAD:.1f}" y="{at[1] + PAD + 9:.1f}">'
    inside = f"translate({left + 2 * PAD:.1f} {at[1] + _HEAD + PAD:.1f})"
    return [
        f'<g {place} {size} class="layer" tabindex="0" role="button" aria-expanded="false">',
        f'<g class="folded"><title>{escape(box.hint)}</title>',
        *_box(box, at)[1:],
        '</g><g class="unfolded">',
        f'<rect class="room" x="{left:.1f}" y="{at[1]:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"/>',
        f"{title}▾ {escape(' · '.join(box.lines))}</text>",
        f'<g transform="{inside}">',
        *_drawn(inner, layout),
        "</g></g></g>",
    ]


def _attributes(box: Box) -> str:
    kernels = f' data-kernels="{escape(" ".join(box.kernels))}"' if box.kernels else ""
    return f' class="{escape(box.style)}"{kernels}'


def _box(box: Box, at: tuple[float, float]) -> list[str]:
    (x, y), (width, height) = at, box.size
    lines = [
        f"<title>{escape(box.hint)}</title>",
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>',
    ]
    for number, text in enumerate(box.lines):
        style = ' class="title"' if number == 0 else ""
        place = f'x="{x + PAD:.1f}" y="{y + PAD + LINE * number + 9:.1f}"'
        lines.append(f"<text {place}{style}>{escape(text)}</text>")
    return lines


def _curve(bends: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = bends
    parts = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        middle = (y + ny) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {nx:.1f} {middle:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    return "".join(parts)
