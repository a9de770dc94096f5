# SPDX-License-Identifier: Apache-2.0
"""Tile IR to Triton source: one traversal that prints, a block variable for every tile buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import assert_never

from fusec.codegen.triton.describe import Descriptor
from fusec.codegen.triton.scalars import PASSING, Scalars
from fusec.codegen.triton.spelling import type_name
from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, minimum, mul, product, sub
from fusec.ir.indexing import most
from fusec.ir.monoid import MONOIDS, monoid_of
from fusec.ir.types import DType
from fusec.tile.kernel import Kernel, is_in_range, subscript_of
from fusec.tile.nodes import (
    Alloc,
    Block,
    Choose,
    Dot,
    Grid,
    If,
    Iter,
    Let,
    Loop,
    Map,
    Reduce,
    Scan,
    SoftmaxExp,
    Statement,
    Store,
)
from fusec.tile.scalar import Buffer, Load, ScalarExpr, Subscript, loads

_REDUCE = {
    "sum": "tl.sum({0}, {1})",
    "prod": "tl.reduce({0}, {1}, _product)",
    "max": "tl.max({0}, {1})",
    "min": "tl.min({0}, {1})",
    "any": "tl.max({0}, {1})",
    "all": "tl.min({0}, {1})",
}
_NAN_REDUCE = {"max": "tl.reduce({0}, {1}, _nan_maximum)", "min": "tl.reduce({0}, {1}, _nan_minimum)"}
_COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "any": "tl.maximum({0}, {1})",
    "all": "tl.minimum({0}, {1})",
}
_NAN_COMBINE = {
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
}
_SCAN = {"sum": "_sum", "prod": "_product", "max": "_maximum", "min": "_minimum", "logaddexp": "_logaddexp"}
_NAN_SCAN = {"max": "_nan_maximum", "min": "_nan_minimum"}
_BOOL_COMBINE = {"any": "{0} | {1}", "all": "{0} & {1}"}


LaunchGrid = tuple[Index, Index, Index]

MAX_OUTER = 65535
"""Blocks on the second axis of a launch."""


@dataclass(frozen=True)
class TritonKernel:
    """One kernel's source: ``text`` defines ``name``; ``grid`` is the number of blocks on each launch axis.

    ``sizes`` are parameters after the pointers, integers of 64 bits if ``wide``, else of 32.
    """

    name: str
    text: str
    grid: LaunchGrid
    descriptors: tuple[Descriptor, ...] = ()
    sizes: tuple[Symbol, ...] = ()
    wide: bool = False


def emit_kernel(kernel: Kernel, *, descriptors: bool = False, overlaps: bool = False) -> TritonKernel:
    """The kernel as Triton source, without what is in :data:`header.HEADER`. LoweringError for what Triton can't say.

    With ``descriptors`` blocks of matmuls' operands come through tensor descriptors where their layout allows, which
    are parameters after the pointers; every address must then be a multiple of 16 bytes. With ``overlaps`` the kernel
    may be started before the one ahead of it has ended, for which it waits itself.
    """
    return _Emitter(kernel, descriptors, overlaps).emit()


class _Emitter(Scalars):
    def __init__(self, kernel: Kernel, describes: bool, overlaps: bool) -> None:
        super().__init__(kernel, describes)
        self.overlaps = overlaps
        self.products: set[Buffer] = set()
        """Tiles that matmuls of the block at hand make, and what is computed of them."""

    def emit(self) -> TritonKernel:
        (grid,) = self.kernel.body
        if not isinstance(grid, Grid):
            raise LoweringError(f"{self.kernel.name} does not start with a grid")
        for buffer in self.kernel.parameters:
            self.names[buffer] = self.unique(f"{buffer.name}_ptr")
        for size in self.kernel.sizes:
            self.symbols[size] = self.unique(size.name)
        if self.overlaps:
            self.line("_begin()")
        sizes = self._grid(grid)
        if self.kernel.traits.prefetch:
            self._prefetch(grid.body)
        self._together(grid.body)
        self.block(grid.body)
        extents = self.kernel.sizes
        names = [self.names[b] for b in self.kernel.parameters]
        names += [*(self.symbols[s] for s in extents), *self.descriptors.values()]
        head = f"@triton.jit\ndef {self.kernel.name}({', '.join(names)}):"
        text = "\n".join([head, *self.lines]) + "\n"
        return TritonKernel(self.kernel.name, text, sizes, tuple(self.descriptors), extents, self.wide)

    def _prefetch(self, block: Block) -> None:
        """Starts the loads of a block before its first reduction, whose barrier none of them would cross.

        What every block reads for its stores alone (weights along a row) is in cache, and would only take registers.
        """
        for s in block:
            if not isinstance(s, Map | Store | Reduce | Scan):
                continue
            self.domain = s.domain
            if isinstance(s, Reduce) and s.awaits:
                continue
            for load in (x for value in (s.values if isinstance(s, Scan) else (s.value,)) for x in loads(value)):
                plain = load.buffer.space == "parameter" and not load.gathers
                if plain and (self._is_own(load) or not isinstance(s, Store)):
                    self._read(load)

    def _grid(self, grid: Grid) -> LaunchGrid:
        """The last iterator on the fastest axis; the others together on the second, or, if too many, behind it.

        A symbolic extent is launched as it is at the call.
        """
        iters = grid.iters
        self.outer = {i.var for i in iters}
        for i in iters:
            if i.extent == 1:
                self.symbols[i.var] = "0"
        live = [i for i in iters if i.extent != 1]
        count = {i.var: i.extent if i.limit is None else i.limit for i in live}
        if self.kernel.traits.first_fastest:
            live = live[::-1]
        wide = ".to(tl.int64)" if self.wide else ""
        if not live:
            return (1 if all(i.extent for i in iters) else 0, 1, 1)
        fast, rest = live[-1], live[:-1]
        self.symbols[fast.var] = self.unique(fast.var.name)
        outer = product(count[i.var] for i in rest)
        flat = most(outer) > MAX_OUTER
        width = self.index(count[fast.var])
        if flat:
            self.line(f"block = tl.program_id(0){wide}")
            self.line(f"{self.symbols[fast.var]} = block % {width}")
        else:
            self.line(f"{self.symbols[fast.var]} = tl.program_id(0){wide}")
        if rest:
            other = self.unique("outer")
            self.line(f"{other} = block // {width}" if flat else f"{other} = tl.program_id(1){wide}")
            step: Index = 1
            for i in reversed(rest):
                name = self.symbols[i.var] = self.unique(i.var.name)
                quotient = other if step == 1 else f"({other} // {self.index(step)})"
                last = i is rest[0]
                self.line(f"{name} = {quotient}" if last else f"{name} = {quotient} % {self.index(count[i.var])}")
                step = mul(step, count[i.var])
        return (mul(count[fast.var], outer), 1, 1) if flat else (count[fast.var], outer, 1)

    def block(self, block: Block) -> None:
        for statement in block:
            self.statement(statement)

    def _together(self, body: Block) -> None:
        """Computes the values of several positions of one array, where the kernel does no more, operand by operand of
        all of them.

        One after the other would hold all that they share in registers at a time.
        """
        stores = [s for s in body if isinstance(s, Store)]
        if len(stores) == len(body) > 1 and len({(s.target, s.domain) for s in stores}) == 1:
            self.domain, self.shares = stores[0].domain, True
            self.together([s.value for s in stores])

    def statement(self, statement: Statement) -> None:
        match statement:
            case Alloc():
                self.names[statement.buffer] = self.unique(statement.buffer.name)
            case Map():
                self._map(statement)
            case Store():
                self._store(statement)
            case Reduce():
                self._reduce(statement)
            case Scan():
                self._scan(statement)
            case Dot():
                self._dot(statement)
            case Loop():
                self._loop(statement)
            case Let():
                self.symbols[statement.var] = self.unique(statement.var.name)
                self.line(f"{self.symbols[statement.var]} = {self.names[statement.value.buffer]}")
            case Choose():
                self._choose(statement)
            case If():
                raise LoweringError("branches inside a block")
            case SoftmaxExp():
                raise LoweringError("weights and their sums in one statement")
            case Grid():
                raise LoweringError("a grid inside a grid")
            case _:
                assert_never(statement)

    def _choose(self, choose: Choose) -> None:
        """Addresses are numbers of the block, of which comparisons with the index leave one."""
        name = self.names[choose.buffer] = self.unique(f"{choose.buffer.name}_ptr")
        self.domain = ()
        first, *others = (self.names[b] for b in choose.sources)
        self.line(f"{name} = {first}")
        if others:
            index = self.once(self.index(choose.index), "chosen")
            for number, other in enumerate(others, 1):
                self.line(f"{name} = tl.where({index} == {number}, {other}, {name})")

    def _loop(self, loop: Loop) -> None:
        name = self.symbols[loop.var] = self.unique(loop.var.name)
        for changed in _changed(loop.body):
            if changed in self.names:
                self._forget(self.names[changed])
        self.domain = ()
        start, stop = self.index(loop.start), self.index(loop.stop)
        if loop.within is not None:
            first, past = (self.names[x.buffer] for x in loop.within)
            start, stop = f"tl.maximum({start}, {first})", f"tl.minimum({stop}, {past})"
        inner = [s for s in loop.body if isinstance(s, Loop)]
        # A walk over tiles is flattened, so that the next tile's loads run under a tile's stores; of two matmuls side
        # by side Triton then no longer pipelines the loads.
        flat = any(sum(isinstance(s, Dot) for s in x.body) == 1 for x in inner)
        flat = flat and not any(isinstance(s, Let) for s in loop.body)
        spelled = "tl.range" if flat else "range"
        options = ", flatten=True" if flat else ""
        if self.kernel.traits.pipelined and self.kernel.stages > 1:
            spelled, options = "tl.range", f"{options}, num_stages={self.kernel.stages}"
        self.line(f"for {name} in {spelled}({start}, {stop}, {loop.step}{options}):")
        outside, self.products = self.products, set()
        with self.indented():
            if self.kernel.traits.prefetch:
                self.passing = all(isinstance(s, Store) for s in loop.body)
                self._prefetch(loop.body)
            self.block(loop.body)
            self.passing = False
        self.products = outside

    def _map(self, s: Map) -> None:
        self.domain = s.domain
        if tuple(s.index) != tuple(i.var for i in s.domain):
            raise LoweringError("a tile written at other subscripts than its domain's")
        name = self.names[s.target]
        shape = ", ".join(str(i.extent) for i in s.domain)
        dtype = type_name(s.target.dtype)
        copied = isinstance(s.value, Load) and s.value.buffer.space == "parameter" and s.value.dtype is s.target.dtype
        self.spreads = self._meets_product(s.value)
        if self.spreads:
            self.products.add(s.target)
        self.fetches = self.kernel.traits.tma_tiles and len(s.domain) == 2
        text = self._read(s.value) if isinstance(s.value, Load) and copied else self.scalar(s.value)
        if self._is_number(s.value):
            self.line(f"{name} = tl.full([{shape}], {text}, {dtype})")
        elif not s.domain:
            self.line(f"{name} = ({text}).to({dtype})")
        elif copied:
            self.line(f"{name} = tl.broadcast_to({text}, [{shape}])")
        else:
            self.line(f"{name} = tl.broadcast_to({text}, [{shape}]).to({dtype})")
        self.fetches = self.spreads = False
        self._forget(name)

    def _meets_product(self, value: ScalarExpr) -> bool:
        """Whether a value is computed of a tile that a matmul of this block made."""
        return any(load.buffer in self.products for load in loads(value))

    def _store(self, s: Store) -> None:
        self.domain = s.domain
        value = self.eight_bits(s.value, s.target.dtype) if s.target.dtype.kind == "float8" else self.scalar(s.value)
        if s.target.dtype.name == "bool":
            value = f"({value} != 0)"
        shape = ", ".join(str(i.extent) for i in s.domain)
        dtype = type_name(s.target.dtype)
        if self._is_number(s.value):
            value = f"tl.full([{shape}], {value}, {dtype})"
        else:
            value = f"tl.broadcast_to({value}, [{shape}]).to({dtype})"
        moves = self.kernel.moves_of(s.target)
        if not moves and self._put(s, value):
            return
        index: list[Subscript] = list(s.index)
        conditions = []
        for move in moves:
            to = index[move.axis] = subscript_of(move, s)
            if not is_in_range(move, to):
                text = self.index(to) if isinstance(to, int | Expr) else self.once(self.scalar(to), "to")
                conditions.append(f"({text} >= 0) & ({text} < {self.index(move.extent)})")
        where = self.pointer(s.target, index)
        conditions += [live] if (live := self.mask()) else []
        if s.posts:
            self.line(f"_post(tl.broadcast_to({where}, [{shape}]), {value}, {self._live(shape)})")
            return
        mask = " & ".join(f"({c})" for c in conditions) if len(conditions) > 1 else "".join(conditions)
        tail = f", mask={mask}" if mask else ""
        tail += PASSING if self.passing else ""
        self.line(f"tl.store(tl.broadcast_to({where}, [{shape}]), {value}{tail})")

    def _reduce(self, s: Reduce) -> None:
        self.domain = s.domain
        remaining = [i.var for i in s.domain if i.var in s.index]
        if tuple(remaining) != tuple(s.index):
            raise LoweringError("a reduction whose result is laid out in another order than its domain")
        lanes = len(remaining) == len(s.domain)
        self.spreads = self._meets_product(s.value)
        shape = ", ".join(str(i.extent) for i in s.domain)
        value = self._awaited(s.value, shape) if s.awaits and isinstance(s.value, Load) else self.scalar(s.value)
        self.spreads = False
        wide = "tl.int32" if s.target.dtype.name == "bool" and not lanes else type_name(s.target.dtype)
        text = f"tl.broadcast_to({value}, [{shape}]).to({wide})"
        mask = self.mask(tuple(i for i in s.domain if lanes or i.var not in s.index))
        if mask:
            text = f"tl.where({mask}, {text}, {_constant(MONOIDS[s.op].identity(s.target.dtype))})"
        propagates = s.op in _NAN_REDUCE and s.target.dtype.is_float and self.kernel.traits.nan_maximum
        spelling = _NAN_REDUCE[s.op] if propagates else _REDUCE[s.op]
        for axis in reversed(range(len(s.domain))):
            if s.domain[axis].var not in s.index:
                text = spelling.format(text, axis)
        name = self.names[s.target]
        if not s.fresh:
            table = _NAN_COMBINE if propagates else _BOOL_COMBINE if s.target.dtype.name == "bool" else _COMBINE
            text = table[s.op].format(name, text)
        self.line(f"{name} = {text}")
        self._forget(name)

    def _awaited(self, load: Load, shape: str) -> str:
        """What blocks before this one post."""
        bits = f"_await(tl.broadcast_to({self.pointer(load.buffer, load.index)}, [{shape}]), {self._live(shape)})"
        return self.once(
            bits if load.dtype.is_integer else f"{bits}.to({type_name(load.dtype)}, bitcast=True)", "before"
        )

    def _live(self, shape: str) -> str:
        """The points of the domain within its limits, as a block of this shape."""
        live = self.mask()
        return f"tl.broadcast_to({live}, [{shape}])" if live else f"tl.full([{shape}], True, tl.int1)"

    def _scan(self, s: Scan) -> None:
        self.domain = s.domain
        if tuple(s.index) != tuple(i.var for i in s.domain):
            raise LoweringError("a scan whose result is laid out in another order than its domain")
        dtype, axis = s.carry.dtype, [i.var for i in s.domain].index(s.along)
        shape = ", ".join(str(i.extent) for i in s.domain)
        text = f"tl.broadcast_to({self.scalar(s.value)}, [{shape}]).to({type_name(dtype)})"
        if mask := self.mask():
            text = f"tl.where({mask}, {text}, {_constant(monoid_of(s.op).identity(dtype))})"
        value = self.once(text, "scanned")
        function = _NAN_SCAN[s.op] if s.op in _NAN_SCAN and dtype.is_float else _SCAN[s.op]
        carry, before, running = self.names[s.carry.buffer], self._tile(s.carry), self.unique("running")
        if s.factor is not None:
            if s.domain[axis].extent != 1:
                raise LoweringError("a block takes one position of a recurrence at a time")
            factor = self.once(f"tl.broadcast_to({self.scalar(s.factor)}, [{shape}]).to({type_name(dtype)})", "factor")
            self.line(f"{running} = {factor} * {before} + {value}")
        elif s.op == "logaddexp":
            begin = sub(minimum(s.domain[axis].extent, s.domain[axis].count), 1) if s.reverse else 0
            first = f"{self.axis(s.along)} == {self.index(begin)}"
            self.line(f"{running} = _log_sums({value}, {before}, {first}, {axis}, {s.reverse})")
        else:
            scan = f"tl.associative_scan({value}, {axis}, {function}, reverse={s.reverse})"
            self.line(f"{running} = {function}({before}, {scan})")
        name, along = self.names[s.target], s.domain[axis]
        self.line(f"{name} = {running}.to({type_name(s.target.dtype)})")
        # The last of them: a sum that a loop adds to its carry would be one of Triton's reductions across iterations.
        last = f"{self.axis(along.var)} == {0 if s.reverse else along.extent - 1}"
        self.line(f"{carry} = tl.sum(tl.where({last}, {running}, 0), {axis}).to({type_name(dtype)})")
        self._forget(name)
        self._forget(carry)

    def _dot(self, s: Dot) -> None:
        half = [x.dtype for x in (s.a, s.b) if x.dtype.is_half]
        exact = not half and not s.tf32
        a = self._operand(s.a, (s.m, s.k), half, exact)
        b = self._operand(s.b, (s.k, s.n), half, exact)
        name = self.names[s.accumulator.buffer]
        self.products.add(s.accumulator.buffer)
        kind = '"tf32"' if not exact else "_F32" if self.kernel.traits.splits else '"ieee"'
        precision = "" if half else f", input_precision={kind}"
        if not half and not exact:
            a, b = f"_tf32({a})", f"_tf32({b})"
        if s.fresh:
            self.line(f"{name} = tl.dot({a}, {b}{precision})")
        else:
            self.line(f"{name} = tl.dot({a}, {b}, {name}{precision})")
        self._forget(name)

    def _operand(self, load: Load, domain: tuple[Iter, Iter], half: list[DType], exact: bool) -> str:
        """A block of a matmul. One of SIMT f32 arithmetic is read through pointers, as threads share it out."""
        self.domain = domain
        if load.buffer.space == "tile":
            name = self.names[load.buffer]
            if tuple(load.index) == tuple(i.var for i in reversed(domain)):
                name = f"tl.trans({name})"
            elif tuple(load.index) != tuple(i.var for i in domain):
                raise LoweringError("a matmul of a tile at other subscripts than its own")
            text = name
        else:
            text = (None if exact else self._fetch(load, domain)) or self._read(load, whole=True)
        if half and load.dtype is not half[0]:
            text = f"{text}.to({type_name(half[0])})"
        return text

    def _put(self, s: Store, value: str) -> bool:
        """Stores a matmul's block through a tensor descriptor; False where it can't be."""
        if not self.kernel.traits.tma_stores or len(s.domain) != 2:
            return False
        found = self._describe(Load(s.target, s.index), (s.domain[0], s.domain[1]))
        if found is None or found[2].transposed:
            return False
        name, where, fetch = found
        if len(fetch.block) > 2:
            value = f"tl.reshape({value}, [{', '.join(map(str, fetch.block))}])"
        self.line(f"{name}.store([{where}], {value})")
        return True


def _changed(block: Block) -> Iterator[Buffer]:
    """The tiles that a block gives new values."""
    for s in block:
        match s:
            case Map() | Reduce():
                yield s.target
            case Scan():
                yield s.target
                yield s.carry.buffer
            case Dot():
                yield s.accumulator.buffer
            case Loop():
                yield from _changed(s.body)


def _constant(value: bool | int | float) -> str:
    """A constant as Python spells it; an infinity is a call."""
    if isinstance(value, bool | int):
        return str(value)
    return f"float('{value}')" if isinf(value) else f"{value:g}"
