# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in nothing but names are compiled once: the layers of a model have the same kernels."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from fusec.ir.types import DType
from fusec.tile.kernel import Kernel
from fusec.tile.scalar import Buffer


def kernel_key(kernel: Kernel) -> tuple[object, ...]:
    """Equal for two kernels that compute the same from their parameters in order, whatever the names."""
    numbers: dict[Buffer, int] = {}
    memo: dict[int, object] = {}

    def key(node: Any) -> object:
        if isinstance(node, Buffer):
            number = numbers.setdefault(node, len(numbers))
            return ("buffer", number, node.dtype, node.shape, node.strides, node.space)
        if isinstance(node, tuple):
            return tuple(map(key, node))
        if isinstance(node, DType) or not is_dataclass(node):
            return (type(node).__name__, repr(node) if isinstance(node, float) else node)
        known = memo.get(id(node))
        if known is None:
            known = memo[id(node)] = (type(node).__name__, *(key(getattr(node, f.name)) for f in fields(node)))
        return known

    return (
        kernel.kind,
        kernel.outputs,
        kernel.warps,
        kernel.stages,
        kernel.registers,
        kernel.sizes,
        kernel.final,
        key(kernel.parameters),
        key(kernel.body),
        key(kernel.moves),
        key(kernel.template),
        kernel.traits,
    )


def is_same_but_name(kernel: Kernel, other: Kernel) -> bool:
    """Whether two kernels are the same objects under two names: known without looking into them."""
    return all(getattr(kernel, f.name) is getattr(other, f.name) for f in fields(kernel) if f.name != "name")
