"""Running graphs in NumPy: symbols, fused bodies, library calls and the float64 mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from op_samples import CASES, SAMPLES, SIZES, t

from fusec.errors import FusecError, SignatureError
from fusec.ir.attributes import (
    CastAttributes,
    DotAttributes,
    ExternAttributes,
    IotaAttributes,
    ReduceAttributes,
    ShapeAttributes,
)
from fusec.ir.builder import Builder
from fusec.ir.definition import Array
from fusec.ir.index import symbol
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import TensorType, bf16, c64, f16, f32, f64, i32, i64
from fusec.location import Location


@pytest.mark.parametrize(("name", "number"), [(n, k) for n, k in CASES if n != "extern"])
@pytest.mark.parametrize("float64", [False, True])
def test_every_op_runs_and_has_its_type(name: str, number: int, float64: bool) -> None:
    sample = SAMPLES[name][number]
    graph = sample.graph(name)
    inputs = sample.arrays()
    before = [a.copy() for a in inputs]
    (result,) = interpret(graph, inputs, float64=float64, bindings=SIZES)[:1]
    wanted = graph.outputs[0].type.dtype.numpy
    if float64 and graph.outputs[0].type.dtype.is_float:
        wanted = np.dtype(np.float64)
    assert result.dtype == (np.dtype(np.complex128) if float64 and wanted.kind == "c" else wanted)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(inputs, before))


@pytest.mark.parametrize(("name", "number"), [(n, k) for n, k in CASES if n not in ("extern", "constant")])
def test_a_graph_read_back_computes_the_same(name: str, number: int) -> None:
    sample = SAMPLES[name][number]
    graph = sample.graph(name)
    for a, b in zip(
        interpret(graph, sample.arrays(), bindings=SIZES), interpret(parse(str(graph)), sample.arrays(), bindings=SIZES)
    ):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ["exp", "silu", "gelu", "softmax", "layer_norm", "sdpa", "dot", "var", "linear"])
def test_float64_mode_is_near_the_natural_one_and_more_exact(name: str) -> None:
    sample = SAMPLES[name][0]
    graph = sample.graph(name)
    (natural,) = interpret(graph, sample.arrays(), bindings=SIZES)
    (exact,) = interpret(graph, sample.arrays(), float64=True, bindings=SIZES)
    np.testing.assert_allclose(natural, exact, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(natural, exact)


def test_casts_round_in_the_natural_mode_only() -> None:
    b = Builder("f")
    x = b.input(t(f32, 1), "x")
    y = b.emit("cast", b.emit("cast", x, attributes=CastAttributes(bf16)), attributes=CastAttributes(f32))
    graph = b.finish([y])
    value = np.array([1.0009765625], np.float32)
    assert interpret(graph, [value])[0] == [1.0]
    assert interpret(graph, [value], float64=True)[0] == [1.0009765625]


def test_float64_mode_widens_constants_iotas_and_dots_but_not_integers() -> None:
    b = Builder("f")
    c = b.constant(0.1, f16)
    n = b.emit("iota", attributes=IotaAttributes((3000,), 0, f16))
    k = b.emit("iota", attributes=IotaAttributes((3,), 0, i32))
    d = b.emit("dot", n, n, attributes=DotAttributes((0,), (0,), dtype=f32))
    trunc = b.emit("cast", c, attributes=CastAttributes(i64))
    found = interpret(b.finish([c, n, k, d, trunc]), [], float64=True)
    assert found[0] == 0.0999755859375  # what f16 holds of 0.1
    assert found[1][2049] == 2049
    assert [a.dtype.name for a in found] == ["float64", "float64", "int32", "float64", "int64"]
    assert found[3] == sum(i * i for i in range(3000))
    assert interpret(b.finish([c]), [])[0] == np.float16(0.1)


def test_half_types_round_once_per_op() -> None:
    b = Builder("f")
    x = b.input(t(bf16, 4096), "x")
    s = b.emit("reduce_sum", x, attributes=ReduceAttributes((0,)))
    (total,) = interpret(b.finish([s]), [np.ones(4096, bf16.numpy)])
    assert total.astype(np.float64) == 4096.0


def test_strided_and_reversed_inputs() -> None:
    b = Builder("f")
    x = b.input(t(f32, 3, 2), "x")
    y = b.emit("reshape", x, attributes=ShapeAttributes((6,)))
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = interpret(b.finish([y]), [base.T[::-1]])
    assert found.tolist() == [2, 5, 1, 4, 0, 3]


def _symbolic() -> Builder:
    b = Builder("f")
    n = symbol("B", 1, 8)
    b.input(TensorType(f32, (n, 2 * n)), "x")  # type: ignore[operator]
    return b


def test_symbols_take_their_values_from_shapes() -> None:
    b = _symbolic()
    x = b._inputs[0]
    y = b.emit("reshape", x, attributes=ShapeAttributes((x.type.shape[1], x.type.shape[0])))
    graph = b.finish([y])
    assert interpret(graph, [np.zeros((3, 6), np.float32)])[0].shape == (6, 3)
    with pytest.raises(SignatureError, match=r"input %x must be f32\[B, \(2\*B\)\], got shape \[3, 5\]"):
        interpret(graph, [np.zeros((3, 5), np.float32)])
    with pytest.raises(SignatureError, match=r"B is 9, out of its range \[1, 8\]"):
        interpret(graph, [np.zeros((9, 18), np.float32)])


def test_symbols_that_no_input_tells_come_from_bindings() -> None:
    b = Builder("f")
    y = b.emit("iota", attributes=IotaAttributes((symbol("n"),), 0, i64))
    graph = b.finish([y])
    assert interpret(graph, [], bindings={"n": 4})[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(SignatureError, match="@f: no input gives the value of n; pass it in bindings"):
        interpret(graph, [])


def test_inputs_that_do_not_fit() -> None:
    b = Builder("f")
    x = b.input(t(f32, 2), "x")
    graph = b.finish([b.emit("neg", x)])
    with pytest.raises(SignatureError, match="@f takes 1 inputs, got 0"):
        interpret(graph, [])
    with pytest.raises(SignatureError, match=r"input %x must be f32\[2\], got float64\[2\]"):
        interpret(graph, [np.zeros(2)])
    with pytest.raises(SignatureError, match=r"input %x must be f32\[2\], got float32\[2, 1\]"):
        interpret(graph, [np.zeros((2, 1), np.float32)])
    with pytest.raises(SignatureError, match=r"got shape \[3\]"):
        interpret(graph, [np.zeros(3, np.float32)])


def test_fused_bodies_run() -> None:
    sample = SAMPLES["fused"][0]
    (x,) = sample.arrays()
    doubled, total = interpret(sample.graph("fused"), [x])
    np.testing.assert_array_equal(doubled, np.exp(x) * np.float32(2))
    np.testing.assert_array_equal(total, np.exp(x).sum(1))


def test_extern_needs_a_function_that_runs_it() -> None:
    b = Builder("f")
    x = b.input(t(f32, 3), "x")
    attributes = ExternAttributes("numpy.sort", "(($0,), {})", (t(f32, 3),))
    (y,) = b.op("extern", x, attributes=attributes, location=Location("m.py", 2))
    graph = b.finish([y])
    data = np.array([3, 1, 2], np.float32)
    with pytest.raises(FusecError, match=r"m.py:2: extern numpy.sort needs the 'extern' function"):
        interpret(graph, [data])

    def run(call: ExternAttributes, operands: Sequence[Array]) -> list[Array]:
        assert call.target == "numpy.sort"
        return [np.sort(operands[0])]

    assert interpret(graph, [data], extern=run)[0].tolist() == [1, 2, 3]


def test_extern_results_are_checked() -> None:
    b = Builder("f")
    attributes = ExternAttributes("numpy.ones", "((3,), {})", (t(f32, 3),))
    graph = b.finish(b.op("extern", attributes=attributes))
    with pytest.raises(FusecError, match=r"gives float64\[3\], not f32\[3\]"):
        interpret(graph, [], extern=lambda call, operands: [np.ones(3)])


def test_complex_values() -> None:
    b = Builder("f")
    x = b.input(t(c64, 2), "x")
    y = b.emit("mul", x, b.constant(1j, c64))
    (found,) = interpret(b.finish([y]), [np.array([1, 2j], np.complex64)])
    assert found.tolist() == [1j, -2]


def test_outputs_that_are_inputs_or_repeat() -> None:
    b = Builder("f")
    x = b.input(t(f64, 2), "x")
    y = b.emit("neg", x)
    found = interpret(b.finish([x, y, y]), [np.array([1.0, 2.0])])
    assert [a.tolist() for a in found] == [[1, 2], [-1, -2], [-1, -2]]
