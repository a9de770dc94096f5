# SPDX-License-Identifier: Apache-2.0
"""Matmuls for Hopper in CUDA C++: a plan for ``gemm.cuh`` with the kernel's own epilogue inlined in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.codegen.cuda.block_scales import write_scales
from fusec.codegen.cuda.deferred import DeferredEpilogue, deferred_epilogue, whole_epilogue
from fusec.codegen.cuda.plan import ALIGNMENT, BOX, EIGHT, ROW_BYTES, Moved, PlanWriter, deferred_values, unrounded
from fusec.codegen.cuda.scalars import Scalars, bare
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type, register_type
from fusec.errors import LoweringError
from fusec.ir.index import Index, add, floordiv, mul, product, sub
from fusec.ir.indexing import ceildiv, most, round_up
from fusec.ir.stepping import Step, step_of
from fusec.ir.types import DType
from fusec.target.gpu import GpuTarget
from fusec.tile.expand import in_tile, operand_of, tile_stores
from fusec.tile.fetch import MAX_RANK, Fetch, fetch_of
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Load, offset_of
from fusec.tile.templates import HopperGemm, TemplateOperand, Windows

_CONSUMERS = 2
_WARPGROUP = 128
_GROUP = 16
"""Columns of a group of results (``gemm.cuh``)."""
_HELD = 192
"""Registers of a consumer's thread for sums: those that grow, and those of the last tile."""
_SWIZZLED_ROWS = 8
"""Rows of a box after which the swizzle begins anew."""
_BODIES = (("gemm.cuh", "gemm"), ("split.cuh", "split_gemm"))
_THREADS = 384
_OWN_NAMES = """Plan batch row_tile column_tile to full blocks row column k dot output from values staged deferred early
row_scale column_scale exact total part start row_tiles batches of_column of_point of_beside fusec plan Type Early
Column Point Beside TensorMap Barrier gemm split_gemm first_k past_k all_k"""
_FEWEST_STEPS = 4
"""Of a tile of a batch with rows of its own along K: the last tile's epilogue runs under so many."""


