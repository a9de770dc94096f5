"""Every op of the table, as PyTorch's own functions run it, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from op_samples import SAMPLES  # noqa: E402

from fusec.errors import UnsupportedOpError  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402
from fusec.ir.ops import OPS  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.runtime.torch_arrays import torch_dtype  # noqa: E402
from fusec.runtime.torch_graph import graph_function  # noqa: E402

UNKNOWN = ("u16", "u32", "u64")
"""Types that PyTorch computes little with."""

LIBRARY_KINDS = ("elementwise", "reduce", "argreduce", "scan", "dot", "view", "data")
STATIC = [
    (name, n)
    for name in OPS
    for n, sample in enumerate(SAMPLES.get(name, ()))
    if OPS[name].kind in LIBRARY_KINDS
    and all(
        v.type.is_static and v.type.dtype.name not in UNKNOWN
        for op in sample.graph(name).ops
        for v in (*op.operands, *op.results)
    )
]


@pytest.mark.parametrize(("name", "number"), STATIC)
def test_every_op(name: str, number: int) -> None:
    sample = SAMPLES[name][number]
    graph = sample.graph(name)
    arrays = sample.arrays()
    with np.errstate(all="ignore"):
        wanted = interpret(graph, arrays)
    tensors = [tensor(a, v.type.dtype) for a, v in zip(arrays, graph.inputs, strict=True)]
    for found, right, value in zip(graph_function(graph)(tensors), wanted, graph.outputs, strict=True):
        assert tuple(found.shape) == value.type.static_shape
        assert found.dtype == torch_dtype(value.type.dtype)
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        got = (found.to(torch.float64) if found.dtype.is_floating_point else found).numpy().astype(wide)
        digits = {"bf16": 2e-2, "f16": 2e-3}.get(value.type.dtype.name, 1e-5)
        np.testing.assert_allclose(got, right.astype(wide), rtol=digits, atol=digits)


def tensor(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    plain = array.astype(np.float64) if dtype.is_float else array
    return torch.from_numpy(plain).to(torch_dtype(dtype))


def run(text: str, *tensors: Any) -> Any:
    return graph_function(parse(text))(tensors)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
@pytest.mark.parametrize("name", ["floordiv", "remainder", "fmod", "pow", "shift_left", "shift_right"])
def test_integers_at_their_edges(name: str, dtype: str) -> None:
    graph = parse(
        f"graph @g(%x: {dtype}[7, 7], %y: {dtype}[7, 7]) {{\n %z = {name}(%x, %y) : {dtype}[7, 7]\n return %z\n}}"
    )
    edges = np.array([0, 1, 2, 3, 7, 8, 70] if dtype == "u8" or "shift" in name else [-3, -1, 0, 1, 2, 5, 70])
    x, y = (np.asarray(a).astype(graph.inputs[0].type.dtype.numpy) for a in np.meshgrid(edges, edges))
    with np.errstate(all="ignore"):
        (wanted,) = interpret(graph, [x, y])
    (found,) = graph_function(graph)([torch.from_numpy(x), torch.from_numpy(y)])
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_an_op_that_is_opened_earlier_is_refused() -> None:
    graph = parse("graph @g(%x: f32[4]) {\n  %y = relu(%x) : f32[4]\n  return %y\n}")
    with pytest.raises(UnsupportedOpError, match="relu"):
        graph_function(graph)


def test_several_steps_on_strided_operands() -> None:
    text = """graph @g(%x: c64[3, 4], %y: c64[4, 3]) {
  %t = permute(%y) {permutation=[1, 0]} : c64[3, 4]
  %s = mul(%x, %t) : c64[3, 4]
  %z = reduce_sum(%s) {axes=[1]} : c64[3]
  return %z, %s
}"""
    x, y = torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64).t()
    z, s = run(text, x, y)
    torch.testing.assert_close(s, x * y.t())
    torch.testing.assert_close(z, (x * y.t()).sum(1))
