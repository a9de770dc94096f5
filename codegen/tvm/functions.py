# SPDX-License-Identifier: Apache-2.0
"""Which functions are computed on vectors, by element type and name."""

from __future__ import annotations

from collections.abc import Callable

from fusec.codegen.tvm.errors import erf, erfc
from fusec.codegen.tvm.hyperbolic import INVERSES, cosh, sinh
from fusec.codegen.tvm.math import exp, exp2, expm1, log, log1p, log2, log10, tanh
from fusec.codegen.tvm.powers import hypot
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.trigonometry import acos, asin, atan, atan2, cos, sin, tan

_BOTH: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "erf": erf,
    "erfc": erfc,
    "hypot": hypot,
}

VECTOR_FUNCTIONS: dict[str, dict[str, Callable[..., Value]]] = {
    element: {**_BOTH, **INVERSES[element]} for element in ("float32", "float64")
}
"""Functions of one or two arguments, by element type."""
