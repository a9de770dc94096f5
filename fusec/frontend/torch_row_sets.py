# SPDX-License-Identifier: Apache-2.0
"""Rows chosen by data (``torch.where(index == e)``, ``x[mask]``, ``nonzero``) while torch is traced.

How many rows there are is known to no capture. What stands for them has a row for each *candidate*, each element of
the condition, in order; its mask says which of them the function has. So all shapes are known. A call that takes such
rows has to make each row of its result from the same row of its operands, or to add rows to a tensor where they were
found, and those that the mask leaves out are not added. What it tells of how many there are is refused: so is every
call without a rule below, and a result that is made of such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from fusec.errors import DataDependentError
from fusec.frontend.torch_conditions import Conditions
from fusec.frontend.torch_emit import Emitter
from fusec.frontend.torch_fake import tensors_in
from fusec.frontend.torch_loop_bodies import LoopBody
from fusec.frontend.torch_memory import Handle, Memory
from fusec.frontend.torch_row_rules import COPIES, POINTWISE, RULES, VIEWS, Shape, reshaped
from fusec.ir.nodes import Op, Value

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]
Proceed = Callable[[], Any]


class ChosenRowsError(DataDependentError):
    """The values of a tensor choose rows, and the capture does not follow such."""


class RowsError(DataDependentError):
    """The function does something with rows chosen by data that only those rows tell."""


@dataclass(frozen=True, eq=False)
class RowSet:
    """Candidates of a condition. mask: which of them the function has; shape: the condition's; given: the condition."""

    condition: Value
    mask: torch.Tensor
    shape: tuple[int, ...]
    given: torch.Tensor

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return prod(self.shape)


@dataclass(frozen=True)
class Rows:
    """A tensor has the rows of a set along an axis. coordinate: the axis of the condition whose positions they are."""

    of: RowSet
    axis: int
    coordinate: int | None = None


@dataclass(frozen=True)
class _Read:
    """Rows of a tensor where a set's are: ``whole[index]``, as it was then. result: what has them, and its version."""

    whole: Handle
    version: int
    of: RowSet
    result: tuple[Memory, int]


@dataclass(frozen=True)
class _Sum:
    """A read, and the value of the rows that were added to it; result: as of a read."""

    read: _Read
    added: Value
    result: tuple[Memory, int]


class Entered(Protocol):
    """The rest of a loop's step: see :mod:`fusec.frontend.torch_empty_rows`."""

    @property
    def of(self) -> RowSet: ...

    @property
    def body(self) -> LoopBody: ...

    @property
    def is_entered(self) -> bool: ...


class Tracing(Protocol):
    """What is needed of a trace."""

    emitter: Emitter
    memories: list[Memory]

    def handle(self, tensor: torch.Tensor) -> Handle: ...

    def value(self, tensor: torch.Tensor) -> Value: ...

    def _store(self, target: torch.Tensor, value: Value) -> None: ...

    def made_by(self, value: Value) -> Op | None: ...


