# SPDX-License-Identifier: Apache-2.0
"""Attribute records of ops: frozen, typed, and all that an op knows beyond its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fusec.ir.types import Dim, DType, TensorType

Scalar = bool | int | float | complex


@dataclass(frozen=True)
class Attributes:
    """Base of all attribute records, and the record of an op that has none."""


NO_ATTRIBUTES = Attributes()


@dataclass(frozen=True)
class ConstantAttributes(Attributes):
    """A 0-d constant. ``value`` is what the dtype holds of the number given: f16(0.1) is 0.0999755859375."""

    value: Scalar
    dtype: DType
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype.is_half:
            object.__setattr__(self, "value", self.dtype.rounded(self.value))


@dataclass(frozen=True)
class IotaAttributes(Attributes):
    """``result[i0, i1, ...] = i_axis``."""

    shape: tuple[Dim, ...]
    axis: int
    dtype: DType
    device: str = "cpu"


@dataclass(frozen=True)
class ExtentAttributes(Attributes):
    """A 0-d number that symbols make: the product of ``factors``, in a dtype that is not complex or bool."""

    factors: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"


@dataclass(frozen=True)
class CastAttributes(Attributes):
    """``implied``: the rounding at the end of a library's call in half precision, which no user wrote; a kernel that
    goes on with the value may keep the digits it has."""

    dtype: DType
    implied: bool = False


@dataclass(frozen=True)
class ReduceAttributes(Attributes):
    """Axes that are reduced away (never kept), ascending and not negative.

    ``dtype``: the result's float dtype where it is wider than the operand's, in which sums and products are made; short
    blocks of a sum's terms may be added up before in their own.
    """

    axes: tuple[int, ...]
    dtype: DType | None = None


@dataclass(frozen=True)
class ArgReduceAttributes(Attributes):
    """The axis that is searched and dropped; the result is the first i64 index of the extreme (of a NaN, if any)."""

    axis: int


@dataclass(frozen=True)
class ScanAttributes(Attributes):
    """Running reduction along an axis, from its first position on or, ``reverse``, from its last one.

    ``last``: of a recurrence the result at the last position that it comes to, alone. ``signed_zero``: a running sum
    starts from its first element, so that one of negative zeros stays negative; else it starts from 0.
    """

    axis: int
    reverse: bool = False
    last: bool = False
    signed_zero: bool = False


@dataclass(frozen=True)
class DotAttributes(Attributes):
    """A contraction. The result's axes are: batch axes, then the free axes of the left, then of the right.

    ``dtype`` is the result's dtype; None means the operands'. Half types accumulate in f32. With ``tf32`` a GPU may
    round f32 operands to ten bits of mantissa, as its matrix units want them. With ``fast`` sums of 8-bit floats may
    keep the few digits that matrix units keep. With ``scaled`` operands that are 8-bit floats times scales of blocks
    may be multiplied as such, and the sums of each block be scaled; with ``scales_sums`` that is what the code has
    written.
    """

    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    dtype: DType | None = None
    tf32: bool = False
    fast: bool = False
    scaled: bool = False
    scales_sums: bool = False


MOST_GROUPS = 256
"""Of rows that one kernel multiplies; it compares any two of them."""


@dataclass(frozen=True)
class GroupedDotAttributes(Attributes):
    """Rows ``[m, k]`` in groups, one after another, each multiplied with its own matrix of ``[groups, ...]``.

    ``rhs_contract``: the matrices' contracted axis, 1 or 2. ``sizes``: rows of each group; without, a third operand
    says where each group ends. Rows behind the last group are 0. ``dtype`` as in :class:`DotAttributes`. ``apart``:
    each matrix is an operand of its own, one after another; there are so many. 0 where one operand has all.
    """

    rhs_contract: int
    sizes: tuple[int, ...] = ()
    dtype: DType | None = None
    apart: int = 0


@dataclass(frozen=True)
class GroupedOuterAttributes(Attributes):
    """Of each group of rows the sum of the outer products of a row ``[p]`` with a row ``[q]``: ``[groups, p, q]``.

    A third operand says where each group ends. A group without rows has 0. ``dtype`` as in :class:`DotAttributes`.
    """

    dtype: DType | None = None


@dataclass(frozen=True)
class PermuteAttributes(Attributes):
    """``result axis k = operand axis permutation[k]``."""

    permutation: tuple[int, ...]


@dataclass(frozen=True)
class ShapeAttributes(Attributes):
    """The result's shape: of reshape (row-major order kept) and broadcast (NumPy's rule, aligned at the right)."""

    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class SliceAttributes(Attributes):
    """``result[i] = operand[start + i*step]``, one triple an axis.

    Starts and stops are normalised: not negative, within the extent. A step may be negative; then
    ``stop`` is exclusive downwards and may be -1.
    """

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of_axes(shape: Sequence[Dim], ranges: Mapping[int, tuple[Dim, Dim]]) -> SliceAttributes:
        """Some axes each from a start to a stop, the others whole."""
        ends = [ranges.get(a, (0, n)) for a, n in enumerate(shape)]
        return SliceAttributes(tuple(low for low, _ in ends), tuple(high for _, high in ends), (1,) * len(shape))


@dataclass(frozen=True)
class UpdateAttributes(Attributes):
    """Where the second operand is written in the first: ``result[start + i] = value[i]``, a start for each axis.

    ``axes``: those along which further operands, one for each and never negative, say where; ``starts`` has 0 there.
    0-d operands are starts. Operands of ``n`` elements are positions: the value has ``n`` places along the first of the
    axes and one along the others, and place ``i`` goes to ``(a[i], b[i], ...)``; of equal positions any one stays.
    """

    starts: tuple[Dim, ...]
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class CopyAtAttributes(Attributes):
    """The axes along which further operands say where the copy goes, as those of an ``update`` do.

    ``extents``: those of the array that is written, along these axes. Of a ``scatter`` the array is the result, and the
    one further operand a permutation.
    """

    axes: tuple[int, ...]
    extents: tuple[Dim, ...]


@dataclass(frozen=True)
class StridedAttributes(Attributes):
    """``result[i...] = flat(operand)[offset + sum(i*strides)]``; flat is row-major, strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class WindowsAttributes(Attributes):
    """Sliding windows: axis ``axis`` becomes the window's number, a new last axis the position in the window.

    ``result[..., w, ..., j] = operand[..., w*step + j, ...]``.
    """

    axis: int
    size: int
    step: int = 1


