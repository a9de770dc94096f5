# SPDX-License-Identifier: Apache-2.0
"""What an op is: one record, and the checks on dtypes that the type rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from fusec.errors import TypeRuleError
from fusec.ir.attributes import Attributes
from fusec.ir.monoid import Monoid
from fusec.ir.types import DTypeKind, TensorType

OpKind = Literal[
    "create",
    "elementwise",
    "reduce",
    "argreduce",
    "scan",
    "dot",
    "view",
    "data",
    "scatter",
    "write",
    "alias",
    "extern",
    "fused",
    "composite",
]
"""create: no operands. elementwise: operands broadcast, NumPy's rule. view: an index map, no arithmetic.
data: moves elements. scatter: adds elements where an index says.
write: an array with some elements replaced, in its own memory once ``writes`` has run.
alias: its operand, which it shows where an input or an output has it in memory.
composite: opened into the other kinds by canonicalisation."""

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
Types = tuple[TensorType, ...]
A = TypeVar("A", bound=Attributes)


@dataclass(frozen=True, eq=False)
class OpDef:
    """One row of the op table.

    attributes: the record type that the op's attributes must have.
    arity: least and greatest number of operands; None is any number.
    rule: result types from operand types; called through :meth:`infer`, which checks what all ops share.
    reference: results from NumPy arrays with static attributes. Half types compute in f32 and round once.
        Where every float array is float64 (the oracle), nothing is rounded to a narrower type.
    flops: operations per result element of an elementwise op, a hint for the cost model.
    monoid: what a reduction, a scan or a dot adds up with.
    commutative: two operands may be swapped without a change of any bit, a NaN's payload aside.
    exact: an elementwise op whose result needs no rounding when its operands are rounded.
    jumps: an op whose result may change by much when an operand changes by a rounding, as a comparison's does.
    """

    name: str
    kind: OpKind
    attributes: type[Attributes]
    arity: tuple[int, int | None]
    rule: Callable[[Types, Attributes], Types]
    reference: Callable[[Arrays, Attributes], tuple[Array, ...]]
    flops: int = 1
    monoid: Monoid | None = None
    commutative: bool = False
    exact: bool = False
    jumps: bool = False

    def infer(self, types: Types, attributes: Attributes) -> Types:
        """The result types. TypeRuleError, with shapes, dtypes and what to do, when the operands don't fit."""
        if type(attributes) is not self.attributes:
            wanted, given = self.attributes.__name__, type(attributes).__name__
            bare = self.attributes is Attributes
            raise TypeRuleError(f"takes no attributes, got {given}" if bare else f"needs {wanted}, not {given}")
        least, most = self.arity
        if len(types) < least or (most is not None and len(types) > most):
            raise TypeRuleError(f"takes {_count(least, most)}, got {len(types)} ({show(types)})")
        apart = types if self.kind != "extern" else [t for t in types if t.rank]  # the library takes scalars from a CPU
        if len({t.device for t in apart}) > 1:
            raise TypeRuleError(f"operands are on different devices: {show(types)}; move them to one device first")
        return self.rule(types, attributes)

    @property
    def reduction(self) -> Monoid:
        """The monoid of an op that has one: a reduction, a scan, a dot."""
        assert self.monoid is not None, self.name
        return self.monoid

    @property
    def is_scalar(self) -> bool:
        """True for an op whose every result element depends on one element of each operand: it fuses anywhere."""
        return self.kind == "elementwise"


class Facts(TypedDict, total=False):
    """The fields of :class:`OpDef` that most ops leave as they are."""

    monoid: Monoid
    commutative: bool
    exact: bool
    jumps: bool


def _count(least: int, most: int | None) -> str:
    if most is None:
        return f"at least {least} operands"
    if least == most:
        return "no operands" if least == 0 else f"{least} operand{'s' * (least > 1)}"
    return f"{least} to {most} operands"


def define(
    name: str,
    kind: OpKind,
    attributes: type[A],
    arity: tuple[int, int | None],
    rule: Callable[[Types, A], Types],
    reference: Callable[[Arrays, A], Array],
    flops: int = 1,
    **facts: Unpack[Facts],
) -> OpDef:
    """An OpDef with one result. The casts are sound: ``infer`` checks the record's type."""

    def run(arrays: Arrays, record: Attributes) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(reference(arrays, cast(A, record))),)

    typed_rule = cast(Callable[[Types, Attributes], Types], rule)
    return OpDef(name, kind, attributes, arity, typed_rule, run, flops, **facts)


def show(types: Sequence[TensorType]) -> str:
    """Operand types for a message: ``f32[2] and i32[2]``."""
    return " and ".join(map(str, types)) or "nothing"


def require_kind(types: Sequence[TensorType], kinds: Sequence[DTypeKind], advice: str = "cast first") -> None:
    """TypeRuleError unless every dtype is of one of the kinds."""
    for t in types:
        if t.dtype.kind not in kinds:
            wanted = ", ".join(kinds)
            raise TypeRuleError(f"does not take {t}; operands must be {wanted}: {advice}")


def require_same_dtype(types: Sequence[TensorType]) -> None:
    """TypeRuleError unless all dtypes are equal."""
    if len({t.dtype for t in types}) > 1:
        raise TypeRuleError(f"operands {show(types)} have different dtypes; cast them to one dtype")


def require_positions(value: TensorType, axes: Sequence[int], positions: Sequence[TensorType]) -> None:
    """TypeRuleError unless there is an integer, or a row of them for the value's positions, for each axis."""
    if len(axes) != len(positions):
        raise TypeRuleError(f"axes={list(axes)} and {len(positions)} operands for them: each axis has its own")
    require_axes(axes, value)
    for t in positions:
        if not t.dtype.is_integer or t.rank > 1 or t.shape != positions[0].shape:
            raise TypeRuleError(f"the positions are {t}; they must be 0-d integers, or rows of as many integers")
    if positions and positions[0].rank:
        wanted = [positions[0].shape[0], *(1 for _ in axes[1:])]
        if [value.shape[axis] for axis in axes] != wanted:
            raise TypeRuleError(f"{value} has not {wanted} places along axes {list(axes)}, as its positions ask for")


def require_axes(axes: Sequence[int], of: TensorType, *, ascending: bool = False) -> None:
    """TypeRuleError unless the axes are axes of the type, none twice (and ascending, if asked)."""
    if any(not 0 <= a < of.rank for a in axes):
        raise TypeRuleError(f"axes {list(axes)} are not all axes of {of}; valid are 0 to {of.rank - 1}")
    if len(set(axes)) != len(axes):
        raise TypeRuleError(f"axes {list(axes)} name one axis twice")
    if ascending and list(axes) != sorted(axes):
        raise TypeRuleError(f"axes {list(axes)} must be ascending")


def is_half(array: Array) -> bool:
    """True for the 16-bit floats, which compute in f32."""
    return array.dtype.itemsize == 2 and array.dtype.kind in "fV"


def widened(arrays: Arrays) -> list[Array]:
    """The arrays with 16-bit floats as f32."""
    return [a.astype(np.float32) if is_half(a) else a for a in arrays]