def emit_hopper_gemm(kernel: Kernel, template: HopperGemm, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError where TMA can't move its operands."""
    return _Emitter(kernel, template, target).emit()


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, template: HopperGemm, target: GpuTarget) -> None:
        self.nest = nest = template.nest
        accumulators = {total.buffer: f"values[{k}][{{}}]" for k, total in enumerate(nest.sums)}
        stores = tile_stores(nest)
        super().__init__(kernel, _OWN_NAMES.split(), nest.row.inner, nest.column.inner, stores, accumulators)
        self.target, self.pipeline = target, template.pipeline
        self.k, self.dtype = nest.depth.inner, nest.left.dtype
        self.symbols |= {
            nest.batch.var: "batch",
            nest.row_tiles.var: "row_tile",
            nest.column_tiles.var: "column_tile",
        }
        self.symbols[nest.step] = "k"
        self.cut = self._deferred()

    def emit(self) -> KernelSource:
        kernel, p = self.kernel, self.pipeline
        nest = self.nest
        a = self._operand(nest.left, (self.m, self.k), 0, self.m.extent // p.cluster_n)
        b = [self._operand(right, (self.k, self.n), 1, self.n.extent // p.cluster_m) for right in nest.rights]
        windows = nest.left.windows
        apart = windows if windows is not None and windows.channels % self.k.extent else None
        if apart is not None:
            if len(b) > 1:
                raise LoweringError("several matmuls over windows whose channels are no whole steps")
            b = [self._weights(b[0], apart)]
        if len({m.fetch.transposed for m in b}) > 1:
            raise LoweringError("operands of one matmul transposed in different ways")
        outputs = [self._output(s) for s in self.stores]
        staged = [m for m in outputs if m is not None]
        beside = self._beside(outputs)
        leaving = [EIGHT if self._is_eight(s) else moved for s, moved in zip(self.stores, outputs, strict=True)]
        eights = [s for s, found in zip(self.stores, leaving, strict=True) if found == EIGHT]
        self._constants(a, b, (len(staged), len(eights)), beside is not None)
        self.members()
        self._count_members()
        self._row_members()
        if windows is not None:
            self._fetch_windows(a, windows)
        else:
            self._fetches("load_a", "row_tile, int row, int k", [a], self.m)
        if apart is not None:
            self._fetch_weights(b[0], apart)
        else:
            self._fetches("load_b", "column_tile, int column, int k, int dot", b, self.n)
        self._finish(leaving, None if beside is None else beside[0])
        self._send(staged)
        self._store_eights(eights)
        if beside is not None:
            self._fetch_beside(beside[1])
        if nest.left.eight is not None:
            write_scales(self, nest)
        self._prepare()
        return KernelSource(
            kernel.name,
            self.text(*_BODIES[p.split > 1], _THREADS, p.cluster_m * p.cluster_n * p.split),
            tuple(x.dtype.name for x in kernel.parameters),
            (self._blocks(), 1, 1),
            _THREADS,
            self._shared(len(staged)),
            tensor_maps=tuple(m.map for m in self.maps),
            shapes=(self.n.extent * len(self.nest.sums),),
            aligned=True,
            overlaps=True,
            sizes=kernel.sizes,
        )

    def _deferred(self) -> DeferredEpilogue | None:
        p, nest = self.pipeline, self.nest
        if p.ping_pong or p.split > 1 or nest.left.eight is not None:
            return None
        sums = self.m.extent // _CONSUMERS * self.n.extent * len(nest.sums) // _WARPGROUP
        grow = sums * (2 if p.promotes else 1)
        if (self.dtype.bits == 8 or p.promotes) and grow + sums <= _HELD:
            return whole_epilogue(self.stores, nest.sums)
        cut = deferred_epilogue(self.stores, self.accumulators)
        held = 0 if cut is None else len(cut.values) * sums // (2 * len(nest.sums))
        return cut if not p.promotes or grow + held <= _HELD else None

    @property
    def _kind(self) -> str:
        """Of what is multiplied, as ``wgmma.cuh`` has it."""
        if self.dtype.bits == 32:
            return "tf32"
        kinds = dict.fromkeys(x.dtype.name for x in (self.nest.left, *self.nest.rights))
        return "s8" if self.dtype.is_integer else "_".join(kinds)

    @staticmethod
    def _moved_as(dtype: DType) -> str:
        return "tf32" if dtype.bits == 32 else dtype.name

    # What is moved

    def _operand(self, operand: TemplateOperand, domain: tuple[Iter, Iter], side: int, part: int) -> Moved:
        """Boxes of 64 elements of memory's rows: ``part`` rows along K, or one of many where they run along M or N."""
        if operand.windows is not None:
            kind = self._moved_as(self.dtype)
            return self.add_windows(operand.windows, part, ROW_BYTES // self.dtype.itemsize, kind)
        load, _ = operand_of(self.nest, operand, side)
        if operand.eight is not None:
            nest = self.nest
            inside = in_tile(operand.eight, (nest.row, nest.column)[side], nest.depth)
            assert isinstance(inside, Load)
            load = inside
        fetch = fetch_of(load, domain)
        if fetch is None or self.k.extent * load.dtype.itemsize != ROW_BYTES:
            raise LoweringError(f"{load.buffer} can't be fetched by TMA")
        along_k = fetch.transposed == (side == 1)
        if self.dtype.bits != 16 and not (along_k and (self.dtype.bits == 8 or self.nest.tf32)):
            raise LoweringError(f"{load.buffer} is not what tensor cores multiply")
        box = (part if along_k else self.k.extent, ROW_BYTES // self.dtype.itemsize)
        if along_k and part % _SWIZZLED_ROWS:
            raise LoweringError(f"boxes of {part} rows of {load.buffer} do not begin where tensor cores read them")
        if not along_k and part % box[1]:
            raise LoweringError(f"a cluster's blocks can't share copies of {part} positions of {load.buffer}")
        coordinates = {domain[side].var: ("row", "column")[side]}
        return self.add_map(load, fetch, box, coordinates, dtype=self._moved_as(load.dtype))

    def _output(self, s: Store) -> Moved | None:
        """How a result of 16 bits leaves through shared memory; None where it is stored from registers."""
        return None if self.pipeline.split > 1 else self._in_boxes(Load(s.target, s.index))

    def _beside(self, outputs: list[Moved | None]) -> tuple[Load, Moved] | None:
        """The first tensor of the result's size that TMA fetches to where the only result is staged; None without."""
        if len(outputs) != 1 or None in outputs:
            return None
        stores = self.stores if self.cut is None else self.cut.rest
        for load in self.pairs_of(map(unrounded, stores)):
            if {self.m.var, self.n.var} <= load.symbols:
                moved = self._in_boxes(load)
                if moved is not None:
                    return load, moved
        return None

    def _in_boxes(self, load: Load) -> Moved | None:
        """A map of 64 by 64 places of 16 bits; None where TMA moves none."""
        fetch = fetch_of(load, (self.m, self.n)) if load.dtype.is_half else None
        if fetch is None or fetch.transposed:
            return None
        box: tuple[int, ...] = (BOX, BOX)
        if self.n.extent % BOX and most(fetch.shape[-1]) > self.n.extent:
            fetch, box = self._with_tiles(fetch), (BOX, 1, BOX)
            if fetch is None:
                return None
        return self.add_map(load, fetch, box, {self.m.var: "row", self.n.var: "column"})

    def _with_tiles(self, fetch: Fetch) -> Fetch | None:
        """With an axis for the column tiles, so that boxes end with their tile; None where tiles are not whole."""
        wide, along, columns = self.n.extent, fetch.coordinates[-1], fetch.shape[-1]
        tile = floordiv(along, wide)
        whole = isinstance(columns, int) and columns % wide == 0 and along == mul(tile, wide)
        if not whole or len(fetch.shape) == MAX_RANK or wide * 2 % 16:
            return None
        return replace(
            fetch,
            shape=(*fetch.shape[:-1], floordiv(columns, wide), wide),
            strides=(*fetch.strides[:-1], wide, 1),
            block=(*fetch.block[:-1], 1, wide),
            coordinates=(*fetch.coordinates[:-1], tile, 0),
        )

    # The plan

    def _constants(self, a: Moved, b: list[Moved], leaving: tuple[int, int], fetches: bool) -> None:
        p, line, nest = self.pipeline, self.writer.line, self.nest

        def flag(name: str, value: bool) -> str:
            return f"{name} = {str(value).lower()}"

        line(f"using Type = fusec::{self._kind};")
        line(
            f"static constexpr int kTileM = {self.m.extent}, kTileN = {self.n.extent}, kStages = {self.kernel.stages};"
        )
        line(f"static constexpr int kClusterM = {p.cluster_m}, kClusterN = {p.cluster_n}, kGroup = {p.group};")
        if p.split > 1:
            line(f"static constexpr int kSplit = {p.split};")
        flags = (
            flag("kPingPong", p.ping_pong),
            flag("kTransposedA", a.fetch.transposed),
            flag("kTransposedB", not b[0].fetch.transposed),
            flag("kGrouped", nest.rows is not None),
        )
        line(f"static constexpr bool {', '.join(flags)};")
        windows = nest.left.windows
        steps = -(-nest.depth.whole.extent // self.k.extent)
        if windows is not None:
            steps = windows.places * self._depth_of(windows) // self.k.extent
        if nest.rows is not None:
            steps = _FEWEST_STEPS
            if not (a.fetch.transposed and not b[0].fetch.transposed and p.split == 1 and self.dtype.bits == 16):
                raise LoweringError("rows of batches along K lie one after another, and are of 16 bits")
        if p.split > max(steps, 1):
            raise LoweringError(f"{steps} steps along K are not split {p.split} times")
        line(f"static constexpr int kDots = {len(b)}, kSteps = {steps}, kStaged = {leaving[0]};")
        line(f"static constexpr int kEights = {leaving[1]};")
        line(f"static constexpr bool {flag('kFetches', fetches)};")
        line(f"static constexpr int kDeferred = {self.cut.words if self.cut else 0}, kPromotes = {p.promotes};")
        batches, rows = self._counts()
        known = (n if isinstance(n, int) else -1 for n in (batches, rows))
        counts = (*known, self.nest.column_tiles.extent)
        line("static constexpr int kBatches = {}, kRowTiles = {}, kColumnTiles = {};".format(*counts))
        line()

    def _counts(self) -> tuple[Index, Index]:
        """Batches and rows of tiles."""
        return self.nest.batch.count, self.nest.row_tiles.count

    def _count_members(self) -> None:
        """Those that the kernel's sizes say."""
        for name, count in zip(("batches", "row_tiles"), self._counts(), strict=True):
            if not isinstance(count, int):
                self.writer.line(f"int {name}() const {{ return {bare(self.index(count))}; }}")

    def _row_members(self) -> None:
        """Where a batch's own rows along K begin and end, and all end."""
        nest = self.nest
        if nest.rows is None:
            return
        index = self.speller(self.symbols)
        for name, value in zip(("first_k", "past_k"), nest.rows, strict=True):
            with self.writer.block(f"int {name}(int batch) const"), self.names.scope():
                read = self.reader({}, index)
                text = Scalars(self.style, self.names, read, index, self.writer.line, [value]).value(value)
                self.writer.line(f"return {bare(text)};")
        self.writer.line(f"int all_k() const {{ return {nest.depth.whole.extent}; }}")

    def _fetches(self, name: str, parameters: str, moved: list[Moved], free: Iter) -> None:
        line = self.writer.line
        line()
        with self.writer.block(f"void {name}(char* to, Barrier& full, u16 blocks, int batch, int {parameters}) const"):
            for number, m in enumerate(moved):
                last = number == len(moved) - 1
                if len(moved) > 1:
                    line(f"if (dot == {number})" if not number else "else" if last else f"else if (dot == {number})")
                where = self.coordinates(m, {self._free_axis(m, free): m.coordinates[free.var]})
                line(f"{'    ' if len(moved) > 1 else ''}fetch_tile(to, {m.name}, full, blocks, {where});")

    def _depth_of(self, windows: Windows) -> int:
        """K of one place in the windows: whole steps, where channels beyond the last read as zeros."""
        return round_up(windows.channels, self.k.extent)

    def _weights(self, moved: Moved, windows: Windows) -> Moved:
        """The right operand's map with the channels of each place apart, so that a step along K ends with them."""
        columns, depth = moved.map.shape[-2:]
        grouped = windows.groups > 1
        known = len(moved.map.shape) in (2, 2 + grouped)
        if moved.map.strides[-2:] != (depth, 1) or depth != windows.places * windows.channels or not known:
            raise LoweringError("weights that are not in the order of windows")
        *whole, rows, row = moved.map.box
        shape = (*moved.map.shape[:-2], columns, windows.places, windows.channels)
        strides = (*moved.map.strides[:-2], depth, windows.channels, 1)
        made = replace(moved.map, shape=shape, strides=strides, box=(*whole, rows, 1, row))
        self.maps[self.maps.index(moved)] = apart = replace(moved, map=made)
        return apart

    def _fetch_weights(self, moved: Moved, windows: Windows) -> None:
        line, depth = self.writer.line, self._depth_of(windows)
        line()
        head = "char* to, Barrier& full, u16 blocks, int batch, int column_tile, int column, int k, int dot"
        with self.writer.block(f"void load_b({head}) const"):
            column = f"column_tile * {self.n.extent} + column"
            if len(moved.map.shape) == 4:
                column += ", batch"
            elif windows.groups > 1:
                column = f"batch * {moved.map.shape[0] // windows.groups} + {column}"
            at = f"k % {depth}, k / {depth}, {column}"
            line(f"fetch_tile(to, {moved.name}, full, blocks, {at});")

    def _fetch_windows(self, moved: Moved, windows: Windows) -> None:
        """The first window's first place, in the image; and which place in the windows, by the step along K."""
        line, axes = self.writer.line, windows.axes
        line()
        head = "char* to, Barrier& full, u16 blocks, int batch, int row_tile, int row, int k"
        with self.writer.block(f"void load_a({head}) const"):
            depth = self._depth_of(windows)
            line(f"int window = row_tile * {self.m.extent} + row, place = k / {depth};")
            for n, axis in reversed(list(enumerate(axes))):
                line(f"int start{n} = window % {axis.count} * {axis.stride} - {axis.low};")
                line(f"u16 place{n} = u16(place % {axis.size} * {axis.dilation});")
                line(f"window /= {axis.count}, place /= {axis.size};")
            back = range(len(axes) - 1, -1, -1)
            at = ", ".join([f"k % {depth}", *(f"start{n}" for n in back), "window"])
            within = ", ".join(f"place{n}" for n in back)
            which = f"{moved.name} + batch" if windows.groups > 1 else moved.name
            line(f"fetch_windows(to, {which}, full, blocks, {at}, {within});")

    def _free_axis(self, moved: Moved, free: Iter) -> int:
        """The axis along M or N: the last where the memory's rows run along it."""
        transposed_b = free is self.n and not moved.fetch.transposed
        return -1 if transposed_b or (free is self.m and moved.fetch.transposed) else -2

    def _send(self, staged: list[Moved]) -> None:
        head = "int output, const void* from, int batch, int row_tile, int column_tile, int row, int column"
        self.writer.line()
        with self.writer.block(f"void send({head}) const"):
            for number, m in enumerate(staged):
                row = -3 if m.map.box[-2] == 1 else -2
                where = self.coordinates(m, {-1: "column", row: "row"})
                self.writer.line(f"if (output == {number}) store_tile({m.name}, from, {where});")

    def _is_eight(self, s: Store) -> bool:
        """Whether a result of 8 bits lies in whole eights of columns, as lanes that exchange their pairs store them."""
        flat = offset_of(s.target, s.index)
        if s.target.dtype.kind != "float8" or self.pipeline.split > 1 or flat is None or self.n.extent % _GROUP:
            return False
        limit = step_of(self.n.limit, self.n.var, 8) if self.n.limit is not None else Step(0, 8)
        step = step_of(flat, self.n.var, 8)
        whole = limit is not None and not limit.along and limit.multiple % 8 == 0
        return whole and step is not None and step.along == 1 and step.multiple % 8 == 0

    def _store_eights(self, eights: list[Store]) -> None:
        line = self.writer.line
        head = "int output, u64 bytes, int batch, int row_tile, int column_tile, int row, int column"
        line()
        with self.writer.block(f"void store_eight({head}) const"):
            if eights:
                self.leave_outside(0)
            for number, s in enumerate(eights):
                flat = offset_of(s.target, s.index)
                assert flat is not None
                where = self.address(self.buffers[s.target], self.index(flat))
                line(f"if (output == {number}) *reinterpret_cast<u64*>({where}) = bytes;")

    def _fetch_beside(self, moved: Moved) -> None:
        head = "char* to, Barrier& full, int batch, int row_tile, int column_tile, int row, int column"
        self.writer.line()
        with self.writer.block(f"void fetch_beside({head}) const"):
            where = self.coordinates(moved, {-1: "column", -3 if moved.map.box[-2] == 1 else -2: "row"})
            self.writer.line(f"load_tile(to, {moved.name}, full, {where});")

    def _prepare(self) -> None:
        self.writer.line()
        with self.writer.block("void prepare() const"):
            for m in self.maps:
                self.writer.line(f"prefetch_map({m.name});")

    # The epilogue

    def _finish(self, outputs: Sequence[Moved | str | None], beside: Load | None) -> None:
        count, cut, line = sum(m is not None for m in outputs), self.cut, self.writer.line
        where = "int batch, int row_tile, int column_tile, int row, int column"
        kind = register_type(self.nest.sums[0].dtype)
        values, staged = f"const {kind} (&values)[{len(self.nest.sums)}][2]", f"u32 (&staged)[{max(count, 1)}]"
        stores = self.stores if cut is None else cut.rest
        made = [unrounded(s) for s in stores]
        line()
        of_column = self.prefetch_pairs("Column", "of_column", made, rows=False, ordered=True)
        fetched = {} if beside is None else {beside: "of_beside.pair"}
        of_point = self.prefetch_pairs("Point", "of_point", made, rows=True, ordered=True, but=fetched)
        where_read = f"{where}, const Column& of_column, const Point& of_point"
        if beside is not None:
            with self.writer.block("struct Beside", "};"):
                line(f"Vec<{memory_type(beside.dtype)}, 2> pair;")
            line()
            where_read += ", const Beside& of_beside"
        known = of_column | of_point | fetched
        if cut is None:
            with self.writer.block(f"void finish({where_read}, {values}, {staged}) const"), self.names.scope():
                self.results(outputs, known=known)
            return
        read_early = [] if cut.whole else deferred_values(cut)
        early = self.prefetch_pairs("Early", "early", read_early, rows=False, ordered=False)
        deferred = f"u32 (&deferred)[{cut.words}]"
        with (
            self.writer.block(f"void defer({where}, const Early& early, {values}, {deferred}) const"),
            self.names.scope(),
        ):
            self.defer(cut, early)
        line()
        with self.writer.block(f"void finish({where_read}, const {deferred}, {staged}) const"), self.names.scope():
            self.results(outputs, cut, known)

    # The whole

    def _blocks(self) -> Index:
        """The fewest, in whole clusters, that are done as early as all that run at once would be: others only take
        power from them."""
        p = self.pipeline
        cluster = p.cluster_m * p.cluster_n
        batches, row_tiles = self._counts()
        rows, columns = ceildiv(row_tiles, p.cluster_m), -(-self.nest.column_tiles.extent // p.cluster_n)
        tiles, together = product((rows, columns, batches)), self.target.sms // cluster
        if p.split > 1:
            return mul(tiles, p.split)
        waves = ceildiv(tiles, together)
        return mul(floordiv(add(tiles, sub(waves, 1)), waves), cluster) if tiles != 0 else 0

    def _shared(self, staged: int) -> int:
        """Bytes, as ``Layout`` in ``gemm.cuh`` counts them."""
        stage = (self.m.extent + len(self.nest.sums) * self.n.extent) * ROW_BYTES
        staging = _CONSUMERS * (2 if staged == 1 else staged) * BOX * ROW_BYTES
        return ALIGNMENT + self.kernel.stages * stage + staging
