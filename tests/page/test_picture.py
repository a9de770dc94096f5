"""Pictures of graphs with layers: what stands outside, what inside, and what joins them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

from fusec.ir.parse import parse
from fusec.page.picture import height_of, picture

SVG = "{http://www.w3.org/2000/svg}"


def stack(layers: int, ops: int) -> str:
    """A graph of layers, each of one weight and so many ops; the first one's result also goes to the last."""
    ports = ",\n".join(f'    %w{k}: f32[4, 4] parameter "self.layers.{k}.w"' for k in range(layers))
    lines, last = [], "x"
    for k in range(layers):
        lines.append(f"    %m{k} = mul(%{last}, %w{k}) : f32[4, 4]")
        last = f"m{k}"
        for n in range(ops - 1):
            lines.append(f"    %e{k}_{n} = exp(%{last}) : f32[4, 4]")
            last = f"e{k}_{n}"
    lines.append(f"    %z = add(%{last}, %m0) : f32[4, 4]")
    body = "\n".join(lines)
    return f'graph @g(\n    %x: f32[4, 4] argument "x",\n{ports}\n) {{\n{body}\n    return %z\n}}\n'


def drawn(text: str, seconds: Mapping[str, float] | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(picture(parse(text), seconds or {}))


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def test_a_small_graph_has_no_layers() -> None:
    svg = drawn(stack(3, 4))
    assert not [g for g in svg.iter(f"{SVG}g") if g.get("class") == "layer"]
    assert len(svg.findall(f"{SVG}g")) == 1 + 3 + 13 + 1


def test_layers_are_boxes_that_hold_their_ops() -> None:
    svg = drawn(stack(5, 10))
    boxes = svg.findall(f"{SVG}g")
    layers = [g for g in boxes if g.get("class") == "layer"]
    assert len(boxes) == 1 + 5 + 1
    assert [texts(layer[0])[0] for layer in layers] == [f"layers.{k}" for k in range(5)]
    for k, layer in enumerate(layers):
        folded, unfolded = layer
        assert texts(folded)[1] == f"{10 + (k == 4)} ops"
        inside = texts(unfolded)
        assert f"layers.{k}.w" in inside
        assert f"mul %m{k}" in inside
    assert {"to layers.1", "to layers.4"} <= set(texts(layers[0]))
    assert {"from layers.0", "from layers.3", "to output 0"} <= set(texts(layers[4]))
    edges = {(path.get("data-from"), path.get("data-to")) for path in svg.findall(f"{SVG}path")}
    assert edges == {*((str(k), str(k + 1)) for k in range(6)), ("1", "5")}
    for path in svg.findall(f"{SVG}path"):
        rows = [int(point.split(",")[2]) for point in str(path.get("data-points")).split()]
        assert rows == sorted(rows)
        assert len(rows) % 2 == 0


def test_a_layer_tells_its_kernels_and_their_share() -> None:
    kernel = """    %a{k} = fused(%{last}, %w{k}) gemm @a{k}(%{last}: f32[4, 4], %w{k}: f32[4, 4]) {{
        %p{k} = dot(%{last}, %w{k}) {{contract=[1]x[0]}} : f32[4, 4]
        return %p{k}
    }} : f32[4, 4]"""
    lines = [kernel.format(k=k, last="x" if k == 0 else f"a{k - 1}") for k in range(42)]
    ports = ",\n".join(f'    %w{k}: f32[4, 4] parameter "self.h.{k // 21}.w{k}"' for k in range(42))
    body = "\n".join(lines)
    text = f'graph @g(\n    %x: f32[4, 4] argument "x",\n{ports}\n) {{\n{body}\n    return %a41\n}}\n'
    svg = drawn(text, {f"gemm_a{k}": 3e-6 if k < 21 else 1e-6 for k in range(42)})
    layers = [g for g in svg.findall(f"{SVG}g") if g.get("class") == "layer"]
    assert [texts(layer[0]) for layer in layers] == [
        ["h.0", "kernels: 21 gemm", "63 µs, 75 %"],
        ["h.1", "kernels: 21 gemm", "21 µs, 25 %"],
    ]


def test_the_height() -> None:
    assert height_of(picture(parse(stack(2, 2)))) > 100
