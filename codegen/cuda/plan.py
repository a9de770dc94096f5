# SPDX-License-Identifier: Apache-2.0
"""What plans for the header's kernels have in common: tensor maps, and an epilogue on two neighbours at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusec.codegen.cuda.deferred import DeferredEpilogue
from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.scalars import Scalars, Style, bare, stored
from fusec.codegen.cuda.spelling import is_widened, literal, memory_type, register_type
from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol
from fusec.ir.stepping import step_of
from fusec.ir.types import DType
from fusec.tile.fetch import Fetch
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, loads, offset_of
from fusec.tile.templates import Windows

BOX = 64
"""Elements of 16 bits in a swizzled row; rows and columns of the results that leave shared memory together."""
ROW_BYTES = 128
EIGHT = "eight"
"""A result of 8 bits that leaves registers in eight columns of a row at a time."""
ALIGNMENT = 1024
"""Of swizzled boxes, in bytes."""
_EIGHT = 8
"""Neighbours of a row, of 16 bits each, that leave together."""


@dataclass(frozen=True)
class Moved:
    """A tensor map, and the ``coordinates`` of its boxes: what is added along M or N within a tile."""

    name: str
    map: TensorMap
    fetch: Fetch
    coordinates: dict[Symbol, str]


class PlanWriter:
    """Writes ``struct Plan`` of a kernel.

    names: that the header and the plan use themselves. m, n: a tile's rows and columns, ``row`` and ``column`` in C++.
    accumulators: tiles that an epilogue reads, as C++ with a placeholder for 0 or 1: the first or the second of two
    neighbours. pairs: two neighbours may be moved at once, as addresses are multiples of 16 bytes.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: Iterable[str],
        m: Iter,
        n: Iter,
        stores: Sequence[Store],
        accumulators: Mapping[Buffer, str],
        *,
        pairs: bool = True,
    ) -> None:
        self.kernel, self.m, self.n, self.pairs = kernel, m, n, pairs
        self.stores, self.accumulators = stores, accumulators
        self.names = Names([kernel.name, *names])
        self.buffers = {b: self.names.unique(b.name) for b in kernel.parameters}
        self.sizes = {s: self.names.unique(s.name) for s in kernel.sizes}
        self.symbols: dict[Symbol, str] = {m.var: "row", n.var: "column", **self.sizes}
        self.style = Style(kernel)
        self.maps: list[Moved] = []
        self.writer = Writer(1)

    def add_map(
        self, load: Load, fetch: Fetch, box: tuple[int, ...], coordinates: dict[Symbol, str], dtype: str = ""
    ) -> Moved:
        """``box``: the last extents of what is moved at a time, 1 of the others. ``dtype``: what it is read as, if not
        its own."""
        whole = (*(1 for _ in fetch.block[: -len(box)]), *box)
        parameter = self.kernel.parameters.index(load.buffer)
        made = TensorMap(parameter, dtype or load.dtype.name, fetch.shape, fetch.strides, whole)
        known = next((m for m in self.maps if m.map == made and m.fetch == fetch), None)
        if known is not None:
            return known
        moved = Moved(self.names.unique(f"{load.buffer.name}_map"), made, fetch, coordinates)
        self.maps.append(moved)
        return moved

    def add_windows(self, windows: Windows, count: int, channels: int, dtype: str) -> Moved:
        """A map that ``count`` windows are fetched by at a time, so many ``channels`` of one position in each."""
        axes = windows.axes
        shape = (windows.batch, *(a.extent for a in axes), windows.channels)
        strides = (windows.batch_step, *(a.step for a in axes), 1)
        low = tuple(-a.low for a in axes)
        high = tuple((a.count - 1) * a.stride - a.low + 1 - a.extent for a in axes)
        parameter = self.kernel.parameters.index(windows.memory.buffer)
        steps = tuple(a.stride for a in axes)
        box = (count, channels)
        made = TensorMap(parameter, dtype, shape, strides, box, low=low, high=high, steps=steps, count=windows.groups)
        fetch = Fetch(shape, strides, (count, channels), (), False)
        moved = Moved(self.names.unique(f"{windows.memory.buffer.name}_windows"), made, fetch, {})
        self.maps.append(moved)
        return moved

    def coordinates(self, moved: Moved, along: dict[int, str]) -> str:
        """Fastest axis first. ``along``: what is added to the last axis (-1) and the one before (-2)."""
        texts = [self.index(c) for c in moved.fetch.coordinates]
        for axis, offset in along.items():
            texts[axis] = offset if texts[axis] == "0" else f"{bare(texts[axis])} + {offset}"
        return ", ".join(map(bare, reversed(texts)))

    def members(self) -> None:
        outputs = self.kernel.parameters[len(self.kernel.parameters) - self.kernel.outputs :]
        for buffer, name in self.buffers.items():
            const = "" if buffer in outputs else "const "
            self.writer.line(f"{const}{memory_type(buffer.dtype)}* __restrict__ {name};")
        if self.sizes:
            self.writer.line(f"int {', '.join(self.sizes.values())};")
        if self.maps:
            self.writer.line(f"const TensorMap {', '.join(f'*{m.name}' for m in self.maps)};")

    def leave_outside(self, count: int, array: str = "staged") -> None:
        """Nothing is read or stored beyond the limits; what TMA clips there is set."""
        beyond = [
            f"{self.symbols[i.var]} >= {bare(self.index(i.limit))}" for i in (self.m, self.n) if i.limit is not None
        ]
        if beyond:
            for number in range(count):
                self.writer.line(f"{array}[{number}] = 0;")
            self.writer.line(f"if ({' || '.join(beyond)}) return;")

    @property
    def _odd(self) -> bool:
        """Whether the second of two neighbours may lie beyond the last column."""
        limit = self.n.limit
        if limit is None:
            return False
        step = step_of(limit, self.n.var, 2)
        return step is None or step.multiple % 2 != 0

    def pairs_of(self, values: Iterable[ScalarExpr]) -> list[Load]:
        """Loads of two neighbours at once."""
        found: list[Load] = []
        if self._odd or not self.pairs:
            return found
        for load in dict.fromkeys(x for value in values for x in loads(value)):
            flat = offset_of(load.buffer, load.index) if load.buffer.space == "parameter" else None
            step = step_of(flat, self.n.var, 2) if flat is not None else None
            if flat is not None and step is not None and step.along == 1 and step.multiple % 2 == 0:
                found.append(load)
        return found

    def _load_pair(self, load: Load, read: str = "load") -> str:
        flat = offset_of(load.buffer, load.index)
        assert flat is not None
        return f"{read}<2>({self.address(self.buffers[load.buffer], self.index(flat))})"

    def _read_pairs(self, values: Iterable[ScalarExpr], known: Collection[Load] = ()) -> dict[Load, str]:
        """Reads two neighbours at once, but those that are ``known``."""
        found: dict[Load, str] = {}
        for load in self.pairs_of(values):
            if load not in known:
                found[load] = self.names.unique(f"{load.buffer.name}_pair")
                self.writer.line(f"const Vec<{memory_type(load.dtype)}, 2> {found[load]} = {self._load_pair(load)};")
        return found

    def _values(self, lane: int, pairs: dict[Load, str], roots: Sequence[ScalarExpr]) -> list[str]:
        """The values in their types, for the first or the second of two neighbours."""
        last = bare(self.index(self.n.limit)) if self._odd and self.n.limit is not None else ""
        column = f"minimum(column + 1, {last} - 1)" if last else "(column + 1)"
        symbols = {**self.symbols, self.n.var: column} if lane else self.symbols
        accumulators = {b: text.format(lane) for b, text in self.accumulators.items()}

        index = self.speller(symbols)
        read = self.reader(accumulators, index, {load: f"{pair}[{lane}]" for load, pair in pairs.items()})
        scalars = Scalars(self.style, self.names, read, index, self.writer.line, roots)
        return [scalars.value(e) for e in roots]

    def _store_pair(self, s: Store, low: str, high: str) -> None:
        flat = offset_of(s.target, s.index)
        if flat is None:
            raise LoweringError("a result stored at loaded subscripts")
        kind, name = memory_type(s.target.dtype), self.buffers[s.target]
        low, high = (_stored(x, unrounded(s).dtype, s.target.dtype) for x in (low, high))
        step = step_of(flat, self.n.var, 2)
        if self.pairs and not self._odd and step is not None and step.along == 1 and step.multiple % 2 == 0:
            where = self.address(name, self.index(flat))
            self.writer.line(f"store<2>({where}, Vec<{kind}, 2>{{{{{low}, {high}}}}});")
            return
        self.writer.line(f"{name}[{bare(self.index(flat))}] = {low};")
        beside = bare(spell_index(flat, {**self.symbols, self.n.var: "(column + 1)"}))
        guard = f"if (column + 1 < {bare(self.index(self.n.limit))}) " if self._odd and self.n.limit is not None else ""
        self.writer.line(f"{guard}{name}[{beside}] = {high};")

    def address(self, name: str, offset: str) -> str:
        return name if offset == "0" else f"{name} + {offset}"

    def index(self, e: Index) -> str:
        return spell_index(e, self.symbols)

    def speller(self, symbols: Mapping[Symbol, str]) -> Callable[[Index], str]:
        """The text of an index over variables."""
        return lambda e: spell_index(e, symbols)

    def reader(
        self, tiles: Mapping[Buffer, str], index: Callable[[Index], str], known: Mapping[Load, str] | None = None
    ) -> Callable[[Load], str]:
        """The text of a load: of ``tiles`` by buffer, of what has been read, else out of memory."""

        def read(load: Load) -> str:
            if load.buffer in tiles:
                return tiles[load.buffer]
            flat = offset_of(load.buffer, load.index)
            if load.buffer.space != "parameter" or flat is None:
                raise LoweringError(f"{load.buffer} read at loaded subscripts")
            text = (known or {}).get(load) or f"{self.buffers[load.buffer]}[{bare(index(flat))}]"
            return f"float({text})" if is_widened(load.dtype) else text

        return read

    def operand(self, value: ScalarExpr, dtype: DType, index: Callable[[Index], str]) -> None:
        """Returns an element of a matmul's operand, read or computed, as ``dtype``. ``index``: the text of an index."""

        def element(load: Load) -> str:
            if load.buffer.space != "parameter":
                raise LoweringError(f"tile {load.buffer} in a matmul's operand")
            flat = offset_of(load.buffer, load.index)
            where = bare(index(flat)) if flat is not None else scalars.gathered(load)
            return f"{self.buffers[load.buffer]}[{where}]"

        def read(load: Load) -> str:
            return f"float({element(load)})" if is_widened(load.dtype) else element(load)

        with self.names.scope():
            scalars = Scalars(self.style, self.names, read, index, self.writer.line, [value])
            if isinstance(value, Load) and value.dtype is dtype:
                self.writer.line(f"return {element(value)};")
            else:
                self.writer.line(f"return {bare(stored(scalars.value(value), value.dtype, dtype))};")

    def leaves_in_eights(self, s: Store) -> bool:
        """Whether eight neighbours of a row of 16-bit results are 16 bytes at a multiple of that."""
        if not self.pairs or s.target.dtype.bits != 16 or not s.target.dtype.is_float:
            return False
        flat, limit = offset_of(s.target, s.index), self.n.limit
        ends = step_of(limit, self.n.var, _EIGHT) if limit is not None else None
        if flat is None or (limit is not None and (ends is None or ends.multiple % _EIGHT)):
            return False
        step = step_of(flat, self.n.var, _EIGHT)
        return step is not None and step.along == 1 and step.multiple % _EIGHT == 0

    def send_eights(self, stores: Sequence[Store]) -> None:
        """Stores ``eight`` neighbours of the result that has the number ``output``."""
        for number, s in enumerate(stores):
            flat = offset_of(s.target, s.index)
            assert flat is not None
            where = self.address(self.buffers[s.target], self.index(flat))
            self.writer.line(f"if (output == {number}) store(reinterpret_cast<u32*>({where}), eight);")

    def prefetch_pairs(
        self,
        name: str,
        argument: str,
        values: Sequence[ScalarExpr],
        *,
        rows: bool,
        ordered: bool,
        but: Collection[Load] = (),
    ) -> dict[Load, str]:
        """``struct Name`` of two neighbours each of what ``values`` are made from, and ``read_name``.

        rows: of what differs from row to row, else of what does not. ordered: it is read where the code says.
        argument: the record's name where it is used. but: what comes otherwise.
        """
        line, read = self.writer.line, "load_ahead" if ordered else "load"
        found = [x for x in self.pairs_of(values) if self._has_row(x) is rows and x not in but]
        names = {load: self.names.unique(f"{load.buffer.name}_pair") for load in found}
        with self.writer.block(f"struct {name}", "};"):
            for load, member in names.items():
                line(f"Vec<{memory_type(load.dtype)}, 2> {member};")
        line()
        parameters = "int batch, int row_tile, int column_tile, int row, int column"
        parameters = parameters if rows else parameters.replace("int row, ", "")
        with self.writer.block(f"{name} read_{name.lower()}({parameters}) const"):
            if names:
                self.stay_inside((self.m, self.n) if rows else (self.n,))
            line(f"return {{{', '.join(self._load_pair(load, read) for load in names)}}};")
        line()
        return {load: f"{argument}.{member}" for load, member in names.items()}

    def _has_row(self, load: Load) -> bool:
        return self.m.var in load.symbols

    def stay_inside(self, axes: Sequence[Iter]) -> None:
        """Positions beyond the limits become the last ones: what is computed there does not leave."""
        for i in axes:
            if i.limit is not None:
                name, last = self.symbols[i.var], 2 if i is self.n and not self._odd else 1
                self.writer.line(f"{name} = minimum({name}, {bare(self.index(i.limit))} - {last});")

    def defer(self, cut: DeferredEpilogue, early: dict[Load, str]) -> None:
        """Two neighbours of each value that is deferred, packed into ``deferred``, or as two words."""
        if cut.whole:
            for number, slot in enumerate(cut.slots):
                for lane in range(2):
                    bits = f"values[{number}][{lane}]"
                    word = f"apart(__float_as_uint({bits}))" if slot.dtype.is_float else f"apart(u32({bits}))"
                    self.writer.line(f"deferred[{number * 2 + lane}] = {word};")
            return
        self.stay_inside((self.m, self.n))
        values = deferred_values(cut)
        pairs = early | self._read_pairs(values, early)
        low, high = (self._values(lane, pairs, values) for lane in range(2))
        for number, slot in enumerate(cut.slots):
            parts = (bare(_as_float(x[number], values[number], slot)) for x in (low, high))
            self.writer.line(f"deferred[{number}] = {slot.dtype.name}::pack({', '.join(parts)});")

    def results(
        self, staged: Sequence[object], cut: DeferredEpilogue | None = None, known: Mapping[Load, str] | None = None
    ) -> None:
        """Two neighbours of each result: packed into ``staged`` where that is true (those that are :data:`EIGHT` behind
        the others), else stored.

        cut: what the results are computed from, in ``deferred``; else from the accumulators.
        known: what has been read, where what is packed beyond the limits does not leave."""
        if known is not None and all(staged):
            self.stay_inside((self.m, self.n))
        else:
            self.leave_outside(sum(map(bool, staged)))
        known = known or {}
        stores = self.stores if cut is None else cut.rest
        slots = {} if cut is None else {b: f"deferred[{k}]" for k, b in enumerate(cut.slots)}
        held = {b: f"{b.dtype.name}::at({t}, {{}})" for b, t in slots.items()}
        if cut is not None and cut.whole:
            held, slots = {b: _word(b.dtype, 2 * k) for k, b in enumerate(cut.slots)}, {}
        self.accumulators = {**self.accumulators, **held}
        roots = [unrounded(s) for s in stores]
        pairs = {**known, **self._read_pairs(roots, known)}
        found = [self._values(lane, pairs, roots) for lane in range(2)]
        order = sorted((k for k, x in enumerate(staged) if x), key=lambda k: staged[k] == EIGHT)
        for k, (store, is_packed) in enumerate(zip(stores, staged, strict=True)):
            low, high = (bare(_as_float(r[k], roots[k], store.target)) for r in found)
            if not is_packed:
                self._store_pair(store, low, high)
                continue
            packed = f"{store.target.dtype.name}::pack({low}, {high})"
            if isinstance(store.value, Load) and store.value.dtype is store.target.dtype:
                packed = slots.get(store.value.buffer, packed)
            self.writer.line(f"staged[{order.index(k)}] = {packed};")

    def text(self, header: str, body: str, threads: int, cluster: int = 1, together: int = 1) -> str:
        """The whole file, whose kernel calls ``body`` (a function of the plan) of ``header``.

        cluster: blocks in it. ``together``: blocks that are to share an SM.
        """
        outputs = self.kernel.parameters[len(self.kernel.parameters) - self.kernel.outputs :]
        parameters = []
        for buffer, name in self.buffers.items():
            const = "" if buffer in outputs else "const "
            parameters.append(f"{const}{memory_type(buffer.dtype)}* __restrict__ {name}")
        parameters += [f"int {name}" for name in self.sizes.values()]
        parameters += [f"const __grid_constant__ {_map_type(m.map)} {m.name}" for m in self.maps]
        given = [
            *self.buffers.values(),
            *self.sizes.values(),
            *(f"{m.name}.map" if m.map.count > 1 else f"&{m.name}" for m in self.maps),
        ]
        clustered = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
        lines = [
            f'#include "{header}"',
            '#include "scalar.cuh"',
            "using namespace fusec;",
            "",
            "struct Plan {",
            *self.writer.lines,
            "};",
            "",
            f'extern "C" __global__ void {clustered}__launch_bounds__({threads}, {together})',
            f"{self.kernel.name}({', '.join(parameters)}) {{",
            f"    {body}(Plan{{{', '.join(given)}}});",
            "}",
            "",
        ]
        return "\n".join(lines)


