"""Graphs as ONNX models: what onnx.checker says, what is in them, and what Netron shows."""

from __future__ import annotations

import http.server
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import ArtifactError, TargetError
from fusec.export.onnx import model_of, write_onnx
from fusec.ir.parse import parse
from tests.chromium import NAMES
from tests.export.programs import complex_numbers, layer, lowered, sorted_mlp

onnx = pytest.importorskip("onnx")


def _checked(graph, program=None):
    model = model_of(graph, program)
    onnx.checker.check_model(model, full_check=True)
    return model


def _properties(node) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def test_kernels_are_functions_with_lines_and_predictions():
    graph, program = lowered(sorted_mlp, torch.randn(8, 64))
    model = _checked(graph, program)
    functions = {f.name: f for f in model.functions}
    calls = [node for node in model.graph.node if node.domain == "fusec.kernels"]
    assert [node.op_type for node in calls] == list(functions)
    assert {f.domain for f in functions.values()} == {"fusec.kernels"}
    line = sorted_mlp.__code__.co_firstlineno
    gemm = next(node for node in calls if f"programs.py:{line + 1}" in node.doc_string)
    facts = _properties(gemm)
    assert facts["source"] == gemm.doc_string
    assert facts["kind"] == "gemm"
    assert int(facts["flops"]) == next(r.flops for r in program.reports if r.kind == "gemm")
    assert re.fullmatch(r"[\d.e+-]+ us", facts["predicted"])
    assert "dot" in {node.op_type for node in functions[gemm.op_type].node}
    library = next(node for node in model.graph.node if node.domain == "fusec.library")
    assert library.op_type == "aten_sort_default"
    assert library.doc_string == f"programs.py:{line + 2}"


def test_shapes_and_types_are_those_of_the_graph():
    graph, _ = lowered(sorted_mlp, torch.randn(8, 64))
    model = _checked(graph)
    given = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    assert given == {"x": [8, 64], "layer.weight": [32, 64], "layer.bias": [32]}
    found = [(v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim)) for v in model.graph.output]
    assert found == [(onnx.TensorProto.BFLOAT16, 2)] * 2
    parameter = next(v for v in model.graph.input if v.name == "layer.weight")
    assert parameter.doc_string.startswith("parameter ")
    assert tuple(layer.weight.shape) == (32, 64)


def test_a_value_that_leaves_twice_and_an_input_that_leaves():
    text = "graph @g(%x: f32[4]) {\n  %y = exp(%x) : f32[4]\n  return %y, %y, %x\n}\n"
    model = _checked(parse(text))
    names = [v.name for v in model.graph.output]
    assert len({"x", *names}) == 4
    assert [list(n.input) for n in model.graph.node if n.op_type == "Identity"] == [["y"], ["x"]]


def test_symbolic_extents_are_named():
    compiled = fusec.compile(lambda x: np.exp(x), fusec.TensorSpec(("B:2..8", 4), "float32"))
    graph = parse(compiled.ranged[-1].graph_text)
    model = _checked(graph)
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["B", 4]


def test_constants_are_onnx_constants():
    graph, _ = lowered(complex_numbers, np.ones(4, np.complex64))
    model = _checked(graph)
    (function,) = model.functions
    values = [onnx.numpy_helper.to_array(n.attribute[0].t) for n in function.node if n.op_type == "Constant"]
    assert sorted(map(complex, values), key=abs) == [1, 2j]


def test_a_graph_before_fusion_is_a_model_too():
    graph = fusec.trace(sorted_mlp, torch.randn(8, 64))
    model = _checked(parse(str(graph)))
    assert not model.functions
    assert "fusec" in {node.domain for node in model.graph.node}


def test_a_file_that_cant_be_written(tmp_path):
    graph, _ = lowered(complex_numbers, np.ones(4, np.complex64))
    with pytest.raises(ArtifactError, match="can't write"):
        write_onnx(graph, tmp_path / "none" / "g.onnx")


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(TargetError, match=r"pip install fusec\[onnx\]"):
        model_of(lowered(complex_numbers, np.ones(4, np.complex64))[0])


class _Consent(http.server.BaseHTTPRequestHandler):
    """Sets the cookie that Netron asks its visitors for; a cookie holds for all ports of a host."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Set-Cookie", "consent=1; Max-Age=86400; Path=/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_netron_draws_it(tmp_path):
    netron = pytest.importorskip("netron")
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    graph, program = lowered(sorted_mlp, torch.randn(8, 64))
    write_onnx(graph, tmp_path / "g.onnx", program)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--virtual-time-budget=8000"]

    def visit(address: str) -> str:
        command = [browser, *flags, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout

    server = http.server.HTTPServer(("127.0.0.1", 0), _Consent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    visit(f"http://127.0.0.1:{server.server_port}/")
    server.shutdown()
    host, port = netron.start(str(tmp_path / "g.onnx"), ("127.0.0.1", 0), browse=False)
    try:
        shown = re.findall(r"<text[^>]*>([^<]*)</text>", visit(f"http://{host}:{port}/"))
    finally:
        netron.stop()
    assert {"x", "layer.weight", "aten_sort_default", *(f.name for f in model_of(graph).functions)} <= set(shown)
