# SPDX-License-Identifier: Apache-2.0
"""Templates: loop nests that a backend has by hand, as records of what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2, prod

from fusec.ir.index import Index, Symbol, product
from fusec.ir.types import DType
from fusec.tile.nodes import Iter, RegisterTile, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr


@dataclass(frozen=True)
class Pipeline:
    """How blocks of a matmul work together where one part of a block fetches and others multiply (Hopper).

    ``cluster_m`` by ``cluster_n`` blocks with neighbouring tiles share what they fetch; tiles are walked in groups of
    ``group`` rows of clusters. ``ping_pong``: a block's two consumers do a tile each, one multiplying while the other
    stores; else they do halves of the rows of one tile. ``split``: blocks of a cluster that share one tile, each with a
    part of K. ``promotes``: steps along K after which sums of 8-bit floats are added to others in f32; 0 for never.
    """

    cluster_m: int
    cluster_n: int
    group: int
    ping_pong: bool
    persistent: bool = False
    split: int = 1
    promotes: int = 0


@dataclass(frozen=True)
class TiledAxis:
    """An axis of a matmul in tiles: ``whole`` over all of it, ``inner`` over the tile that starts at ``first``."""

    whole: Iter
    first: Index
    inner: Iter


@dataclass(frozen=True)
class WindowAxis:
    """An axis of an image, of ``extent`` elements ``step`` apart in memory, and the ``count`` windows along it, of
    ``size`` positions each: position p of window n is at ``n * stride + p * dilation - low``, zero outside the
    image."""

    extent: int
    step: int
    count: int
    size: int
    stride: int
    dilation: int
    low: int


@dataclass(frozen=True)
class Windows:
    """Windows of images ``[batch, axes..., channels]`` as rows: of all windows, the last axis fastest; along K all
    channels of one position after those of another, the last axis fastest. Channels are side by side in memory, those
    of the matmul's next batch (a group) behind these."""

    memory: Load
    batch: int
    batch_step: int
    channels: int
    axes: tuple[WindowAxis, ...]
    groups: int = 1

    @property
    def places(self) -> int:
        """Of a window."""
        return prod(a.size for a in self.axes)


SHARED_COLUMNS = 8
"""Columns side by side of a right operand that have one scale, if it changes along K: those of the narrowest
instruction."""


@dataclass(frozen=True)
class TemplateOperand:
    """An element of a matmul's operand over the whole axes. ``tile``: what it is computed into, block by block; None
    where it is read as it lies. windows: what the element says, where it shows windows that TMA can fetch. eight: the
    8-bit float that the element is, times ``scale``, the same along each step of K, by which the sums of products may
    be multiplied instead. scales_sums: these are what the code multiplies."""

    element: ScalarExpr
    tile: Buffer | None = None
    windows: Windows | None = None
    eight: Load | None = None
    scale: ScalarExpr | None = None
    scales_sums: bool = False

    @property
    def dtype(self) -> DType:
        """Of what is multiplied."""
        if self.eight is not None:
            return self.eight.dtype
        return self.element.dtype if self.tile is None else self.tile.dtype


@dataclass(frozen=True)
class GemmNest:
    """Matmuls of one left operand, in tiles: batches by rows by columns, with steps along K from ``step`` on.

    rights, sums: for each matmul, its right operand and its accumulator. stores: of the results, over the whole rows
    and columns, where they read the accumulators at their positions in a tile. rows: over the batch, the first
    position along K that it adds up, and the one behind its last; None where each adds up all.
    """

    batch: Iter
    row_tiles: Iter
    column_tiles: Iter
    row: TiledAxis
    column: TiledAxis
    depth: TiledAxis
    step: Symbol
    left: TemplateOperand
    rights: tuple[TemplateOperand, ...]
    sums: tuple[Load, ...]
    stores: tuple[Store, ...]
    tf32: bool
    rows: tuple[ScalarExpr, ScalarExpr] | None = None

    @property
    def tiles(self) -> Index:
        """How many there are."""
        return product((self.batch.count, self.row_tiles.count, self.column_tiles.count))


@dataclass(frozen=True)
class SimtGemm:
    """A matmul by SIMT arithmetic; ``thread``: what a thread has of a tile."""

    nest: GemmNest
    thread: RegisterTile


@dataclass(frozen=True)
class MmaGemm:
    """Matmuls by the tensor core instructions of a warp (sm_80 and later); ``warp``: what a warp has of a tile."""

    nest: GemmNest
    warp: RegisterTile


