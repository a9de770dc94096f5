"""The type rules: what each op gives, and what it says when its operands do not fit."""

from __future__ import annotations

import pytest
from op_samples import t

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    NO_ATTRIBUTES,
    ArgReduceAttributes,
    Attributes,
    AxisAttributes,
    CastAttributes,
    ConcatAttributes,
    ConstantAttributes,
    DotAttributes,
    EinsumAttributes,
    ExternAttributes,
    GatherAttributes,
    GeluAttributes,
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
    VarAttributes,
    WindowsAttributes,
)
from fusec.ir.index import symbol
from fusec.ir.ops import OPS
from fusec.ir.types import TensorType, bf16, bool_, c64, f32, f64, i8, i32, i64, u8

B = symbol("B", 1, 64)
S = symbol("S")


def _infer(name: str, operands: tuple[TensorType, ...], attributes: Attributes = NO_ATTRIBUTES) -> str:
    return ", ".join(map(str, OPS[name].infer(operands, attributes)))


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "result"),
    [
        ("add", (t(f32, B, 1, 3), t(f32, S, 1)), NO_ATTRIBUTES, "f32[B, S, 3]"),
        ("add", (t(f32), t(f32, 0)), NO_ATTRIBUTES, "f32[0]"),
        ("lt", (t(i8, 2), t(i8)), NO_ATTRIBUTES, "bool[2]"),
        ("select", (t(bool_, 3), t(i64, 2, 1), t(i64)), NO_ATTRIBUTES, "i64[2, 3]"),
        ("cast", (t(f32, B),), CastAttributes(i64), "i64[B]"),
        ("reduce_sum", (t(i32, 2, B, 3),), ReduceAttributes((0, 2)), "i32[B]"),
        ("reduce_sum", (t(f32, 0, 3),), ReduceAttributes((0,)), "f32[3]"),
        ("reduce_max", (t(f32, 0, 3),), ReduceAttributes((1,)), "f32[0]"),
        ("argmax", (t(f32, 2, B),), ArgReduceAttributes(0), "i64[B]"),
        ("cumsum", (t(bf16, 2),), ScanAttributes(0), "bf16[2]"),
        ("dot", (t(f32, 5, B, S), t(f32, B, S, 6)), DotAttributes((2,), (1,), (1,), (0,)), "f32[B, 5, 6]"),
        ("dot", (t(i8, 4), t(i8, 4)), DotAttributes((0,), (0,), dtype=i32), "i32[]"),
        ("permute", (t(f32, 2, B, 4),), PermuteAttributes((2, 0, 1)), "f32[4, 2, B]"),
        ("reshape", (t(f32, B, 12),), ShapeAttributes((2 * B, 3, 2)), "f32[(2*B), 3, 2]"),
        ("reshape", (t(f32, 0, 3),), ShapeAttributes((0,)), "f32[0]"),
        ("broadcast", (t(f32, 1),), ShapeAttributes((0,)), "f32[0]"),
        ("slice", (t(f32, 10),), SliceAttributes((9,), (-1,), (-2,)), "f32[5]"),
        ("slice", (t(f32, 10),), SliceAttributes((4,), (4,), (1,)), "f32[0]"),
        ("slice", (t(f32, 0),), SliceAttributes((-1,), (-1,), (-1,)), "f32[0]"),
        ("slice", (t(f32, B),), SliceAttributes((1,), (B,), (2,)), "f32[(B // 2)]"),
        ("slice", (t(f32, B),), SliceAttributes((B - 1,), (-1,), (-1,)), "f32[B]"),
        ("strided", (t(f32, 4),), StridedAttributes((3, 2), (1, 1)), "f32[3, 2]"),
        ("strided", (t(f32, 4),), StridedAttributes((4,), (-1,), 3), "f32[4]"),
        ("windows", (t(f32, B + 3, 2),), WindowsAttributes(0, 3), "f32[(B + 1), 2, 3]"),
        ("windows", (t(f32, 10),), WindowsAttributes(0, 3, 4), "f32[2, 3]"),
        ("concat", (t(f32, B, 2), t(f32, B, S)), ConcatAttributes(1), "f32[B, (S + 2)]"),
        ("pad", (t(f32, B), t(f32)), PadAttributes((1,), (2,)), "f32[(B + 3)]"),
        ("gather", (t(f32, 9, 3), t(u8, B, 2)), GatherAttributes(0), "f32[B, 2, 3]"),
        ("gather", (t(f32, 9, 3), t(i64)), GatherAttributes(1), "f32[9]"),
        ("matmul", (t(f32, 3), t(f32, B, 3, 4)), NO_ATTRIBUTES, "f32[B, 4]"),
        ("matmul", (t(f32, 2, 3), t(f32, 3)), NO_ATTRIBUTES, "f32[2]"),
        ("linear", (t(f32, B, 3), t(f32, 4, 3)), NO_ATTRIBUTES, "f32[B, 4]"),
        ("einsum", (t(f32, B, 3), t(f32, 3)), EinsumAttributes("bi,i->b"), "f32[B]"),
        ("softmax", (t(f32, B, 3),), AxisAttributes(0), "f32[B, 3]"),
        ("var", (t(f32, B, 3),), VarAttributes((0, 1)), "f32[]"),
        ("layer_norm", (t(f32, B, 3), t(f32, 3)), NormAttributes((1,), 1e-5), "f32[B, 3]"),
        ("sdpa", (t(f32, 8, S, 4), t(f32, 2, B, 4), t(f32, 2, B, 5)), SdpaAttributes(grouped=True), "f32[8, S, 5]"),
    ],
)
def test_results(name: str, operands: tuple[TensorType, ...], attributes: Attributes, result: str) -> None:
    assert _infer(name, operands, attributes) == result


