# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in NumPy, a whole domain at a time: the oracle for the emitters.

It is stricter than hardware. A subscript outside its buffer raises, scratch starts as NaN (integers: a
pattern) so that a read of undefined data shows in the result, and a parameter's element that two grid points
write, or that one reads and another writes, raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fusec.errors import VerifyError
from fusec.ir.attributes import NO_ATTRIBUTES
from fusec.ir.definition import Array
from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol, symbols_of
from fusec.ir.indexing import round_up
from fusec.ir.monoid import MONOIDS, monoid_of
from fusec.ir.ops import OPS
from fusec.ir.types import DType, f32, fixed
from fusec.tile.kernel import Kernel, Move, subscript_of
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
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, Subscript

UNDEFINED_INTEGER = 0x5A
"""Byte that integer scratch is filled with."""

Points = Mapping[Symbol, Any]
"""The value of each symbol: an integer, or an array over the points of a domain."""


def run(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> None:
    """Runs the kernel on one array for each parameter, in order; outputs are written in place.

    An array has its buffer's shape and dtype; its strides don't matter. ``sizes`` are the kernel's sizes by name.
    VerifyError for a kernel that reads or writes out of bounds, or whose grid points are not independent.
    """
    state = _State()
    known = {symbol: (sizes or {})[symbol.name] for symbol in kernel.sizes}
    for buffer, array in zip(kernel.parameters, arrays, strict=True):
        if array.shape != tuple(_index(n, known) for n in buffer.shape) or array.dtype != buffer.dtype.numpy:
            raise VerifyError(
                f"{kernel.name}: {buffer} is {buffer.dtype}{buffer.shape}, not {array.dtype}{array.shape}"
            )
        state.arrays[buffer] = array
    with np.errstate(all="ignore"):
        for move in kernel.moves:
            state.arrays[move.buffer] = _whole(state.arrays[move.buffer], move, known)
        _Interpreter(kernel, state).block(kernel.body, known)


def _whole(array: Array, move: Move, sizes: Mapping[Symbol, int]) -> Array:
    """The array that an output lies in, from the output's address on."""
    shape = list(array.shape)
    shape[move.axis] = _integer(move.extent, sizes)
    return as_strided(array, shape, array.strides)


class _State:
    """Memory, and who touched it in the running grid."""

    def __init__(self) -> None:
        self.arrays: dict[Buffer, Array] = {}
        self.writers: dict[Buffer, Array] = {}
        self.readers: dict[Buffer, Array] = {}
        self.point = -1
        self.awaited: Buffer | None = None
        """What the statement at hand waits for, and may read of earlier points."""


@dataclass(frozen=True, eq=False)
class _Domain:
    """The points of a domain: one array a symbol, all broadcasting to ``shape``."""

    symbols: Points
    shape: tuple[int, ...]


class _Interpreter:
    def __init__(self, kernel: Kernel, state: _State) -> None:
        self.kernel = kernel
        self.state = state

    def block(self, statements: Block, at: Points) -> None:
        for statement in statements:
            if isinstance(statement, Let):
                at = {**at, statement.var: int(self._value(statement.value, _Domain(at, ())))}
            else:
                self.statement(statement, at)

    def statement(self, statement: Statement, at: Points) -> None:
        match statement:
            case Grid():
                self._grid(statement, at)
            case Loop():
                for i in self._steps(statement, at):
                    self.block(statement.body, {**at, statement.var: i})
            case If():
                chosen = bool(self._value(statement.condition, _Domain(at, ())))
                self.block(statement.body if chosen else statement.orelse, at)
            case Let():
                raise AssertionError("handled by block")
            case Choose():
                source = statement.sources[_integer(statement.index, at)]
                self.state.arrays[statement.buffer] = self.state.arrays[source]
            case Alloc():
                self.state.arrays[statement.buffer] = _undefined(statement.buffer)
            case Map() | Store():
                self._pointwise(statement, at)
            case Reduce():
                self._reduce(statement, at)
            case Scan():
                self._scan(statement, at)
            case SoftmaxExp():
                self._softmax_exp(statement, at)
            case Dot():
                self._dot(statement, at)
            case _:
                assert_never(statement)

    def _steps(self, loop: Loop, at: Points) -> range:
        start, stop = _integer(loop.start, at), _integer(loop.stop, at)
        if loop.within is not None:
            first, past = (int(self._value(x, _Domain(at, ()))) for x in loop.within)
            start, stop = max(start, first), min(stop, past)
        return range(start, stop, loop.step)

    def _grid(self, grid: Grid, at: Points) -> None:
        for buffer in self.kernel.parameters:
            shape = self.state.arrays[buffer].shape
            self.state.writers[buffer] = np.full(shape, -1, np.int64)
            self.state.readers[buffer] = np.full(shape, -1, np.int64)
        for number, indices in enumerate(itertools.product(*(range(it.extent) for it in grid.iters))):
            here = {**at, **{it.var: i for it, i in zip(grid.iters, indices, strict=True)}}
            if all(it.limit is None or here[it.var] < _integer(it.limit, here) for it in grid.iters):
                self.state.point = number
                self.block(grid.body, here)
        self.state.point = -1

    # statements on a domain

    def _pointwise(self, statement: Map | Store, at: Points) -> None:
        domain = _domain(statement.domain, at)
        if 0 in domain.shape:
            return
        value = self._value(statement.value, domain)
        indices = _indices(statement.index, domain.symbols, domain.shape)
        if isinstance(statement, Store):
            indices = self._moved(statement, indices, domain)
            if statement.posts:
                self._write(statement.target, _marks(indices), np.ones((), statement.target.dtype.numpy))
        self._write(statement.target, indices, value)

    def _moved(self, store: Store, indices: tuple[Array, ...], domain: _Domain) -> tuple[Array, ...]:
        found = list(indices)
        for move in self.kernel.moves_of(store.target):
            to = subscript_of(move, store)
            at = _index(to, domain.symbols) if isinstance(to, int | Expr) else self._value(to, domain)
            found[move.axis] = np.broadcast_to(at, domain.shape).astype(np.int64)
        return tuple(found)

    def _reduce(self, statement: Reduce, at: Points) -> None:
        target = statement.target
        used = {s for i in statement.index for s in symbols_of(i)}
        if statement.fresh:
            retained = _domain(_retained_iters(statement, used), at)
            if 0 not in retained.shape:
                indices = _indices(statement.index, retained.symbols, retained.shape)
                self._write(target, indices, np.asarray(MONOIDS[statement.op].identity(target.dtype)))
        domain = _domain(statement.domain, at)
        if 0 in domain.shape:
            return
        accumulated = target.dtype.accumulator.numpy
        if statement.awaits:
            self._await(statement, domain)
        value = np.broadcast_to(self._value(statement.value, domain), domain.shape).astype(accumulated)
        self.state.awaited = None
        axes = _reduced_axes(statement, domain, used)
        ufunc = MONOIDS[statement.op].ufunc
        if axes:
            value = ufunc.reduce(value, axis=axes, keepdims=True)
        indices = _indices(statement.index, domain.symbols, value.shape)
        self._check(target, indices)
        whole = self.state.arrays[target].astype(accumulated)
        if indices:
            ufunc.at(whole, indices, value)
        else:
            whole[...] = ufunc(whole, value)
        self._write(target, indices, whole[indices])

    def _await(self, statement: Reduce, domain: _Domain) -> None:
        """Earlier points have posted what is read, for points are run in order here."""
        assert isinstance(statement.value, Load)
        buffer = self.state.awaited = statement.value.buffer
        index = tuple(_plain(i) for i in statement.value.index)
        if not self.state.arrays[buffer][_marks(_indices(index, domain.symbols, domain.shape))].all():
            raise VerifyError(f"{self.kernel.name}: a grid point waits for what none before it posts to {buffer}")

    def _scan(self, statement: Scan, at: Points) -> None:
        domain = _domain(statement.domain, at)
        if 0 in domain.shape:
            return
        axis = [it.var for it in statement.domain].index(statement.along)
        carry, dtype = statement.carry, statement.carry.dtype.numpy
        before_shape = tuple(1 if a == axis else n for a, n in enumerate(domain.shape))
        before = np.broadcast_to(self._value(carry, domain), before_shape).astype(dtype)
        value = np.broadcast_to(self._value(statement.value, domain), domain.shape).astype(dtype)
        value = np.concatenate([before, np.flip(value, axis) if statement.reverse else value], axis)
        ufunc = monoid_of(statement.op).ufunc
        if statement.factor is None:
            _, found = np.split(ufunc.accumulate(value, axis=axis, dtype=dtype), [1], axis)
        else:
            factor = np.broadcast_to(self._value(statement.factor, domain), domain.shape).astype(dtype)
            factor = np.moveaxis(np.flip(factor, axis) if statement.reverse else factor, axis, 0)
            running = np.moveaxis(value, axis, 0).copy()
            for t, each in enumerate(factor):
                running[t + 1] = ufunc(each * running[t], running[t + 1])
            found = np.moveaxis(running[1:], 0, axis)
        last = np.take(found, [-1], axis)
        found = np.flip(found, axis) if statement.reverse else found
        self._write(statement.target, _indices(statement.index, domain.symbols, domain.shape), found)
        at_carry = tuple(_plain(i) for i in carry.index)
        self._write(carry.buffer, _indices(at_carry, domain.symbols, before_shape), last)

    def _softmax_exp(self, statement: SoftmaxExp, at: Points) -> None:
        """The sum, then the weights, which may overwrite the scores."""
        row_sum, weights = statement.row_sum, statement.weights
        dtype = row_sum.dtype
        less = Apply("sub", (statement.score, statement.shift), dtype)
        exponent = Apply("mul", (less, Const(statement.factor, dtype)), dtype)
        power = Apply("exp2", (exponent,), dtype)
        domain = (statement.keys, statement.queries)
        indices = [tuple(_plain(i) for i in load.index) for load in (row_sum, weights)]
        self._reduce(Reduce(domain, row_sum.buffer, indices[0], "sum", power, fresh=False), at)
        self._pointwise(Map(domain, weights.buffer, indices[1], power), at)

    def _dot(self, dot: Dot, at: Points) -> None:
        for store in dot.beside:
            self._pointwise(store, at)
        m, n, k = (_length(it, at) for it in (dot.m, dot.n, dot.k))
        if m <= 0 or n <= 0:
            return
        rows, columns, depth = (np.arange(max(x, 0)) for x in (m, n, k))
        a = self._value(dot.a, _grid_of(at, {dot.m.var: rows, dot.k.var: depth}))
        b = self._value(dot.b, _grid_of(at, {dot.k.var: depth, dot.n.var: columns}))
        a, b = np.broadcast_to(a, (m, len(depth))), np.broadcast_to(b, (len(depth), n))
        domain = _grid_of(at, {dot.m.var: rows, dot.n.var: columns})
        buffer = dot.accumulator.buffer
        total = np.matmul(a, b, dtype=buffer.dtype.numpy)
        if not dot.fresh:
            total = total + np.broadcast_to(self._value(dot.accumulator, domain), (m, n))
        self._spoil_padding(dot, at, m, n)
        index = [_plain(i) for i in dot.accumulator.index]
        self._write(buffer, _indices(index, domain.symbols, (m, n)), total)

    def _spoil_padding(self, dot: Dot, at: Points, m: int, n: int) -> None:
        """A register block (a GPU's whole block) may leave anything in the tile beyond the last row and column."""
        buffer = dot.accumulator.buffer
        if buffer.space != "tile" or any(symbols_of(_plain(i)) & {dot.k.var} for i in dot.accumulator.index):
            return
        r, c = dot.registers.rows or dot.m.extent, dot.registers.columns or dot.n.extent
        domain = _grid_of(at, {dot.m.var: np.arange(round_up(m, r)), dot.n.var: np.arange(round_up(n, c))})
        shape = domain.shape
        indices = [np.broadcast_to(_index(_plain(i), domain.symbols), shape) for i in dot.accumulator.index]
        outside = (np.arange(shape[0])[:, None] >= m) | (np.arange(shape[1])[None, :] >= n)
        for p, extent in zip(indices, buffer.shape, strict=True):
            outside = outside & (p < extent)
        self.state.arrays[buffer][tuple(p[outside] for p in indices)] = undefined_value(buffer.dtype)

    # scalars

    def _value(self, e: ScalarExpr, domain: _Domain) -> Array:
        return _Evaluation(self, domain).value(e, None)

    def read(self, buffer: Buffer, indices: tuple[Array, ...], active: Array | None) -> Array:
        """Elements of a buffer; a position outside it is an error where it is active."""
        array = self.state.arrays[buffer]
        inside = self._check(buffer, indices, active)
        if inside is not None:
            if 0 in array.shape:
                return np.zeros(np.broadcast_shapes(*(p.shape for p in indices)), buffer.dtype.numpy)
            indices = tuple(np.clip(p, 0, n - 1) for p, n in zip(indices, array.shape, strict=True))
        self._note_read(buffer, indices, inside)
        return np.asarray(array[indices])

    def _check(self, buffer: Buffer, indices: tuple[Array, ...], active: Array | None = None) -> Array | None:
        """Where a position is inside its buffer, None for everywhere. VerifyError where it is not and is active."""
        shape = self.state.arrays[buffer].shape
        if all(not p.size or (p.min() >= 0 and p.max() < n) for p, n in zip(indices, shape, strict=True)):
            return None
        inside = np.asarray(True)
        for p, extent in zip(indices, shape, strict=True):
            inside = inside & (p >= 0) & (p < extent)
        wrong = ~inside if active is None else ~inside & active
        if wrong.any():
            wrong, *indices = np.broadcast_arrays(wrong, *indices)  # type: ignore[assignment]
            where = tuple(int(p[wrong][0]) for p in indices)
            raise VerifyError(f"{self.kernel.name}: subscript {where} is outside {buffer} {list(shape)}")
        return inside

    def _note_read(self, buffer: Buffer, indices: tuple[Array, ...], inside: Array | None) -> None:
        if self.state.point < 0 or buffer not in self.state.writers:
            return
        if inside is not None:
            indices = tuple(p[inside] for p in np.broadcast_arrays(*indices, inside)[:-1])
        writers = self.state.writers[buffer][indices]
        self.state.readers[buffer][indices] = self.state.point
        if buffer is not self.state.awaited and ((writers >= 0) & (writers != self.state.point)).any():
            raise VerifyError(f"{self.kernel.name}: a grid point reads what another wrote to {buffer}")

    def _write(self, buffer: Buffer, indices: tuple[Array, ...], value: Array) -> None:
        self._check(buffer, indices)
        if self.state.point >= 0 and buffer in self.state.writers:
            writers, readers = self.state.writers[buffer], self.state.readers[buffer]
            for others in (writers[indices], readers[indices]):
                if ((others >= 0) & (others != self.state.point)).any():
                    raise VerifyError(f"{self.kernel.name}: two grid points use the same element of {buffer}")
            writers[indices] = self.state.point
        target = self.state.arrays[buffer]
        target[indices] = np.asarray(value).astype(buffer.dtype.numpy) if indices else np.ravel(value)[0]


class _Evaluation:
    """The value of one scalar expression at the points of a domain; equal nodes are computed once."""

    def __init__(self, interpreter: _Interpreter, domain: _Domain) -> None:
        self.interpreter = interpreter
        self.domain = domain
        self._known: dict[tuple[int, int], Array] = {}
        self._alive: list[object] = []

    def value(self, e: ScalarExpr, active: Array | None) -> Array:
        """``active`` tells the points whose value is used (None: all): only there must loads be in bounds."""
        key = (id(e), id(active))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(e, active)
            self._alive += [e, active]
        return found

    def _compute(self, e: ScalarExpr, active: Array | None) -> Array:
        match e:
            case Const():
                return np.asarray(e.value).astype(register_dtype(e.dtype))
            case IndexValue():
                return np.asarray(_index(e.index, self.domain.symbols)).astype(register_dtype(e.dtype))
            case Load():
                indices = tuple(self._subscript(i, active) for i in e.index)
                loaded = self.interpreter.read(e.buffer, indices, active)
                return loaded.astype(register_dtype(e.dtype))
            case Apply(op="cast"):
                rounded = self.value(e.args[0], active).astype(e.dtype.numpy)
                return rounded.astype(register_dtype(e.dtype))
            case Apply(op="select"):
                return self._select(e, active)
            case Apply():
                arrays = [self.value(a, active) for a in e.args]
                return np.asarray(OPS[e.op].reference(arrays, NO_ATTRIBUTES)[0])
            case _:
                assert_never(e)

    def _select(self, e: Apply, active: Array | None) -> Array:
        test = self.value(e.args[0], active)
        yes = test if active is None else test & active
        no = ~test if active is None else ~test & active
        return np.where(test, self.value(e.args[1], yes), self.value(e.args[2], no))

    def _subscript(self, i: Subscript, active: Array | None) -> Array:
        if isinstance(i, int | Expr):
            return np.asarray(_index(i, self.domain.symbols))
        return self.value(i, active).astype(np.int64)


# domains and index arithmetic over arrays


def _length(it: Iter, at: Points) -> int:
    return it.extent if it.limit is None else min(it.extent, _integer(it.limit, at))


def _integer(e: Index, at: Points) -> int:
    return int(_index(e, at))


def _grid_of(at: Points, axes: Mapping[Symbol, Array]) -> _Domain:
    """The product of one array of values for each symbol."""
    shape = tuple(len(values) for values in axes.values())
    rank = len(shape)
    opened = {s: v.reshape((1,) * k + (-1,) + (1,) * (rank - 1 - k)) for k, (s, v) in enumerate(axes.items())}
    return _Domain({**at, **opened}, shape)


def _indices(index: Sequence[Index], at: Points, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Subscripts for each point of a domain, which broadcast to its shape."""
    indices = tuple(np.asarray(_index(i, at)) for i in index)
    if not indices or np.broadcast(*indices).shape == shape:
        return indices
    return tuple(np.broadcast_to(p, shape) for p in indices)


def _marks(indices: tuple[Array, ...]) -> tuple[Array, ...]:
    """Where the marks of posted numbers lie."""
    return (*indices[:-1], indices[-1] + 1)


def _domain(iters: Sequence[Iter], at: Points) -> _Domain:
    own = {it.var for it in iters}
    if not any(it.limit is not None and symbols_of(it.limit) & own for it in iters):
        return _grid_of(at, {it.var: np.arange(max(_length(it, at), 0)) for it in iters})
    points = list(_walk(iters, at))
    columns = np.asarray(points, np.int64).reshape(len(points), len(iters)).T
    return _Domain({**at, **{it.var: column for it, column in zip(iters, columns, strict=True)}}, (len(points),))


def _walk(iters: Sequence[Iter], at: Points) -> Iterator[tuple[int, ...]]:
    """The points of a domain whose limits depend on its own iterators."""
    if not iters:
        yield ()
        return
    first, *rest = iters
    for i in range(_length(first, at)):
        for indices in _walk(rest, {**at, first.var: i}):
            yield (i, *indices)


def _retained_iters(statement: Reduce, used: set[Symbol]) -> tuple[Iter, ...]:
    """The iterators of the target's index; a limit that depends on a reduced one counts as none."""
    retained = [it for it in statement.domain if it.var in used]
    reduced = {it.var for it in statement.domain} - used
    return tuple(
        replace(it, limit=None) if it.limit is not None and symbols_of(it.limit) & reduced else it for it in retained
    )


def _reduced_axes(statement: Reduce, domain: _Domain, used: set[Symbol]) -> tuple[int, ...]:
    """Axes of the domain that the target's index does not use."""
    if len(domain.shape) != len(statement.domain):
        return ()
    return tuple(axis for axis, it in enumerate(statement.domain) if it.var not in used)


def _index(e: Index, at: Points) -> Any:
    match e:
        case int():
            return e
        case Symbol():
            return at[e]
        case Sum():
            return sum((_index(atom, at) * k for atom, k in e.terms), start=e.constant)
        case FloorDiv():
            return _index(e.value, at) // _index(e.divisor, at)
        case Mod():
            return _index(e.value, at) % _index(e.divisor, at)
        case Extremum():
            return (np.maximum if e.largest else np.minimum)(_index(e.a, at), _index(e.b, at))
        case Product():
            result: Any = 1
            for f in e.factors:
                result = result * _index(f, at)
            return result
    raise AssertionError(type(e))


def _plain(i: Subscript) -> Index:
    assert isinstance(i, int | Expr), "a dot's operands are not gathered"
    return i


# types


def register_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that a scalar of this type is computed in: half types, and those of 8 bits, widen to float32."""
    return f32.numpy if dtype.kind == "float8" else dtype.accumulator.numpy


def undefined_value(dtype: DType) -> Any:
    """What scratch of this dtype holds before it is written."""
    if dtype.is_float:
        return dtype.numpy.type(np.nan)
    if dtype.kind == "bool":
        return np.True_
    return np.frombuffer(bytes([UNDEFINED_INTEGER]) * dtype.itemsize, dtype.numpy)[0]


def _undefined(buffer: Buffer) -> Array:
    return np.full(fixed(buffer.shape), undefined_value(buffer.dtype), buffer.dtype.numpy)
