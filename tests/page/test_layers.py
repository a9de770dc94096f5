"""Which layer an op belongs to."""

from __future__ import annotations

import pytest

from fusec.ir.parse import parse
from fusec.page.layers import layers_of


def graph(weights: dict[str, str], body: str) -> str:
    inputs = ",\n".join(f'    %{name}: f32[4, 4] parameter "{path}"' for name, path in weights.items())
    return f'graph @g(\n    %x: f32[4, 4] argument "x",\n{inputs}\n) {{\n{body}\n}}\n'


def found(weights: dict[str, str], body: str) -> dict[str, str]:
    made = parse(graph(weights, body))
    layers = layers_of(made)
    return {str(op.results[0]).removeprefix("%"): layers.get(op, "") for op in made.ops}


def test_ops_follow_their_layers_weights() -> None:
    weights = {"u": "self.layers.0.w", "v": "self.layers.1.a.w", "n": "self.norm.weight"}
    body = """
    %e = exp(%x) : f32[4, 4]
    %a = mul(%e, %u) : f32[4, 4]
    %b = exp(%a) : f32[4, 4]
    %t = exp(%v) : f32[4, 4]
    %c = mul(%b, %t) : f32[4, 4]
    %d = add(%c, %a) : f32[4, 4]
    %z = mul(%d, %n) : f32[4, 4]
    return %z"""
    assert found(weights, body) == {
        "e": "",
        "a": "layers.0",
        "b": "layers.0",
        "t": "layers.1",
        "c": "layers.1",
        "d": "layers.1",
        "z": "norm",
    }


def test_weights_made_ready_ahead_do_not_change_the_order() -> None:
    weights = {"v": "self.layers.1.w", "u": "self.layers.0.w"}
    body = """
    %t = exp(%v) : f32[4, 4]
    %s = exp(%u) : f32[4, 4]
    %a = mul(%x, %s) : f32[4, 4]
    %b = mul(%a, %t) : f32[4, 4]
    return %b"""
    assert found(weights, body) == {"t": "layers.1", "s": "layers.0", "a": "layers.0", "b": "layers.1"}


def test_a_tied_weight_stays_where_its_reader_is() -> None:
    weights = {"e": "self.embed.weight", "u": "self.layers.0.w"}
    body = """
    %a = mul(%x, %e) : f32[4, 4]
    %b = mul(%a, %u) : f32[4, 4]
    %c = mul(%b, %e) : f32[4, 4]
    return %c"""
    assert found(weights, body) == {"a": "embed", "b": "layers.0", "c": "layers.0"}


@pytest.mark.parametrize(
    ("paths", "layers"),
    [
        (["self.m.h.0.w", "self.m.h.1.a.w", "self.m.ln_f.w"], ["m.h.0", "m.h.1", "m.ln_f"]),
        (["self.enc.embed.a.w", "self.enc.layer.3.w", "self.pool.w"], ["enc.embed", "enc.layer.3", "pool"]),
        (["self.m.one.w", "self.m.two.b.w", "self.m.w"], ["m.one", "m.two", "m"]),
        (["blocks[0]['w']", "blocks[1]['n']['w']", "w"], ["blocks.0", "blocks.1", ""]),
    ],
)
def test_names(paths: list[str], layers: list[str]) -> None:
    weights = {f"w{k}": path for k, path in enumerate(paths)}
    lines = [f"    %a{k} = mul(%{'x' if k == 0 else f'a{k - 1}'}, %w{k}) : f32[4, 4]" for k in range(len(paths))]
    made = found(weights, "\n".join([*lines, f"    return %a{len(paths) - 1}"]))
    # What has no layer's weights stays in the one before.
    assert list(made.values()) == [name or layers[k - 1] for k, name in enumerate(layers)]


def test_layers_only_go_on_along_edges() -> None:
    weights = {f"w{k}": f"self.l.{k % 3}.w" for k in range(9)}
    lines = [f"    %a{k} = mul(%{'x' if k == 0 else f'a{k - 1}'}, %w{k}) : f32[4, 4]" for k in range(9)]
    made = parse(graph(weights, "\n".join([*lines, "    return %a8"])))
    layers = layers_of(made)
    order = list(dict.fromkeys(layers.values()))
    makers = made.producers()
    for op in made.ops:
        for value in op.operands:
            if value in makers:
                assert order.index(layers[makers[value]]) <= order.index(layers[op])
