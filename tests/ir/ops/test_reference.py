"""The NumPy references against PyTorch, an independent implementation, on ordinary and on awkward inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_samples import SAMPLES, SIZES, random_array
from references import Torch, run, same, tensor

from fusec.errors import FusecError
from fusec.ir.attributes import (
    ArgReduceAttributes,
    Attributes,
    CastAttributes,
    ConcatAttributes,
    DotAttributes,
    ExternAttributes,
    GatherAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ScanAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    WindowsAttributes,
)
from fusec.ir.definition import Array
from fusec.ir.interpret import interpret
from fusec.ir.ops import OPS
from fusec.ir.types import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8

AWKWARD = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -2.5, 1.5, 3e-8, 88.9, -104.0, 3e38, 1e-40]

UNARY: dict[str, Torch] = {
    "copy": torch.clone,
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
}
BINARY: dict[str, Torch] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floordiv": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}
INTEGER_ONLY: dict[str, Torch] = {
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}
LOGICAL: dict[str, Torch] = {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "eq": torch.eq,
    "lt": torch.lt,
    "maximum": torch.maximum,
}


def _awkward(dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return np.array(AWKWARD).astype(dtype.numpy)


def _smallest(dtype: DType) -> float:
    """The smallest normal number, or float32's for the wider types."""
    return 6.1e-5 if dtype is f16 else 1.2e-38


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    for x in (
        random_array(rng, dtype, (3, 50)),
        random_array(rng, dtype, ()),
        random_array(rng, dtype, (0, 3)),
        _awkward(dtype),
    ):
        # PyTorch's vector code may flush denormals, and gives 0 for the bfloat16 erf of what is near 0.
        absolute = 1e-7 if name == "erf" else _smallest(dtype)
        same(run(name, x), UNARY[name](tensor(x)), absolute=absolute)


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_floats(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    grid = _awkward(f32)[:11].astype(dtype.numpy)
    signs = grid[~np.isnan(grid)] if name == "copysign" else grid  # a NaN's sign does not survive conversions
    exactly = ("floordiv", "remainder", "fmod")
    if name in exactly and dtype in (bf16, f16):
        pytest.skip("PyTorch rounds to the half type in between, the reference does not")
    for x, y in (
        (random_array(rng, dtype, (4, 1, 5)), random_array(rng, dtype, (3, 1))),
        (random_array(rng, dtype, ()), random_array(rng, dtype, (0,))),
        (grid[:, None], signs[None, :]),
    ):
        ulps = 0 if name in exactly else 4
        same(run(name, x, y), BINARY[name](tensor(x), tensor(y)), ulps, absolute=_smallest(dtype))


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8], ids=str)
@pytest.mark.parametrize("name", [n for n in BINARY if n not in ("div", "atan2", "copysign", "hypot")])
def test_binary_integers(name: str, dtype: DType) -> None:
    low = 0 if dtype is u8 else -6
    x = np.arange(low, 7).astype(dtype.numpy)[:, None]
    y = np.array([1, 2, 3, 5] if name == "pow" or dtype is u8 else [-3, -1, 1, 2, 3, 5]).astype(dtype.numpy)
    same(run(name, x, y), BINARY[name](tensor(x), tensor(y)))


@pytest.mark.parametrize("dtype", [i8, i32, i64], ids=str)
@pytest.mark.parametrize("name", ["neg", "abs", "copy", "relu", "sign"])
def test_unary_integers(name: str, dtype: DType) -> None:
    x = np.arange(-4, 5).astype(dtype.numpy)
    same(run(name, x), torch.sign(tensor(x)) if name == "sign" else UNARY[name](tensor(x)))


@pytest.mark.parametrize("name", INTEGER_ONLY)
def test_bits(name: str) -> None:
    x, y = np.arange(-9, 9)[:, None], np.array([0, 1, 5, 40, 63, 64, 70])
    same(run(name, x, y), INTEGER_ONLY[name](tensor(x), tensor(y)))
    same(run("bitwise_not", x), torch.bitwise_not(tensor(x)))


@pytest.mark.parametrize("name", LOGICAL)
def test_logic(name: str) -> None:
    x, y = np.array([[True], [False]]), np.array([True, False])
    same(run(name, x, y), LOGICAL[name](tensor(x), tensor(y)))
    same(run("logical_not", x), torch.logical_not(tensor(x)))
    same(run("bitwise_not", x), torch.bitwise_not(tensor(x)))


@pytest.mark.parametrize("name", ["floordiv", "remainder", "fmod"])
def test_an_integer_by_zero_gives_zero(name: str) -> None:
    assert run(name, np.array([5, -5, 0]), np.array([0, 0, 0])).tolist() == [0, 0, 0]


def test_an_integer_to_a_negative_power_is_truncated() -> None:
    x, y = np.array([2, -1, -1, 1, 0]), np.array([-1, -3, -2, -5, -1])
    same(run("pow", x, y), torch.pow(tensor(x), tensor(y)))


def test_sign_of_nan_is_nan() -> None:
    found = run("sign", np.array([-2.0, -0.0, 3.0, math.nan], np.float32))
    np.testing.assert_array_equal(found, np.array([-1, 0, 1, math.nan], np.float32))