@dataclass(frozen=True)
class ConcatAttributes(Attributes):
    axis: int


@dataclass(frozen=True)
class PadAttributes(Attributes):
    """Elements added before and after each axis; the second operand is the 0-d fill value."""

    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class GatherAttributes(Attributes):
    """The axis of the first operand that the second (integer indices, never negative) picks from."""

    axis: int


@dataclass(frozen=True)
class ExternAttributes(Attributes):
    """A library call that fusec does not open.

    ``target`` names it (``aten.sort.stable``, ``numpy.sort``). ``arguments`` is the text of a Python tuple
    and dict of its arguments, ``$0``, ``$1``, ... standing for the operands. ``reason`` says why it is not compiled.
    ``strided``: operands of PyTorch's calls (their numbers) that may lie in memory in any way; the others are
    contiguous, as the function gave them, and what it calls may count on that. ``orders``: the library's axes of each
    result, one result after the other, in the order of memory, in which ``types`` has them; none where all are as the
    library has them. ``shows``: the results may lie in an operand's memory (views of another dtype), so that a copy of
    one is a copy. ``positions``: where the results stand in the tuple that the library gives, which may hold more; none
    where they are all of it.
    """

    target: str
    arguments: str
    types: tuple[TensorType, ...]
    reason: str = ""
    strided: tuple[int, ...] = ()
    orders: tuple[int, ...] = ()
    shows: bool = False
    positions: tuple[int, ...] = ()

    def order_of(self, result: int) -> tuple[int, ...]:
        """The library's axes of a result, by its number, in the order of memory."""
        rank = self.types[result].rank
        start = sum(t.rank for t in self.types[:result])
        return self.orders[start : start + rank] or tuple(range(rank))


@dataclass(frozen=True)
class GeluAttributes(Attributes):
    """``none`` is the exact form with erf, ``tanh`` its approximation (Hendrycks and Gimpel, 2016)."""

    approximate: Literal["none", "tanh"] = "none"


@dataclass(frozen=True)
class AxisAttributes(Attributes):
    """The axis along which a softmax sums to one; not negative."""

    axis: int


@dataclass(frozen=True)
class VarAttributes(Attributes):
    """Variance over ``axes`` (dropped), divided by ``n - correction``."""

    axes: tuple[int, ...]
    correction: float = 0.0


@dataclass(frozen=True)
class NormAttributes(Attributes):
    """A normalisation over the last axes ``axes``; ``eps`` is added to the variance or mean square."""

    axes: tuple[int, ...]
    eps: float


@dataclass(frozen=True)
class EinsumAttributes(Attributes):
    """An explicit equation such as ``bij,bjk->bik``; ellipses already expanded."""

    equation: str


@dataclass(frozen=True)
class SdpaAttributes(Attributes):
    """Scaled dot-product attention. ``scale`` None is ``1/sqrt(head size)``.

    ``causal`` masks key ``j > i`` (aligned at the top left); ``grouped`` lets keys have fewer heads than queries.
    """

    causal: bool = False
    scale: float | None = None
    grouped: bool = False


@dataclass(frozen=True)
class AliasAttributes(Attributes):
    """Whose memory: that of the graph's input, or output, ``index``.

    ``itself``: the result is not a view of that array, but the array.
    """

    of: Literal["input", "output"]
    index: int
    itself: bool = False


FusedKind = Literal["map", "row", "gemm", "grouped", "attention", "scores", "scan", "scatter", "library"]