_QKV = (t(f32, 5, 8), t(f32, 6, 8), t(f32, 6, 8))


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "message"),
    [
        ("add", (t(f32, 2),), NO_ATTRIBUTES, r"takes 2 operands, got 1 \(f32\[2\]\)"),
        ("iota", (t(f32, 2),), IotaAttributes((2,), 0, i64), "takes no operands, got 1"),
        ("linear", (t(f32, 2),), NO_ATTRIBUTES, "takes 2 to 3 operands, got 1"),
        ("concat", (), ConcatAttributes(0), r"takes at least 1 operands?, got 0 \(nothing\)"),
        (
            "add",
            (t(f32, 2), t(i32, 2)),
            NO_ATTRIBUTES,
            r"operands f32\[2\] and i32\[2\] have different dtypes; cast them",
        ),
        (
            "add",
            (t(f32, 2, 3), t(f32, 2)),
            NO_ATTRIBUTES,
            r"\[2, 3\] and \[2\] do not broadcast: 3 against 2 at axis -1",
        ),
        ("add", (t(f32, B), t(f32, S)), NO_ATTRIBUTES, "B against S at axis -1, they can't be shown to be equal"),
        (
            "add",
            (t(f32, 2), TensorType(f32, (2,), "cuda:0")),
            NO_ATTRIBUTES,
            r"different devices: .*f32\[2\]@cuda:0; move",
        ),
        ("add", (t(bool_, 2), t(bool_, 2)), NO_ATTRIBUTES, r"does not take bool\[2\]; operands must be float, int"),
        ("div", (t(i32), t(i32)), NO_ATTRIBUTES, "operands must be float, complex: cast first"),
        ("exp", (t(i32),), NO_ATTRIBUTES, r"does not take i32\[\]"),
        ("abs", (t(c64),), NO_ATTRIBUTES, r"does not take c64\[\]"),
        ("logical_and", (t(i32), t(i32)), NO_ATTRIBUTES, "operands must be bool"),
        ("shift_left", (t(bool_), t(bool_)), NO_ATTRIBUTES, "operands must be int, uint"),
        (
            "select",
            (t(i32), t(f32), t(f32)),
            NO_ATTRIBUTES,
            r"the condition is i32\[\]; it must be bool: compare it with 0",
        ),
        ("select", (t(bool_), t(f32), t(f64)), NO_ATTRIBUTES, "different dtypes"),
        ("cast", (t(c64),), CastAttributes(f32), "it would lose the imaginary part"),
        ("cast", (t(f64),), CastAttributes(f32, True), r"a cast of f64\[\] to f32 can't be implied"),
        ("cast", (t(i32),), CastAttributes(bf16, True), "can't be implied"),
        ("constant", (), ConstantAttributes(1.5, i32), "1.5 is not a value of i32"),
        ("constant", (), ConstantAttributes(True, f32), "True is not a value of f32"),
        ("constant", (), ConstantAttributes(-1, u8), "-1 is out of the range of u8, 0 to 255"),
        ("iota", (), IotaAttributes((2,), 1, i64), r"axes \[1\] are not all axes of i64\[2\]; valid are 0 to 0"),
        ("iota", (), IotaAttributes((2,), 0, bool_), "make an integer iota and compare it"),
        ("reduce_sum", (t(f32, 2),), ReduceAttributes((0, 0)), "name one axis twice"),
        ("reduce_sum", (t(f32, 2, 2),), ReduceAttributes((1, 0)), r"axes \[1, 0\] must be ascending"),
        ("reduce_sum", (t(bool_, 2),), ReduceAttributes((0,)), r"does not take bool\[2\]"),
        ("reduce_max", (t(f32, 2, 0),), ReduceAttributes((1,)), "is empty along axes .1.: reduce_max of nothing"),
        ("argmin", (t(f32, 0),), ArgReduceAttributes(0), "is empty along axis 0: argmin of nothing is undefined"),
        ("reduce_any", (t(f32, 2),), ReduceAttributes((0,)), "operands must be bool"),
        ("cumsum", (t(f32),), ScanAttributes(0), r"axes \[0\] are not all axes of f32\[\]"),
        (
            "dot",
            (t(f32, 2, 3), t(f32, 4, 3)),
            DotAttributes((1,), (0,)),
            r"contracted axes \[1\] of f32\[2, 3\] and \[0\]",
        ),
        ("dot", (t(f32, 2, 3), t(f32, 2, 3)), DotAttributes((1,), (1,), (0,), ()), r"batch axes \[0\] .* must pair up"),
        ("dot", (t(f32, 2, 3), t(f32, 2, 3)), DotAttributes((1,), (1,), (1,), (1,)), "name one axis twice"),
        ("permute", (t(f32, 2, 3),), PermuteAttributes((0, 0)), r"\[0, 0\] is not a permutation of the 2 axes"),
        ("reshape", (t(f32, 2, 3),), ShapeAttributes((4,)), r"of 6 elements can't be reshaped to \[4\] of 4"),
        ("reshape", (t(f32, 2, 3),), ShapeAttributes((-2, -3)), "can't be reshaped"),
        ("reshape", (t(f32, B, 3),), ShapeAttributes((S, 3)), r"of \(3\*B\) elements can't be reshaped to \[S, 3\]"),
        ("broadcast", (t(f32, 2, 3),), ShapeAttributes((1, 3)), "does not broadcast to .1, 3.: an extent would shrink"),
        ("broadcast", (t(f32, 2, 3),), ShapeAttributes((3,)), "an extent would shrink"),
        ("slice", (t(f32, 5),), SliceAttributes((0,), (6,), (1,)), r"slice 0:6:1 leaves axis 0 of f32\[5\]; clamp it"),
        ("slice", (t(f32, 5),), SliceAttributes((-1,), (5,), (1,)), "leaves axis 0"),
        ("slice", (t(f32, 5),), SliceAttributes((5,), (-1,), (-1,)), "slice 5:-1:-1 leaves axis 0"),
        ("slice", (t(f32, 5),), SliceAttributes((0,), (5,), (0,)), "slice 0:5:0 has a step of 0"),
        ("slice", (t(f32, B),), SliceAttributes((0,), (B + 1,), (1,)), "leaves axis 0"),
        ("slice", (t(f32, 5, 2),), SliceAttributes((0,), (5,), (1,)), "needs 2 starts, stops and steps"),
        (
            "strided",
            (t(f32, 5),),
            StridedAttributes((3, 3), (1, 1), 1),
            r"reads elements 1 to 5 of f32\[5\], which has 5",
        ),
        ("strided", (t(f32, 5),), StridedAttributes((3,), (-1,), 1), "reads elements -1 to 1"),
        ("strided", (t(f32, 5),), StridedAttributes((3,), (1, 1)), "do not go together"),
        ("strided", (t(f32, B),), StridedAttributes((1,), (1,)), "make its dimensions static"),
        ("windows", (t(f32, 5),), WindowsAttributes(0, 6), r"axis 0 of f32\[5\] is shorter than one window of 6"),
        ("windows", (t(f32, 5),), WindowsAttributes(0, 2, 0), "both must be at least 1"),
        ("concat", (t(f32, 2, 3), t(f32, 2, 4)), ConcatAttributes(0), "can't be joined along axis 0: the other axes"),
        ("pad", (t(f32, 2), t(f32, 1)), PadAttributes((1,), (1,)), "the fill value is f32.1.; it must be 0-d"),
        ("pad", (t(f32, 2), t(f32)), PadAttributes((-1,), (1,)), "one number of elements, 0 or more, for each axis"),
        ("pad", (t(f32, 2), t(f32)), PadAttributes((1, 1), (1, 1)), "for each axis"),
        ("gather", (t(f32, 2), t(f32, 2)), GatherAttributes(0), r"the index is f32\[2\]; it must be an integer type"),
        ("gather_elements", (t(f32, 2, 2), t(i64, 3, 2)), GatherAttributes(1), "no longer on the axes other than 1"),
        (
            "matmul",
            (t(f32, 2, 3), t(f32, 4, 3)),
            NO_ATTRIBUTES,
            r"left \(3\) must equal the last but one .* right \(4\)",
        ),
        ("matmul", (t(f32), t(f32, 3)), NO_ATTRIBUTES, "needs operands of one axis or more; use mul"),
        ("linear", (t(f32, 2, 3), t(f32, 3, 4)), NO_ATTRIBUTES, r"input f32\[2, 3\] and weight f32\[3, 4\] do not fit"),
        ("linear", (t(f32, 2, 3), t(f32, 4, 3), t(f32, 3)), NO_ATTRIBUTES, r"bias f32\[3\] must have the shape \[4\]"),
        ("einsum", (t(f32, 2, 3),), EinsumAttributes("ij"), "must be explicit"),
        ("einsum", (t(f32, 2, 3),), EinsumAttributes("...i->i"), "of letters only"),
        ("einsum", (t(f32, 2, 3),), EinsumAttributes("i->i"), "one letter an axis"),
        ("einsum", (t(f32, 2, 3),), EinsumAttributes("ii->i"), "'i' is both 2 and 3"),
        ("einsum", (t(f32, 2, 3),), EinsumAttributes("ij->k"), "each result letter must be in an operand, and once"),
        ("gelu", (t(f32),), GeluAttributes("erf"), "approximate is 'erf'; it must be 'none' or 'tanh'"),  # type: ignore[arg-type]
        ("softmax", (t(i32, 2),), AxisAttributes(0), r"does not take i32\[2\]"),
        ("layer_norm", (t(f32, 2, 3),), NormAttributes((0,), 0.0), "must be its last axes; permute it first"),
        (
            "layer_norm",
            (t(f32, 2, 3), t(f32, 2)),
            NormAttributes((1,), 0.0),
            "must have the shape of the normalised axes",
        ),
        ("sdpa", (t(f32, 5, 8), t(f32, 6, 7), t(f32, 6, 8)), SdpaAttributes(), "with equal E and S"),
        ("sdpa", (*_QKV, t(bool_, 5, 6)), SdpaAttributes(causal=True), "a mask and causal=True exclude each other"),
        ("sdpa", (*_QKV, t(f64, 5, 6)), SdpaAttributes(), r"the mask is f64\[5, 6\]; it must be bool or f32"),
        ("sdpa", (*_QKV, t(bool_, 5, 5)), SdpaAttributes(), "do not broadcast"),
        ("sdpa", (*_QKV, t(bool_, 2, 5, 6)), SdpaAttributes(), "does not broadcast to the scores"),
        ("sdpa", _QKV, SdpaAttributes(grouped=True), "grouped heads need operands of 3 axes"),
        (
            "sdpa",
            (t(f32, 8, 5, 4), t(f32, 3, 5, 4), t(f32, 3, 5, 4)),
            SdpaAttributes(grouped=True),
            "8 query heads are not a multiple of 3",
        ),
    ],
)
def test_messages(name: str, operands: tuple[TensorType, ...], attributes: Attributes, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        _infer(name, operands, attributes)


def test_an_op_is_scalar_when_it_is_elementwise() -> None:
    assert OPS["exp"].is_scalar
    assert OPS["select"].is_scalar
    assert not OPS["reduce_sum"].is_scalar
    assert not OPS["gelu"].is_scalar


def test_a_library_call_takes_scalars_of_a_cpu_beside_arrays_of_a_gpu() -> None:
    on_gpu = TensorType(f32, (2,), "cuda:0")
    attributes = ExternAttributes("aten.f.default", "($0, $1), {}", (on_gpu,))
    assert OPS["extern"].infer((on_gpu, t(i64)), attributes) == (on_gpu,)
    with pytest.raises(TypeRuleError, match="different devices"):
        OPS["extern"].infer((on_gpu, t(i64, 2)), attributes)
