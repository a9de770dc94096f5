# SPDX-License-Identifier: Apache-2.0
"""Ops without operands, library calls and fused groups."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import cast

import numpy as np

from fusec.errors import FusecError, TypeRuleError
from fusec.ir.attributes import Attributes, ConstantAttributes, ExtentAttributes, ExternAttributes, IotaAttributes
from fusec.ir.definition import A, Array, Arrays, OpDef, OpKind, Types, define, require_axes, require_kind, show
from fusec.ir.graph import FusedAttributes
from fusec.ir.types import NUMBER, TensorType

Refusal = Callable[[Arrays, Attributes], tuple[Array, ...]]


def _constant_rule(_: Types, attributes: ConstantAttributes) -> Types:
    value, dtype = attributes.value, attributes.dtype
    fits = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "uint": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "complex": not isinstance(value, bool),
    }[dtype.kind]
    if not fits:
        raise TypeRuleError(f"{value!r} is not a value of {dtype}; convert it first")
    if dtype.is_integer and isinstance(value, int):
        low = 0 if dtype.kind == "uint" else -(1 << dtype.bits - 1)
        high = low + (1 << dtype.bits) - 1
        if not low <= value <= high:
            raise TypeRuleError(f"{value} is out of the range of {dtype}, {low} to {high}")
    return (TensorType(dtype, (), attributes.device),)


def _constant(_: Arrays, attributes: ConstantAttributes) -> Array:
    return np.array(attributes.value).astype(attributes.dtype.numpy)


def _iota_rule(_: Types, attributes: IotaAttributes) -> Types:
    t = TensorType(attributes.dtype, attributes.shape, attributes.device)
    require_kind((t,), NUMBER, "make an integer iota and compare it")
    require_axes((attributes.axis,), t)
    return (t,)


def _iota(_: Arrays, attributes: IotaAttributes) -> Array:
    shape = tuple(d for d in attributes.shape if isinstance(d, int))
    line = np.arange(shape[attributes.axis]).astype(attributes.dtype.numpy)
    along = [1] * len(shape)
    along[attributes.axis] = shape[attributes.axis]
    return np.broadcast_to(line.reshape(along), shape)


def _extent_rule(_: Types, attributes: ExtentAttributes) -> Types:
    t = TensorType(attributes.dtype, (), attributes.device)
    require_kind((t,), NUMBER, "make an integer and cast it")
    return (t,)


def _extent(_: Arrays, attributes: ExtentAttributes) -> Array:
    number = prod(n for n in attributes.factors if isinstance(n, int))
    return np.array(number).astype(attributes.dtype.numpy)


def _extern_rule(_: Types, attributes: ExternAttributes) -> Types:
    return attributes.types


def _extern(_: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    assert isinstance(attributes, ExternAttributes)
    raise FusecError(f"extern {attributes.target} has no NumPy reference; pass interpret() a function that runs it")


def _fused_rule(types: Types, attributes: FusedAttributes) -> Types:
    wanted = tuple(v.type for v in attributes.body.inputs)
    if types != wanted:
        raise TypeRuleError(f"operands {show(types)} are not what the body takes: {show(wanted)}")
    return tuple(v.type for v in attributes.body.outputs)


def _fused(_: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    raise FusecError("a fused op is run by interpret(), which runs its body")


def _nested(kind: OpKind, record: type[A], rule: Callable[[Types, A], Types], refuse: Refusal) -> OpDef:
    return OpDef(kind, kind, record, (0, None), cast(Callable[[Types, Attributes], Types], rule), refuse)


CREATE_OPS: tuple[OpDef, ...] = (
    define("constant", "create", ConstantAttributes, (0, 0), _constant_rule, _constant),
    define("extent", "create", ExtentAttributes, (0, 0), _extent_rule, _extent),
    define("iota", "create", IotaAttributes, (0, 0), _iota_rule, _iota),
)

NESTED_OPS: tuple[OpDef, ...] = (
    _nested("extern", ExternAttributes, _extern_rule, _extern),
    _nested("fused", FusedAttributes, _fused_rule, _fused),
)