def _map_type(made: TensorMap) -> str:
    return f"TensorMaps<{made.count}>" if made.count > 1 else "TensorMap"


def unrounded(s: Store) -> ScalarExpr:
    """What is stored, without the rounding to the target's type that storing does."""
    value = s.value
    is_rounding = isinstance(value, Apply) and value.op == "cast" and value.dtype is s.target.dtype
    if is_rounding and isinstance(value, Apply) and value.args[0].dtype.name == "f32":
        return value.args[0]
    return value


def deferred_values(cut: DeferredEpilogue) -> list[ScalarExpr]:
    """What is deferred, without the rounding to 16 bits that packing does."""
    return [_argument(v) for v in cut.values]


def _argument(value: ScalarExpr) -> ScalarExpr:
    """What a cast rounds: packing does so."""
    inner = value.args[0] if isinstance(value, Apply) else value
    return inner if inner.dtype.name == "f32" else value


def _word(dtype: DType, first: int) -> str:
    """A whole sum that is deferred, with a placeholder for 0 or 1."""
    word = f"deferred[{first} + {{}}]"
    return f"__uint_as_float({word})" if dtype.is_float else f"int({word})"


def _as_float(text: str, value: ScalarExpr, target: Buffer) -> str:
    half = target.dtype.is_half
    return f"float({bare(text)})" if half and not value.dtype.is_float else text


def _stored(value: str, source: DType, target: DType) -> str:
    """A computed value in the type of memory."""
    if is_widened(target):
        return f"{target.name}({bare(value)})"
    if target.name == "bool" and source.name != "bool":
        return f"({value} != {literal(0, source)})"
    return value if register_type(source) == memory_type(target) else f"{memory_type(target)}({bare(value)})"
