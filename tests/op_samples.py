"""A well-typed use of every op in the table, of which tests build graphs; elementwise ops and reductions share some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    NO_ATTRIBUTES,
    AliasAttributes,
    ArgReduceAttributes,
    Attributes,
    AxisAttributes,
    CastAttributes,
    ConcatAttributes,
    ConstantAttributes,
    CopyAtAttributes,
    DotAttributes,
    EinsumAttributes,
    ExtentAttributes,
    ExternAttributes,
    GatherAttributes,
    GeluAttributes,
    GroupedDotAttributes,
    GroupedOuterAttributes,
    IotaAttributes,
    NormAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ScanAttributes,
    SdpaAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    UpdateAttributes,
    VarAttributes,
    WindowsAttributes,
)
from fusec.ir.builder import Builder
from fusec.ir.definition import Array, OpDef
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import symbol
from fusec.ir.indexing import evaluate
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, DType, TensorType, bf16, bool_, c64, f16, f32, f64, i8, i32, i64
from fusec.location import Location

B = symbol("B", 1, 64)
S = symbol("S")
SIZES = {"B": 3, "S": 5}
"""What the symbols of samples are when a sample is run."""


@dataclass(frozen=True)
class Sample:
    """Operand types, attributes, and the exclusive bound of integer operands (for indices)."""

    operands: tuple[TensorType, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    below: int = 50

    def graph(self, name: str) -> Graph:
        """A graph of this one op."""
        builder = Builder(name)
        operands = [builder.input(t, f"x{n}") for n, t in enumerate(self.operands)]
        location = Location("/home/user/model.py", 7)
        results = builder.op(name, *operands, attributes=self.attributes, location=location)
        return builder.finish(results)

    def arrays(self, seed: int = 0) -> list[Array]:
        """Random operands; symbols have the values of ``SIZES``."""
        rng = np.random.default_rng(seed)
        return [random_array(rng, t.dtype, bound(t.shape), self.below) for t in self.operands]


def bound(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(evaluate(d, SIZES) for d in shape)


def random_array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], below: int = 50) -> Array:
    """Normal floats, small integers that are not negative, or coin flips."""
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(rng.integers(0, below, shape)).astype(dtype.numpy)
    if dtype.kind == "complex":
        return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype.numpy)
    return np.asarray(rng.normal(size=shape)).astype(dtype.numpy)


def many(*samples: Sample) -> tuple[Sample, ...]:
    return samples


def t(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, shape)


def _body() -> Graph:
    """Two outputs, a constant, names that the outer graph has too, and a group inside."""
    inner = Builder("inner")
    a = inner.input(t(f32, B, 4), "x0")
    inner_y = inner.emit("exp", a, as_name="y", location=Location("model.py", 3))
    builder = Builder("softmax")
    x = builder.input(t(f32, B, 4), "x0")
    e = builder.emit("fused", x, attributes=FusedAttributes("map", inner.finish([inner_y])), as_name="e")
    doubled = builder.emit("mul", e, builder.constant(2.0, f32), as_name="y", location=Location("model.py", 4))
    total = builder.emit("reduce_sum", e, attributes=ReduceAttributes((1,)), as_name="s")
    return builder.finish([doubled, total])


_X, _INT, _FLAG = t(f32, 2, 3), t(i32, 2, 3), t(bool_, 2, 3)
_FLOAT_UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "erfc"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
    *("floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "relu", "sigmoid", "silu", "softplus"),
)
_NUMBER_BINARY = (
    *("add", "sub", "mul", "pow", "maximum", "minimum", "fmax", "fmin", "floordiv", "remainder", "fmod"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)
_ODD_TEXT = '(($0, -1), {"x": "a\\"}\n//b:1"})'

SAMPLES: dict[str, tuple[Sample, ...]] = {
    "constant": many(
        Sample(attributes=ConstantAttributes(0.1, f32)),
        Sample(attributes=ConstantAttributes(2, f64)),
        Sample(attributes=ConstantAttributes(-0.0, f16)),
        Sample(attributes=ConstantAttributes(float("-inf"), bf16)),
        Sample(attributes=ConstantAttributes(float("nan"), f32)),
        Sample(attributes=ConstantAttributes(1e300, f64)),
        Sample(attributes=ConstantAttributes(True, bool_)),
        Sample(attributes=ConstantAttributes(-(2**63), i64)),
        Sample(attributes=ConstantAttributes(1.5 - 2j, c64)),
        Sample(attributes=ConstantAttributes(complex(float("inf"), -0.0), c64)),
        Sample(attributes=ConstantAttributes(7, i32, "cuda:1")),
    ),
    "iota": many(
        Sample(attributes=IotaAttributes((2, B), 1, i64)), Sample(attributes=IotaAttributes((4,), 0, f32, "cuda:0"))
    ),
    "extent": many(
        Sample(attributes=ExtentAttributes((2 * B + 1, S), f32)), Sample(attributes=ExtentAttributes((3, 4), i64))
    ),
    "copy": many(Sample((t(f32),)), Sample((t(bool_, 2),)), Sample((t(c64, 2),))),
    "neg": many(Sample((_X,)), Sample((t(i8, 0, 3),)), Sample((t(c64, 2),))),
    "abs": many(Sample((_X,)), Sample((_INT,))),
    "sign": many(Sample((_X,)), Sample((_INT,))),
    **{name: many(Sample((_X,)), Sample((t(bf16, B),)), Sample((t(f16),))) for name in _FLOAT_UNARY},
    **{name: many(Sample((_X, t(f32, 3))), Sample((_INT, t(i32, 2, 1)), below=4)) for name in _NUMBER_BINARY},
    "bitwise_not": many(Sample((_INT,)), Sample((_FLAG,))),
    "logical_not": many(Sample((_FLAG,))),
    "cast": many(*(Sample((_X,), a) for a in (CastAttributes(bf16), CastAttributes(i64), CastAttributes(f16, True)))),
    "div": many(Sample((_X, t(f32))), Sample((t(bf16, B, 1), t(bf16, S)))),
    "atan2": many(Sample((_X, _X))),
    "copysign": many(Sample((_X, _X))),
    "hypot": many(Sample((_X, _X))),
    **{name: many(Sample((_FLAG, _FLAG))) for name in ("logical_and", "logical_or", "logical_xor")},
    **{
        name: many(Sample((_FLAG, _FLAG)), Sample((_INT, _INT)))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "shift_left": many(Sample((_INT, _INT))),
    "shift_right": many(Sample((_INT, _INT))),
    "select": many(Sample((_FLAG, _X, t(f32))), Sample((t(bool_, B, 1), t(f32, S), t(f32, B, S)))),
    **{
        name: many(
            Sample((t(f32, 2, 3, 4),), ReduceAttributes((0, 2))),
            Sample((t(i64, B),), ReduceAttributes((0,)), below=3),
            Sample((_X,), ReduceAttributes(())),
        )
        for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
    },
    "reduce_any": many(Sample((_FLAG,), ReduceAttributes((1,)))),
    "reduce_all": many(Sample((_FLAG,), ReduceAttributes((0, 1)))),
    "argmax": many(Sample((t(bf16, 2, 5),), ArgReduceAttributes(1))),
    "argmin": many(Sample((_X,), ArgReduceAttributes(0))),
    "cumsum": many(Sample((t(f16, 2, 5),), ScanAttributes(1)), Sample((_INT,), ScanAttributes(0))),
    **{
        name: many(Sample((_X,), ScanAttributes(1)), Sample((_X,), ScanAttributes(0, True)))
        for name in ("cumprod", "cummax", "cummin", "logcumsumexp")
    },
    "recurrence": many(
        Sample((_X, _X, t(f32, 2, 1)), ScanAttributes(1)),
        Sample((t(bf16, B, 4), t(bf16, B, 4), t(bf16, 1, 4)), ScanAttributes(0, True)),
        Sample((_INT, _INT, t(i32, 1, 3)), ScanAttributes(0), below=4),
        Sample((_X, _X, t(f32, 2, 1)), ScanAttributes(1, True, last=True)),
    ),
    "dot": many(
        Sample((t(f32, B, 4), t(f32, 5, 4)), DotAttributes((1,), (1,))),
        Sample((t(bf16, 2, 3, 4), t(bf16, 2, 4, 5)), DotAttributes((2,), (1,), (0,), (0,), f32)),
        Sample((t(i8, 4), t(i8, 4)), DotAttributes((0,), (0,), dtype=i32)),
        Sample((t(f32, 2), t(f32, 3)), DotAttributes((), ())),
        Sample((t(f32, 2, 0), t(f32, 0, 3)), DotAttributes((1,), (0,))),
    ),
    "grouped_dot": many(
        Sample((t(f32, 7, 4), t(f32, 3, 4, 5)), GroupedDotAttributes(1, (3, 0, 2))),
        Sample((t(bf16, B, 4), t(bf16, 3, 5, 4), t(i32, 3)), GroupedDotAttributes(2, dtype=f32), below=3),
        Sample((t(f32, 7, 4), t(f32, 5, 4), t(f32, 5, 4)), GroupedDotAttributes(2, (3, 2), apart=2)),
    ),
    "grouped_outer": many(
        Sample((t(f32, 7, 4), t(f32, 7, 5), t(i32, 3)), GroupedOuterAttributes(), below=3),
        Sample((t(bf16, B, 4), t(bf16, B, 5), t(i32, 3)), GroupedOuterAttributes(f32), below=3),
    ),
    "permute": many(Sample((t(f32, 2, B, 4),), PermuteAttributes((2, 0, 1))), Sample((t(f32),), PermuteAttributes(()))),
    "reshape": many(
        Sample((t(f32, B, S, 6),), ShapeAttributes((B * S, 2, 3))), Sample((t(f32, 1),), ShapeAttributes(()))
    ),
    "broadcast": many(Sample((t(f32, 3, 1),), ShapeAttributes((B, 3, 4)))),
    "slice": many(
        Sample((t(f32, 6, 7),), SliceAttributes((1, 6), (6, -1), (2, -3))),
        Sample((t(f32, B, 4),), SliceAttributes((0, 4), (B, 4), (2, 1))),
    ),
    "strided": many(Sample((t(f32, 4, 5),), StridedAttributes((3, 3), (1, 2), 4))),
    "windows": many(Sample((t(f32, 9, 2),), WindowsAttributes(0, 3, 2)), Sample((t(f32, S),), WindowsAttributes(0, 2))),
    "concat": many(Sample((t(f32, B, 2), t(f32, S, 2), t(f32, 0, 2)), ConcatAttributes(0))),
    "pad": many(Sample((t(f32, B, 2), t(f32)), PadAttributes((1, 0), (2, 3)))),
    "gather": many(Sample((t(f32, 2, 9, 3), t(i64, B, 4)), GatherAttributes(1), below=9)),
    "gather_elements": many(Sample((t(f32, 4, 9), t(i32, 2, 5)), GatherAttributes(1), below=9)),
    "scatter_add": many(
        Sample((t(f32, 5, 3), t(i64, 7), t(f32, 7, 3)), GatherAttributes(0), below=5),
        Sample((t(i32, 2, 5), t(i32, B), t(i32, 2, B)), GatherAttributes(1), below=5),
    ),
    "scatter_add_where": many(
        Sample((t(f32, 5, 3), t(i64, 7), t(f32, 7, 3), t(bool_, 7)), below=5),
        Sample((t(bf16, 5), t(i32, 4), t(bf16, 4), t(bool_, 4)), below=5),
    ),
    "alias": many(
        Sample((t(f32, B, 4),), AliasAttributes("input", 0)),
        Sample((_X,), AliasAttributes("output", 0, itself=True)),
    ),
    "update": many(
        Sample((t(f32, B, 4), t(f32, B, 2)), UpdateAttributes((0, 1))),
        Sample((t(f32, 5, 4), t(f32, 2, 4)), UpdateAttributes((3, 0))),
        Sample((t(f32, 5, 4), t(f32, 1, 4), t(i64)), UpdateAttributes((0, 0), (0,)), below=5),
        Sample((t(f32, 5, 4), t(f32, 3, 2), t(i32, 3)), UpdateAttributes((0, 1), (0,)), below=5),
        Sample((t(f32, 5, 2, 4), t(f32, 3, 2, 1), t(i64, 3), t(i64, 3)), UpdateAttributes((0, 0, 0), (0, 2)), below=4),
    ),
    "copy_at": many(Sample((t(f32, 2, B), t(i32)), CopyAtAttributes((1,), (12,)), below=9)),
    "scatter": many(Sample((t(f32, B, 1), t(i32, 1)), CopyAtAttributes((1,), (1,)), below=1)),
    "extern": many(
        Sample((_X,), ExternAttributes("aten.sort", _ODD_TEXT, (_X, t(i64, 2, 3)), "new: sort")),
        Sample((), ExternAttributes("numpy.seterr", "((), {})", ())),
    ),
    "fused": many(Sample((t(f32, B, 4),), FusedAttributes("row", _body()))),
    "gelu": many(Sample((_X,), GeluAttributes()), Sample((_X,), GeluAttributes("tanh"))),
    "softmax": many(Sample((t(f32, B, S),), AxisAttributes(1)), Sample((t(bf16, 4, 0),), AxisAttributes(1))),
    "log_softmax": many(Sample((t(f32, B, S),), AxisAttributes(0))),
    "mean": many(Sample((t(bf16, B, S),), ReduceAttributes((0, 1)))),
    "var": many(Sample((t(f32, B, S),), VarAttributes((1,))), Sample((_X,), VarAttributes((0, 1), 1.0))),
    "layer_norm": many(
        Sample((t(f32, B, 4),), NormAttributes((1,), 1e-5)),
        Sample((t(f32, B, 4, 2), t(f32, 4, 2), t(f32, 4, 2)), NormAttributes((1, 2), 1e-12)),
    ),
    "rms_norm": many(Sample((t(bf16, B, 4), t(bf16, 4)), NormAttributes((1,), 1e-6))),
    "linear": many(Sample((t(f32, B, S, 4), t(f32, 6, 4), t(f32, 6))), Sample((t(f32, 4), t(f32, 6, 4)))),
    "matmul": many(
        Sample((t(f32, B, 1, 2, 3), t(f32, 4, 3, 5))), Sample((t(f32, 3), t(f32, 3))), Sample((t(i64, 2, 3), t(i64, 3)))
    ),
    "einsum": many(
        Sample((t(f32, B, 2, 3), t(f32, B, 3, 4)), EinsumAttributes("bij,bjk->bik")),
        Sample((t(f32, 3, 3),), EinsumAttributes("ii->i")),
        Sample((t(f32, 2, 3), t(f32, 3, 4), t(f32, 4)), EinsumAttributes("ij,jk,k->")),
    ),
    "sdpa": many(
        Sample((t(f32, B, 4, S, 8), t(f32, B, 4, 6, 8), t(f32, B, 4, 6, 3)), SdpaAttributes()),
        Sample((t(bf16, 2, 4, 5, 8), t(bf16, 2, 2, 6, 8), t(bf16, 2, 2, 6, 8)), SdpaAttributes(True, 0.25, True)),
        Sample((t(f32, 5, 8), t(f32, 6, 8), t(f32, 6, 8), t(bool_, 5, 6)), SdpaAttributes()),
        Sample((t(f32, 5, 8), t(f32, 6, 8), t(f32, 6, 8), t(f32, 5, 6)), SdpaAttributes(scale=2.0)),
    ),
}


def usual(op: OpDef) -> tuple[Sample, ...]:
    """Of an elementwise op or a reduction that has no samples of its own: the floats, integers and bools it takes."""
    attributes = ReduceAttributes((1,)) if op.kind == "reduce" else NO_ATTRIBUTES
    found = (Sample((operand,) * op.arity[0], attributes, below=4) for operand in (_X, _INT, _FLAG))
    return tuple(sample for sample in found if _is_typed(op, sample))


def _is_typed(op: OpDef, sample: Sample) -> bool:
    try:
        op.infer(sample.operands, sample.attributes)
    except TypeRuleError:
        return False
    return True


SAMPLES.update(
    (name, usual(op)) for name, op in OPS.items() if name not in SAMPLES and op.kind in ("elementwise", "reduce")
)

CASES = [(name, n) for name in OPS for n in range(len(SAMPLES.get(name, ())))]
"""Every (op name, sample number), for ``pytest.mark.parametrize``."""
