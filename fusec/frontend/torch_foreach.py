# SPDX-License-Identifier: Apache-2.0
"""``torch._foreach_...``: calls on lists of tensors, as optimizers make them, as the calls of their elements.

What a step computes of one parameter is then in few kernels; the library's calls go over all parameters again at each
of their operations. On a GPU they stay the library's: a kernel whose results are several inputs' new contents is cut
into one for each, and a copy, so that a step would be more launches, and no fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

_PREFIX = "_foreach_"

_UNARY = frozenset(
    {
        *(
            "abs",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "erfc",
            "exp",
            "expm1",
            "floor",
            "frac",
            "log",
            "log10",
            "log1p",
            "log2",
        ),
        *("neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
        "zero",
    }
)
_BINARY = frozenset({"add", "sub", "mul", "div", "pow", "lerp", "copy", "clamp_min", "clamp_max"})
_FUSED = frozenset({"addcmul", "addcdiv"})
_RENAMED = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""By NaN as well, and there is one that writes in place."""

Call = Callable[[], Any]


def element_by_element(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], is_on_cpu: Callable[[torch.Tensor], bool]
) -> Call | None:
    """What makes the calls of a ``_foreach`` call's elements, with its result; None for other calls, and on GPUs."""
    name = func.overloadpacket.__name__
    if func.namespace != "aten" or not name.startswith(_PREFIX):
        return None
    base = name.removeprefix(_PREFIX)
    in_place, stem = base.endswith("_"), base.removesuffix("_")
    stem = _RENAMED.get(stem, stem)
    if stem not in _UNARY | _BINARY | _FUSED | {"norm"}:
        return None
    given = _elements(func, args, kwargs)
    tensors = [x for element in given or () for x in element.values() if isinstance(x, torch.Tensor)]
    if given is None or not all(map(is_on_cpu, tensors)):
        return None
    target = getattr(torch.ops.aten, "linalg_vector_norm" if stem == "norm" else stem + "_" * in_place)

    def call() -> Any:
        results = [_call(target, stem, element) for element in given]
        return None if in_place else results

    return call


def _elements(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The arguments of each element by their names in the schema; None where there is no one number of elements."""
    parameters = func._schema.arguments
    named = {**dict(zip((p.name for p in parameters), args)), **kwargs}
    lists = [p.name for p in parameters if str(p.type).startswith("List[") and p.name in named]
    counts = {len(named[name]) for name in lists}
    if len(counts) != 1 or ("scalars" in named and isinstance(named["scalars"], torch.Tensor)):
        return None
    return [{**named, **{name: named[name][k] for name in lists}} for k in range(counts.pop())]


def _call(target: Any, stem: str, given: Mapping[str, Any]) -> Any:
    if stem == "norm":
        return target(given["self"], given.get("ord", 2), dtype=given.get("dtype"))
    if stem in _FUSED:
        value = given.get("scalars", given.get("value", 1))
        return target(given["self"], given["tensor1"], given["tensor2"], value=value)
    positional = [value for name, value in given.items() if name not in ("alpha", "non_blocking", "rounding_mode")]
    named = {name: value for name, value in given.items() if name in ("alpha", "non_blocking", "rounding_mode")}
    return target(*positional, **named)