def test_select_takes_no_arithmetic() -> None:
    condition = np.array([True, False])
    found = run("select", condition, np.array([1.0, math.nan], bf16.numpy), np.array(2.0, bf16.numpy))
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("target", [f64, f32, bf16, f16, i64, i8, u8, bool_], ids=str)
@pytest.mark.parametrize("source", [f64, f32, bf16, f16, i64, u8, bool_], ids=str)
def test_cast(source: DType, target: DType) -> None:
    x = np.array([0, 1, 2, 5.75, 100.5, 0.1]).astype(source.numpy)
    wanted = tensor(x).to(getattr(torch, target.long_name))
    same(run("cast", x, attributes=CastAttributes(target)), wanted, ulps=0)


REDUCTIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "reduce_sum": lambda x, axes: x.sum(axes, dtype=x.dtype),
    "reduce_prod": lambda x, axes: _each_axis(torch.prod, x, axes),
    "reduce_max": lambda x, axes: torch.amax(x, axes),
    "reduce_min": lambda x, axes: torch.amin(x, axes),
    "mean": lambda x, axes: x.mean(axes),
}


def _each_axis(function: Callable[..., torch.Tensor], x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    for axis in reversed(axes):
        x = function(x, axis, dtype=x.dtype)
    return x


@pytest.mark.parametrize("dtype", [f32, f64, bf16, i32], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: DType) -> None:
    if name == "mean" and not dtype.is_float:
        return
    x = random_array(np.random.default_rng(2), dtype, (3, 4, 5), below=3)
    for axes in ((0,), (1, 2), (0, 1, 2)):
        same(run(name, x, attributes=ReduceAttributes(axes)), REDUCTIONS[name](tensor(x), axes), 16, 1e-6)


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "mean"])
def test_reductions_propagate_nan_and_infinity(name: str) -> None:
    x = np.array([[math.nan, 1, 2], [math.inf, 1, 2], [-math.inf, math.inf, 0]], np.float32)
    same(run(name, x, attributes=ReduceAttributes((1,))), REDUCTIONS[name](tensor(x), (1,)))


@pytest.mark.parametrize(("name", "wanted"), [("reduce_sum", 0), ("reduce_prod", 1), ("mean", math.nan)])
def test_reductions_of_nothing(name: str, wanted: float) -> None:
    found = run(name, np.zeros((2, 0), np.float32), attributes=ReduceAttributes((1,)))
    np.testing.assert_array_equal(found, np.array([wanted, wanted], np.float32))


def test_reducing_no_axes_copies_the_values() -> None:
    x = random_array(np.random.default_rng(3), bf16, (2, 3))
    np.testing.assert_array_equal(run("reduce_sum", x, attributes=ReduceAttributes(())), x)


def test_any_and_all() -> None:
    x = np.array([[True, False], [True, True], [False, False]])
    assert run("reduce_any", x, attributes=ReduceAttributes((1,))).tolist() == [True, True, False]
    assert run("reduce_all", x, attributes=ReduceAttributes((1,))).tolist() == [False, True, False]
    assert run("reduce_all", x[:0], attributes=ReduceAttributes((0,))).tolist() == [True, True]


@pytest.mark.parametrize("dtype", [f32, bf16, i32], ids=str)
def test_argmax_and_argmin(dtype: DType) -> None:
    x = random_array(np.random.default_rng(4), dtype, (4, 50), below=6)
    if dtype.is_float:
        x[0, 7] = x[0, 20] = math.nan
    if not dtype.is_float:
        assert run("argmax", x, attributes=ArgReduceAttributes(1)).tolist() == [list(r).index(max(r)) for r in x]
    same(run("argmax", x, attributes=ArgReduceAttributes(1)), torch.argmax(tensor(x), 1))
    same(run("argmin", x, attributes=ArgReduceAttributes(0)), torch.argmin(tensor(x), 0))


@pytest.mark.parametrize("dtype", [f32, bf16, i64], ids=str)
def test_scans(dtype: DType) -> None:
    x = random_array(np.random.default_rng(5), dtype, (3, 9), below=3)
    for axis in (0, 1):
        same(run("cumsum", x, attributes=ScanAttributes(axis)), torch.cumsum(tensor(x), axis), 16, 1e-6)
        same(run("cumprod", x, attributes=ScanAttributes(axis)), torch.cumprod(tensor(x), axis), 16, 1e-6)
        same(run("cummax", x, attributes=ScanAttributes(axis)), torch.cummax(tensor(x), axis)[0])
        same(run("cummin", x, attributes=ScanAttributes(axis)), torch.cummin(tensor(x), axis)[0])
        backwards = torch.cumsum(tensor(x).flip(axis), axis).flip(axis)
        same(run("cumsum", x, attributes=ScanAttributes(axis, True)), backwards, 16, 1e-6)
        if dtype.is_float:
            wanted = torch.logcumsumexp(tensor(x), axis)
            same(run("logcumsumexp", x, attributes=ScanAttributes(axis)), wanted, 16, 1e-6)


