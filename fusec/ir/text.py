# SPDX-License-Identifier: Apache-2.0
"""What the printer and the parser of IR text share: how names, scalars and attribute fields are spelled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import get_args

from fusec.ir.attributes import (
    Attributes,
    CastAttributes,
    DotAttributes,
    ExtentAttributes,
    ExternAttributes,
    FusedKind,
    IotaAttributes,
    Scalar,
    ShapeAttributes,
    StridedAttributes,
)
from fusec.ir.types import DType, TensorType

BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""A name that needs no quotes after ``%`` or ``@``."""

FUSED_KINDS: tuple[str, ...] = get_args(FusedKind)

PAIRS: Mapping[type[Attributes], Mapping[str, tuple[str, str]]] = {
    DotAttributes: {"contract": ("lhs_contract", "rhs_contract"), "batch": ("lhs_batch", "rhs_batch")}
}
"""Fields that are written together, as ``contract=[1]x[0]``."""

Given = Mapping[str, Callable[[tuple[TensorType, ...]], object]]

FROM_RESULT: Mapping[type[Attributes], Given] = {
    CastAttributes: {"dtype": lambda types: types[0].dtype},
    ShapeAttributes: {"shape": lambda types: types[0].shape},
    StridedAttributes: {"shape": lambda types: types[0].shape},
    ExternAttributes: {"types": lambda types: types},
    ExtentAttributes: {"dtype": lambda types: types[0].dtype, "device": lambda types: types[0].device},
    IotaAttributes: {
        "shape": lambda types: types[0].shape,
        "dtype": lambda types: types[0].dtype,
        "device": lambda types: types[0].device,
    },
}
"""Fields that are not written, because the result's type tells them."""


def paired(record: type[Attributes]) -> set[str]:
    """The fields of a record that :data:`PAIRS` writes."""
    return {name for pair in PAIRS.get(record, {}).values() for name in pair}


def plain_fields(record: type[Attributes]) -> list[Field[object]]:
    """The fields that are written as ``name=value``, in order."""
    skipped = paired(record) | set(FROM_RESULT.get(record, ()))
    return [f for f in fields(record) if f.name not in skipped]


def has_default(field: Field[object], value: object) -> bool:
    """True when the field may be left out; 0.0 and -0.0 differ."""
    return field.default is not MISSING and repr(field.default) == repr(value)


def spell_name(name: str) -> str:
    return name if BARE_NAME.fullmatch(name) else json.dumps(name)


def spell_string(text: str) -> str:
    """A quoted string on one line, with JSON's escapes."""
    return json.dumps(text)


def spell_float(value: float) -> str:
    return repr(float(value))


def spell_scalar(value: Scalar, dtype: DType, device: str) -> str:
    """A constant as it stands among operands: ``f32(0.5)``, ``bool(true)``, ``c64(1.0, -2.0)``."""
    if isinstance(value, bool):
        inner = "true" if value else "false"
    elif isinstance(value, int):
        inner = str(int(value))
    elif isinstance(value, float):
        inner = spell_float(value)
    else:
        inner = f"{spell_float(value.real)}, {spell_float(value.imag)}"
    return f"{dtype}({inner})" + ("" if device == "cpu" else f"@{device}")