@dataclass(frozen=True)
class WarpShares:
    """How warps share a matmul of lines with few vectors: each has sums of ``lines`` by ``vectors``.

    ``line_groups`` of them lie side by side along the lines, ``depth_groups`` along K, and ``split`` blocks of a
    cluster share K, too. A lane reads ``lane`` neighbours along K of a line at once, and has ``ahead`` such reads under
    way. ring: steps of the vectors in shared memory (0: they are read as they lie). together: blocks that are to share
    an SM.
    """

    lines: int
    vectors: int
    line_groups: int
    depth_groups: int
    split: int
    lane: int
    ahead: int
    ring: int = 0
    together: int = 1

    @property
    def block_lines(self) -> int:
        return self.lines * self.line_groups

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.line_groups * self.depth_groups


@dataclass(frozen=True)
class SkinnyGemm:
    """Matmuls of the lines of a large operand (the left one where ``side`` is 0, else the right ones) with few vectors,
    by the tensor core instructions of a warp, which makes the lines in registers."""

    nest: GemmNest
    side: int
    shares: WarpShares


@dataclass(frozen=True)
class WindowTile:
    """What a block has of a convolution in groups: ``rows`` by ``wide`` windows of one image, ``channels`` of it, by so
    many warps. down: rows of windows that share what a warp reads of the image, where a group is one channel."""

    rows: int
    wide: int
    channels: int
    warps: int
    down: int = 1


@dataclass(frozen=True)
class GroupedConvolution:
    """Sums of products over windows of an image of two axes, for groups of few channels side by side: a block holds a
    tile of the image, and its warps multiply windows where they lie (sm_80 and later).

    row: over the windows of all images. column: over the columns of all groups, ``columns`` of each. depth: over the
    taps of a window and the channels of a group. image, weight: elements of both, over these. total: the sums of a row.
    stores: of the results, over a row's columns.
    """

    row: Iter
    column: Iter
    depth: Iter
    columns: int
    windows: Windows
    image: ScalarExpr
    weight: ScalarExpr
    total: Load
    stores: tuple[Store, ...]
    tile: WindowTile


@dataclass(frozen=True)
class HopperGemm:
    """Matmuls by warpgroups that multiply what another one fetches by TMA."""

    nest: GemmNest
    pipeline: Pipeline


@dataclass(frozen=True)
class KeyLoop:
    """Blocks of keys from ``start`` up to ``stop``. ``score``: over ``raw``, the dot of queries and keys.

    ``limit``: keys of a block that there are, counted from its first; None where all are. factor: of scores.
    ``subtracts_first``: the maximum of a row is subtracted before they are exponents, as scores may be huge.
    """

    start: Index
    stop: Index
    limit: Index | None
    raw: Buffer
    score: ScalarExpr
    factor: float
    subtracts_first: bool

    @property
    def scale(self) -> float:
        """The factor in units of log2: a key's weight is a power of two."""
        return self.factor * log2(e)


@dataclass(frozen=True)
class AttentionNest:
    """A block of queries against blocks of keys, the softmax online.

    heads: the grid's other axes. query_block: its number. query, key, depth, value: iterators over a block
    of queries, a block of keys, and the columns of queries and of values. first_key: the loops' variable. loops: in
    order; ``whole`` is the position of the one whose blocks no mask touches (of the only one, where there is no other).
    stores: over ``mean``, the weighted mean of values; ``guarded``: which is 0 where no key has a weight.
    """

    heads: tuple[Iter, ...]
    query_block: Iter
    query: Iter
    key: Iter
    depth: Iter
    value: Iter
    first_key: Symbol
    queries: Load
    keys: Load
    values: Load
    loops: tuple[KeyLoop, ...]
    whole: int
    mean: Buffer
    guarded: bool
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class MmaAttention:
    """Attention by the tensor core instructions of a warp (sm_80 and later)."""

    nest: AttentionNest


@dataclass(frozen=True)
class HopperAttention:
    """Attention by warpgroups that multiply what another one fetches by TMA."""

    nest: AttentionNest
    pipeline: Pipeline


GemmTemplate = SimtGemm | MmaGemm | SkinnyGemm | HopperGemm | GroupedConvolution
Template = GemmTemplate | MmaAttention | HopperAttention
"""A loop nest that a backend has by hand. The kernel's body says what it computes, in statements."""