@pytest.mark.parametrize("dtype", [f32, f64, bf16, i32], ids=str)
def test_dot(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    x, y = random_array(rng, dtype, (2, 3, 4, 5), below=5), random_array(rng, dtype, (5, 2, 6, 3), below=5)
    attributes = DotAttributes((3, 1), (0, 3), (0,), (1,))
    found = run("dot", x, y, attributes=attributes)
    wanted = torch.einsum("bcmk,kbnc->bmn", tensor(x).double(), tensor(y).double())
    same(found, wanted.to(getattr(torch, dtype.long_name)), 16, 1e-5)


def test_dot_of_small_types_in_a_wide_one_does_not_overflow() -> None:
    x = np.full(300, 100, np.int8)
    assert run("dot", x, x, attributes=DotAttributes((0,), (0,), dtype=i32)) == 3_000_000
    half = np.full(4000, 1.0, bf16.numpy)
    assert run("dot", half, half, attributes=DotAttributes((0,), (0,), dtype=f32)) == np.float32(4000)


def test_dot_of_nothing_is_zero() -> None:
    x, y = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    assert run("dot", x, y, attributes=DotAttributes((1,), (0,))).tolist() == [[0, 0, 0], [0, 0, 0]]


def _arange(*shape: int) -> Array:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("name", "attributes", "shape", "wanted"),
    [
        ("permute", PermuteAttributes((2, 0, 1)), (2, 3, 4), lambda x: x.transpose(2, 0, 1)),
        ("reshape", ShapeAttributes((4, 6)), (2, 3, 4), lambda x: x.reshape(4, 6)),
        ("broadcast", ShapeAttributes((2, 3, 4)), (3, 1), lambda x: np.broadcast_to(x, (2, 3, 4))),
        ("slice", SliceAttributes((1, 3), (5, -1), (2, -1)), (6, 4), lambda x: x[1:5:2, ::-1]),
        ("slice", SliceAttributes((2, 3), (2, 3), (1, -1)), (6, 4), lambda x: x[2:2, 3:3]),
        ("slice", SliceAttributes((-1,), (-1,), (-2,)), (0,), lambda x: x[::-2]),
        (
            "strided",
            StridedAttributes((3, 3), (1, 2), 2),
            (4, 4),
            lambda x: x.ravel()[[[2, 4, 6], [3, 5, 7], [4, 6, 8]]],
        ),
        ("strided", StridedAttributes((4,), (-1,), 5), (6,), lambda x: x[5:1:-1]),
        ("strided", StridedAttributes((0, 3), (1, 9), 50), (6,), lambda x: np.zeros((0, 3), np.float32)),
        ("windows", WindowsAttributes(0, 3, 2), (8, 2), lambda x: np.stack([x[i : i + 3].T for i in (0, 2, 4)])),
        ("windows", WindowsAttributes(0, 3), (3,), lambda x: x[None]),
    ],
)
def test_views(name: str, attributes: Attributes, shape: tuple[int, ...], wanted: Callable[[Array], Array]) -> None:
    x = _arange(*shape)
    np.testing.assert_array_equal(run(name, x, attributes=attributes), wanted(x))


def test_strided_reads_row_major_order_whatever_the_memory() -> None:
    x = _arange(3, 4).T
    attributes = StridedAttributes((12,), (1,))
    np.testing.assert_array_equal(run("strided", x, attributes=attributes), x.ravel())


def test_data_movement() -> None:
    x, y = _arange(2, 3), _arange(0, 3)
    np.testing.assert_array_equal(run("concat", x, y, x, attributes=ConcatAttributes(0)), np.concatenate([x, x]))
    fill = np.array(-math.inf, np.float32)
    padded = run("pad", x, fill, attributes=PadAttributes((1, 0), (0, 2)))
    same(padded, F.pad(tensor(x), (0, 2, 1, 0), value=-math.inf))
    index = np.array([[2, 0], [1, 1]])
    np.testing.assert_array_equal(run("gather", x, index, attributes=GatherAttributes(1)), x[:, index])
    picked = run("gather_elements", x, index[:1], attributes=GatherAttributes(1))
    same(picked, torch.gather(tensor(x), 1, tensor(index[:1])))


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        run("gather", _arange(3), np.array([3]), attributes=GatherAttributes(0))


def test_extern_and_fused_have_no_reference_of_their_own() -> None:
    with pytest.raises(FusecError, match=r"extern aten\.sort has no NumPy reference"):
        OPS["extern"].reference((), ExternAttributes("aten.sort", "", ()))
    sample = SAMPLES["fused"][0]
    with pytest.raises(FusecError, match="run by interpret"):
        OPS["fused"].reference((), sample.attributes)
    assert len(interpret(sample.graph("fused"), sample.arrays(), bindings=SIZES)) == 2


def test_references_warn_about_nothing(recwarn: pytest.WarningsRecorder) -> None:
    for name in ("log", "div", "exp", "sqrt", "floordiv", "softmax"):
        sample = SAMPLES[name][0]
        interpret(sample.graph(name), [np.zeros_like(a) - 1 for a in sample.arrays()], bindings=SIZES)
    run("floordiv", np.array([1]), np.array([0]))
    assert not recwarn.list
