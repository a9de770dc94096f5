"""Graphs as Model Explorer's JSON: every field is one of its own, every edge has two ends."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import ArtifactError
from fusec.export.explorer import graph_of, write_explorer
from fusec.ir.parse import parse
from tests.export.programs import complex_numbers, lowered, sorted_mlp

# The fields of graph_builder.py in ai-edge-model-explorer 0.1.34.
_COLLECTION = {"label", "graphs", "graphSorting"}
_GRAPH = {"id", "nodes", "groupNodeAttributes", "groupNodeConfigs", "nodeLabelsToHide", "tasksData", "layoutConfigs"}
_NODE = {
    *("id", "label", "namespace", "subgraphIds", "attrs", "incomingEdges", "outputsMetadata", "inputsMetadata"),
    *("style", "config"),
}
_EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}


def _check(graph: dict) -> None:
    assert set(graph) <= _GRAPH
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    for node in graph["nodes"]:
        assert set(node) <= _NODE
        assert all(set(a) == {"key", "value"} and isinstance(a["value"], str) for a in node["attrs"])
        for edge in node["incomingEdges"]:
            assert set(edge) == _EDGE
            outputs = {item["id"] for item in nodes[edge["sourceNodeId"]]["outputsMetadata"]}
            assert edge["sourceNodeOutputId"] in outputs
    namespaces = {node["namespace"] for node in graph["nodes"]} - {""}
    assert namespaces == set(graph["groupNodeAttributes"])


def test_kernels_are_namespaces():
    graph, program = lowered(sorted_mlp, torch.randn(8, 64))
    made = graph_of("after fusion", graph, program)
    _check(made)
    gemm = next(group for group in made["groupNodeAttributes"].values() if group["kind"] == "gemm")
    line = sorted_mlp.__code__.co_firstlineno + 1
    assert gemm["source"].startswith(f"programs.py:{line}")
    assert int(gemm["flops"]) == next(r.flops for r in program.reports if r.kind == "gemm")
    labels = [node["label"] for node in made["nodes"]]
    assert {"x", "layer.weight", "aten.sort.default", "dot", "output 0", "output 1"} <= set(labels)
    dot = made["nodes"][labels.index("dot")]
    assert {"key": "lhs_contract", "value": "(1,)"} in dot["attrs"]
    assert [labels[int(edge["sourceNodeId"])] for edge in dot["incomingEdges"]] == ["x", "layer.weight"]
    assert {"key": "tensor_shape", "value": "f32[8, 32]"} in dot["outputsMetadata"][0]["attrs"]


def test_edges_pass_through_kernels():
    graph, program = lowered(sorted_mlp, torch.randn(8, 64), target="cuda:sm_90")
    made = graph_of("g", graph, program)
    _check(made)
    nodes = {node["id"]: node for node in made["nodes"]}
    sort = next(node for node in made["nodes"] if "sort" in node["label"])
    (edge,) = sort["incomingEdges"]
    assert nodes[edge["sourceNodeId"]]["namespace"] != ""


def test_constants_and_symbols_are_shown():
    made = graph_of("c", lowered(complex_numbers, np.ones(4, np.complex64))[0])
    _check(made)
    assert "c64(2j)" in {node["label"] for node in made["nodes"]}
    compiled = fusec.compile(lambda x: np.exp(x), fusec.TensorSpec(("B:2..8", 4), "float32"))
    made = graph_of("s", parse(compiled.ranged[-1].graph_text))
    _check(made)
    assert {"key": "tensor_shape", "value": "f32[B, 4]"} in made["nodes"][0]["outputsMetadata"][0]["attrs"]


def test_the_file_is_a_collection(tmp_path):
    graph, program = lowered(sorted_mlp, torch.randn(8, 64))
    path = tmp_path / "g.json"
    write_explorer("mlp", [("before", graph, None), ("after", graph, program)], path)
    found = json.loads(path.read_text())
    assert set(found) <= _COLLECTION
    assert [graph["id"] for graph in found["graphs"]] == ["before", "after"]
    for graph in found["graphs"]:
        _check(graph)
    with pytest.raises(ArtifactError, match="can't write"):
        write_explorer("mlp", [], tmp_path / "none" / "g.json")