class RowSets:
    """The sets of rows of one trace, and the tensors that have a row for each of their candidates."""

    def __init__(self, trace: Tracing) -> None:
        self._trace = trace
        self.conditions = Conditions(trace.made_by)
        self._rows: dict[int, tuple[torch.Tensor, Rows]] = {}
        self._sets: dict[Value, RowSet] = {}
        self._reads: dict[int, _Read] = {}
        self._sums: dict[int, _Sum] = {}
        self._inside = 0
        self._opened = 0
        self._before: frozenset[int] = frozenset()
        self.hits: list[tuple[RowSet, int]] = []
        """The loops over positions of a set that run, and which candidate each is at."""
        self._steps: list[tuple[Entered, frozenset[int]]] = []

    def rows(self, tensor: torch.Tensor) -> Rows | None:
        """What rows a tensor has."""
        found = self._rows.get(id(tensor))
        return found[1] if found is not None else None

    def check_returned(self, tensor: torch.Tensor) -> None:
        """RowsError for a result that has chosen rows."""
        if self.rows(tensor) is not None:
            raise self.refused("they are a result")

    def check_ended(self) -> None:
        """RowsError where a loop over positions was left by an error that the function has handled."""
        self.leave()
        if self.hits:
            raise self.refused("a loop over them is left")

    def enter(self, step: Entered) -> None:
        """The rest of a loop's step runs where a set has rows alone."""
        self.leave()
        self._steps.append((step, frozenset(map(id, self._trace.memories))))

    def leave(self) -> None:
        """Looks at what steps that are left have changed."""
        for step in [s for s, _ in self._steps if not s.is_entered]:
            self._steps = [(s, before) for s, before in self._steps if s is not step]
            step.body.check(self.refused)

    def refused(self, what: str) -> RowsError:
        """The error for what only the chosen rows tell."""
        return RowsError(
            f"{what}: how many rows are chosen depends on the values of a tensor. They may be computed row by row and "
            "added where they were found; elsewhere use torch.where with three operands, or masks",
            self._trace.emitter.location,
        )

    # Calls

    def call(self, func: OpOverload, name: str, args: Arguments, kwargs: Keywords, proceed: Proceed) -> Any:
        """What a call gives: of rows, of a condition, or ``proceed`` where neither is among its operands."""
        if self._inside or func.namespace == "prim":
            return proceed()
        operands = tensors_in((args, list(kwargs.values())))
        made = self._made(name, args, kwargs)
        if made is not None:
            return made
        having = [t for t in operands if id(t) in self._rows]
        if not having:
            self._check_writes(func, name, args)
            return proceed()
        if name in ("index_add_", "index_put_"):
            return self._add(name, args, kwargs)
        of = self._of(having)
        rows = self._rule(func, name, args, kwargs, of)
        if rows is None:
            if func._schema.is_mutable or not func._can_decompose():
                raise self.refused(self._trace.emitter.call)
            self._opened += 1
            try:
                with self._trace:  # type: ignore[attr-defined]
                    return func.decompose(*args, **kwargs)
            finally:
                self._opened -= 1
        if func._schema.is_mutable and (not name.endswith("_") or not self._may_change(args[0])):
            raise self.refused(self._trace.emitter.call)
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(name, args):
            raise self.refused(self._trace.emitter.call)
        plus = self._sum(args) if name in ("add", "add_") and kwargs.get("alpha", 1) == 1 else None
        self._inside += 1
        try:
            result = proceed()
        finally:
            self._inside -= 1
        outs = tensors_in(result)
        for out in outs:
            self._rows[id(out)] = (out, rows)
        if name == "index" and len(args[1]) == 1:
            where = self.rows(args[1][0])
            if where is not None and where.coordinate is not None and len(where.of.shape) == 1:
                self._note_read(args[0], where.of, outs[0])
        if plus is not None:
            self._sums[id(outs[0])] = _Sum(*plus, self._version(outs[0]))
        return result

    def _version(self, tensor: torch.Tensor) -> tuple[Memory, int]:
        memory = self._trace.handle(tensor).memory
        return memory, memory.version

    def _note_read(self, x: torch.Tensor, of: RowSet, result: torch.Tensor) -> None:
        """Remembers that ``result`` has all rows of ``x`` that a set has."""
        handle = self._trace.handle(x)
        self._reads[id(result)] = _Read(handle, handle.memory.version, of, self._version(result))

    def _sum(self, args: Arguments) -> tuple[_Read, Value] | None:
        """The read in a sum of two tensors, and the value that is added to it."""
        for one, other in (args[:2], args[1::-1]):
            read = self._reads.get(id(one))
            if read is None or read.result != self._version(one) or not isinstance(other, torch.Tensor):
                continue
            if self.rows(other) is not None and other.shape == one.shape and other.dtype == one.dtype:
                return read, self._trace.value(other)
        return None

    def _may_change(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has rows and may be written to: positions of a set stay what they are."""
        if (self.hits or self._steps) and not self._is_own(tensor):
            return False
        memory = self._trace.handle(tensor).memory
        places = (t for t, rows in self._rows.values() if rows.coordinate is not None)
        return self.rows(tensor) is not None and all(self._trace.handle(t).memory is not memory for t in places)

    def _of(self, having: Sequence[torch.Tensor]) -> RowSet:
        found = {id(rows.of): rows.of for t in having if (rows := self.rows(t)) is not None}
        if len(found) > 1:
            raise self.refused(f"{self._trace.emitter.call} takes rows of two conditions")
        return next(iter(found.values()))

    def _check_writes(self, func: OpOverload, name: str, args: Arguments) -> None:
        """Within a loop over the positions of a set, which runs for those alone that the set has, no tensor from before
        is written to, and nothing is drawn."""
        writes = func._schema.is_mutable and not (name.endswith("_") and self._is_own(args[0]))
        if (self.hits or self._steps) and (writes or torch.Tag.nondeterministic_seeded in func.tags):
            raise self.refused(f"{self._trace.emitter.call} within a loop over them")

    def _is_own(self, tensor: torch.Tensor) -> bool:
        memory = self._trace.handle(tensor).memory
        before = self._before.union(*(known for _, known in self._steps))
        return memory.source is None and id(memory) not in before

    # Conditions

    def _made(self, name: str, args: Arguments, kwargs: Keywords) -> Any:
        """The rows of a condition; the element of a tensor at positions that are known; None for other calls."""
        if name in ("nonzero", "nonzero_numpy") or (name == "where" and len(args) == 1):
            places = self._positions(self._set(args[0]))
            if name != "nonzero":
                return places if name == "where" else tuple(places)
            return self._joined(places)
        if name == "index" and not any(self.rows(t) for t in tensors_in(args)):
            return self._indexed(*args)
        if name == "index_put_" and len(args[1]) == 1 and args[1][0] is not None and args[1][0].dtype is torch.bool:
            of = self._known_set(args[1][0])
            rows = self.rows(args[2])
            if of is not None and rows is not None and len(of.shape) == 1:
                return self._put(args[0], of, args[2], accumulate=bool([*args, False][3]))
        return None

    def _set(self, condition: torch.Tensor) -> RowSet:
        if self.rows(condition) is not None or not condition.dim() or not condition.numel():
            raise self.refused(self._trace.emitter.call)
        found = self._known_set(condition)
        if found is None:
            value = self._trace.value(condition)
            with self._trace:  # type: ignore[attr-defined]
                truth = condition if condition.dtype is torch.bool else condition != 0
                mask = truth.reshape(-1).clone()  # which stays where the condition is written to
            found = self._sets[value] = RowSet(value, mask, tuple(condition.shape), condition)
        return found

    def _known_set(self, condition: torch.Tensor) -> RowSet | None:
        return self._sets.get(self._trace.value(condition))

    def _positions(self, of: RowSet) -> list[torch.Tensor]:
        """Where the candidates lie, axis by axis."""
        found = []
        with self._trace:  # type: ignore[attr-defined]
            number = torch.arange(of.count, device=of.mask.device)
            for axis, extent in enumerate(of.shape):
                step = prod(of.shape[axis + 1 :])
                place = number // step if step > 1 else number
                found.append(place % extent if axis else place)
        for axis, place in enumerate(found):
            self._rows[id(place)] = (place, Rows(of, 0, axis))
        return found

    def _joined(self, places: list[torch.Tensor]) -> torch.Tensor:
        """What ``nonzero`` gives: a column for each axis."""
        rows = self.rows(places[0])
        assert rows is not None
        self._inside += 1
        try:
            with self._trace:  # type: ignore[attr-defined]
                made = torch.stack(places, 1)
        finally:
            self._inside -= 1
        self._rows[id(made)] = (made, Rows(rows.of, 0, 0 if len(places) == 1 else None))
        return made

    def _indexed(self, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
        """``x[mask]``, and ``x[i]`` with a position that is known, as of a loop over them; None for other indices."""
        (first, *rest), listed = indices, [i for i in indices if i is not None]
        if any(i.dtype in (torch.bool, torch.uint8) for i in listed):
            if first is None or rest or first.dtype is not torch.bool or x.shape[: first.dim()] != first.shape:
                raise self.refused(self._trace.emitter.call)
            of = self._set(first)
            with self._trace:  # type: ignore[attr-defined]
                made = x.clone().reshape(of.count, *x.shape[first.dim() :])
            self._rows[id(made)] = (made, Rows(of, 0))
            self._note_read(x, of, made)
            return made
        if first is None or rest or first.numel() != 1 or first.dim() > 1 or not x.dim():
            return None
        known = self.conditions.known(self._trace.value(first))
        if known is None:
            return None
        with self._trace:  # type: ignore[attr-defined]
            picked = x.select(0, int(known.reshape(())))
            return (picked if first.dim() == 0 else picked.unsqueeze(0)).clone()

    # Loops over positions

    def each(self, shape: Shape, like: torch.Tensor, rows: Rows, body: LoopBody) -> Iterator[torch.Tensor]:
        """The elements of ``nonzero`` of a condition with one axis, candidate by candidate.

        The loop's body runs for candidates that the set has not, too. It may write nothing then but through sets that
        are empty then, and leave nothing behind in Python.
        """
        before = self._before
        self._before = frozenset(map(id, self._trace.memories))
        for candidate in range(rows.of.count):
            self.hits.append((rows.of, candidate))
            with self._trace:  # type: ignore[attr-defined]
                position = torch.full(shape, candidate, dtype=like.dtype, device=like.device)
            yield position
            self.hits.pop()
        self._before = before
        body.check(self.refused)

    def _check_hits(self, of: RowSet) -> None:
        """Refuses a write by rows of a set that may not be empty where a loop that runs has no step."""
        self.leave()
        if any(step.of is not of for step, _ in self._steps):
            raise self.refused(f"{self._trace.emitter.call} in a step that other rows are needed for")
        for hit, candidate in self.hits:
            if not self.conditions.implies(of.condition, hit.condition, candidate):
                raise self.refused(f"{self._trace.emitter.call} in a loop over chosen positions")

    # Sums

    def _add(self, name: str, args: Arguments, kwargs: Keywords) -> torch.Tensor:
        """``x.index_add_(0, where, rows)``, ``x[where] += rows``, ``x.index_put_([where], rows, accumulate=True)``."""
        target = args[0]
        if name == "index_add_":
            dim, index, rows = args[1:4]
            accumulate = kwargs.get("alpha", 1) == 1 and dim % max(target.dim(), 1) == 0
        else:
            listed, rows = args[1:3]
            (index,) = listed if len(listed) == 1 else (None,)
            accumulate = bool([*args, *kwargs.values(), False][3])
        where = self.rows(index) if index is not None else None
        own = self.rows(rows)
        if where is None or own is None or where.of is not own.of or where.coordinate is None or index.dim() != 1:
            raise self.refused(self._trace.emitter.call)
        if name == "index_add_" and not accumulate:
            raise self.refused(self._trace.emitter.call)
        if not accumulate and len(where.of.shape) != 1:
            raise self.refused(f"{self._trace.emitter.call} with positions that may be there twice")
        return self._put(target, where.of, rows, accumulate=accumulate, coordinate=where.coordinate, index=index)

    def _put(
        self,
        target: torch.Tensor,
        of: RowSet,
        rows: torch.Tensor,
        *,
        accumulate: bool,
        coordinate: int = 0,
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Adds rows to a tensor at positions of a set; without ``accumulate`` they are sums of what was there."""
        self._check_hits(of)
        own, value = self.rows(rows), self._trace.value(rows)
        if not accumulate:
            value = self._added(target, of, rows)
        wanted = (of.count, *target.shape[1:])
        fits = target.dim() and target.shape[0] == of.shape[coordinate] and value.type.shape == wanted
        if self.rows(target) is not None or own is None or own.axis or not fits or rows.dtype != target.dtype:
            raise self.refused(self._trace.emitter.call)
        if index is None:
            index = self._positions(of)[0]
        base, where, mask = (self._trace.value(t) for t in (target, index, of.mask))
        self._trace.emitter.results = (base.type,)
        self._trace._store(target, self._trace.emitter.emit("scatter_add_where", base, where, value, mask))
        return target

    def _added(self, target: torch.Tensor, of: RowSet, rows: torch.Tensor) -> Value:
        """What was added to a target's rows, where ``rows`` are those that it has, with something added."""
        found, handle = self._sums.get(id(rows)), self._trace.handle(target)
        if found is None or found.result != self._version(rows) or found.read.of is not of:
            raise self.refused(self._trace.emitter.call)
        read = found.read
        if (read.whole.memory, read.whole.steps, read.version) != (handle.memory, handle.steps, handle.memory.version):
            raise self.refused(self._trace.emitter.call)
        return found.added

    # Rules

    def _rule(self, func: OpOverload, name: str, args: Arguments, kwargs: Keywords, of: RowSet) -> Rows | None:
        """The rows of a call's results; None where no rule covers it."""
        if torch.Tag.pointwise in func.tags or name in POINTWISE:
            return self._pointwise(name, tensors_in((args, list(kwargs.values()))), of)
        rule = RULES.get(name.removesuffix("_"))
        x = args[0]
        if name in ("index", "index_select", "embedding"):
            return self._gathered(name, args, of)
        rows = self.rows(x) if isinstance(x, torch.Tensor) else None
        others = [t for t in tensors_in((args[1:], list(kwargs.values()))) if self.rows(t) is not None]
        if name == "addmm" and self.rows(args[0]) is None and self.rows(args[2]) is None:
            rows = self.rows(args[1])
            fits = args[0].dim() < 2 or args[0].shape[0] == 1
            return Rows(of, 0) if rows is not None and rows.axis == 0 and fits else None
        if rule is None or rows is None or others:
            return None
        axis = rule(tuple(x.shape), rows.axis, *args[1:], **kwargs)
        if rule is reshaped and not self._opened and axis is not None and args[1][axis] != -1:
            raise self.refused(f"{self._trace.emitter.call} says how many rows there are")
        kept = rows.coordinate if name in VIEWS else None
        return Rows(of, axis, kept) if axis is not None else None

    def _pointwise(self, name: str, operands: Sequence[torch.Tensor], of: RowSet) -> Rows | None:
        """All rows at one axis, counted from the last; of other operands there is one row, or a number."""
        places = {rows.axis - t.dim() for t in operands if (rows := self.rows(t)) is not None}
        if len(places) > 1:
            return None
        (place,) = places
        for t in operands:
            if self.rows(t) is None and t.dim() >= -place and t.shape[place] != 1:
                return None
        kept = self.rows(operands[0]) if name in COPIES else None
        rank = max(t.dim() for t in operands)
        return Rows(of, rank + place, kept.coordinate if kept is not None and kept.axis == 0 else None)

    def _gathered(self, name: str, args: Arguments, of: RowSet) -> Rows | None:
        x = args[0]
        if self.rows(x) is not None:
            return None
        if name == "index_select":
            return Rows(of, args[1] % max(x.dim(), 1))
        if name == "embedding":
            return None  # of a row that the set has not, the index may be out of range
        used = [axis for axis, index in enumerate(args[1]) if index is not None]
        for index in (args[1][axis] for axis in used):
            rows = self.rows(index)
            if index.dtype not in (torch.int64, torch.int32) or (rows is None and index.dim()):
                return None
            if rows is not None and (rows.axis or index.dim() != 1 or rows.coordinate is None):
                return None
        together = used == list(range(used[0], used[-1] + 1))
        return Rows(of, used[0] if together else 0)


def _draws_nothing(name: str, args: Arguments) -> bool:
    """Whether a call that may draw random numbers, of which eager draws fewer, draws none."""
    return name == "dropout" and (args[1] == 0 or not args[2])
