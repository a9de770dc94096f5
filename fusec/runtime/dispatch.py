# SPDX-License-Identifier: Apache-2.0
"""``fusec.jit``'s machinery: from a call to the plan made for calls like it, and to a new plan where there is none."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from fusec.config import logger, verifies
from fusec.errors import FusecError
from fusec.frontend.capture import AsWritten, Capture, Library
from fusec.frontend.counters import Counting, IntegerAttribute
from fusec.frontend.results import HoldsArraysError
from fusec.frontend.state_errors import StateChangedError
from fusec.frontend.structures import CallSpec, flatten
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.captures import is_capturing
from fusec.runtime.entry import MISS, Entry
from fusec.runtime.frequent import MOST, OFTEN, Repeated
from fusec.runtime.libraries import library_of
from fusec.runtime.library import ResultsDifferError
from fusec.runtime.plan import Compile, Plan, PlanOptions, Signature
from fusec.runtime.planner import OpenedError, Planner, is_on_cpu
from fusec.runtime.refusals import Kind, Refusals, WrittenEntries, kind_of
from fusec.runtime.signatures import unfit, what_differs
from fusec.runtime.telling import Cause

RECOMPILE_LIMIT = 64
"""Plans that one function may have; further signatures run as written."""

_RECENT = 4

MOST_ALONE = 4
"""Values of integer attributes that a function is compiled for one by one until, with no range, it runs as written."""

GROWING = "its arguments hold what an earlier call left there; further calls like it are compiled"
"""Why the first of such calls runs as written."""

COUNTING = "objects among its arguments count: an integer in them was another at each call"
"""Why calls run as written for each of which a program would be made."""

REPEATED = (
    f"it was compiled for {MOST} sets of extents, and for no range of them; further ones are compiled after "
    f"{OFTEN - 1} calls (dynamic=True asks for ranges, dynamic=False for a program each)"
)
"""Why the first calls of such extents run as written."""

log = logger("recompile")


def _no_entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return MISS


class Dispatcher(Planner):
    """The plans of one function. Safe to call from many threads."""

    def __init__(self, function: Callable[..., Any], compile: Compile, **options: Unpack[PlanOptions]) -> None:
        super().__init__(function, compile, **options)
        self._open: tuple[Plan, ...] = ()
        self._lock = threading.RLock()
        self._recent: tuple[Plan, ...] = ()
        self.entry: Entry = _no_entry
        """The latest plan's."""
        self._others: tuple[Entry, ...] = ()
        self._plans: dict[Signature, list[Plan]] = {}
        self._keys: list[Signature] = []
        self._count = 0
        self._refusals = Refusals()
        self._without_backward = Refusals()
        self._repeated = Repeated()
        self._written = WrittenEntries()
        self._counting: _Counting | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_capturing():  # an outer function is being captured: become part of it
            return self.function(*args, **kwargs)
        result = self.entry(args, kwargs)
        return result if result is not MISS else self.after(args, kwargs)

    def after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the latest plan is not for."""
        for entry in self._others:
            result = entry(args, kwargs)
            if result is not MISS:
                return result
        return self._slow(args, kwargs)

    @property
    def plans(self) -> list[Plan]:
        """All plans, in the order in which they were made within each signature."""
        return self.own_plans if self._counting is None else [*self.own_plans, *self._counting.plans]

    @property
    def own_plans(self) -> list[Plan]:
        """Without those of programs that count."""
        return [*(plan for plans in self._plans.values() for plan in plans), *self._open]

    @property
    def counting(self) -> _Counting | None:
        """What calls are taken over by where the function counts in attributes of objects."""
        return self._counting

    # Finding a plan

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(args)  # the first call of a plan may run twice
        if self._counting is not None:
            result = self._counting.counted(args, kwargs)
            if result is not MISS:
                self.entry, self._others = self._counting.counted, tuple(plan.entry for plan in self._recent)
                return result
        call = self.read(args, kwargs)
        if isinstance(call, AsWritten):
            return self._as_written(call.reason, args, kwargs, "part" if call.is_part else "known")
        arrays, leaves, spec, key = call
        for plan in (*self._plans.get(key, ()), *self._open):
            result = plan.entry(args, kwargs)
            if result is not MISS:
                self._promote(plan)
                return result
        return self._new(key, arrays, leaves, spec, args, kwargs)

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Arrays, list[Any], CallSpec, Signature] | AsWritten:
        """A call's arrays, its structure and its signature; or why it runs as written and can't have one."""
        library = library_of(self.function, args, kwargs)
        if library is None:
            return AsWritten("no array of a known library is among its arguments")
        arrays = load_arrays(library)
        mode = arrays.why_as_written()
        if mode is not None:
            return mode
        if library == "torch":
            self._objects.note((*args, *kwargs.values()), arrays.is_array)
        leaves, spec = flatten(args, kwargs, arrays.is_array, self._objects.opens)
        reason = unfit(spec, library)
        if reason:
            return AsWritten(reason)
        try:
            layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        except (TypeError, KeyError) as error:
            return AsWritten(f"an argument can't be compiled: {error}")
        return arrays, leaves, spec, (library, spec, layouts, arrays.mode())

    def _new(
        self,
        key: Signature,
        arrays: Arrays,
        leaves: list[Any],
        spec: CallSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        failure: float | None = None
        with self._lock:
            known = tuple(self._plans.get(key, ()))
            kind = kind_of(arrays.library, spec, tuple(arrays.layout(leaf) for leaf in leaves), arrays.mode())
            if self._makes_no_plan(kind) and self.leave_to_range(arrays, leaves):
                return self._slow(args, kwargs)
            result = self._without_plan(known, kind, args, kwargs)
            if result is not MISS:
                return result
            if self.fallback == "eager":  # else whatever stands against it first is raised
                self.require(arrays, leaves)
            self._log_recompile(key, known)
            start = time.monotonic()
            opened = None
            if not self._refusals.has_failed(kind):
                opened = self.make_open(arrays, leaves, spec) or self.make_open_integers(arrays, leaves, spec)
            if opened is not None:
                plan = replace(opened, signature=key)
                self._open = (plan, *self._open)
            elif self.counts_in_objects(arrays, leaves, spec):
                self._refusals.failed(kind, COUNTING, time.monotonic() - start)
                return self._as_written(COUNTING, args, kwargs, "settling")
            elif self.is_passing(arrays, leaves, spec):
                return self._as_written(GROWING, args, kwargs, "settling")
            elif not known and self._waits(kind, key):
                return self._as_written(REPEATED, args, kwargs)
            else:
                try:
                    plan = replace(self.make(arrays, leaves, spec, args, kwargs), signature=key)
                except StateChangedError as error:
                    if is_on_cpu(arrays, leaves) and self._counts(error.counters):
                        return self.entry(args, kwargs)
                    if self.fallback == "error":
                        raise
                    self._refusals.failed(kind, f"{error}", time.monotonic() - start, may_settle=True)
                    return self._as_written(f"{error}", args, kwargs, "settling")
                except OpenedError:
                    return self._slow(args, kwargs)
                if not plan.is_compiled and self.leave_to_range(arrays, leaves):
                    return self._slow(args, kwargs)
                if plan.is_compiled:
                    self._refusals.succeeded(kind)
                    if not known:
                        self._repeated.made(kind)
                if plan.capture is None and plan.branches is None:
                    failure = time.monotonic() - start
                elif not plan.is_compiled:
                    self._without_backward.failed(kind, plan.reason, time.monotonic() - start)
                self._plans.setdefault(key, []).append(plan)
            self._count += 1
            self._keys.append(key)
            self._promote(plan)
        result = self._first_call(plan, key, arrays, leaves, spec, args, kwargs)
        if failure is not None:  # and it is no mistake of the call's, at which the function itself has raised
            self._refusals.failed(kind, plan.reason, failure, in_code=plan.in_code)
        if result is MISS:
            return self._as_written("what it reads changes while it runs", args, kwargs)
        return result

    def _first_call(
        self,
        plan: Plan,
        key: Signature,
        arrays: Arrays,
        leaves: list[Any],
        spec: CallSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a new plan gives; what the function gives as written where the plan's results turn out to differ.

        A program that raises where the function does not would do so at each call: it is run once.
        """
        self._mistake.error = None
        try:
            result = plan.entry(args, kwargs)
            mistake = self._mistake.error
            if mistake is not None:
                cause: Cause = "known" if isinstance(mistake, ResultsDifferError) else "fault"
                instead = self._declined_plan(arrays, spec, leaves, mistake, cause)
                self._disproved(plan, key, replace(instead, signature=key))
            return result
        except ResultsDifferError as error:
            if self.fallback == "error" or verifies() or _changes_inputs(plan):
                raise
            instead = replace(self._declined_plan(arrays, spec, leaves, error, "known"), signature=key)
            return self._disproved(plan, key, instead).entry(args, kwargs)

    def _makes_no_plan(self, kind: Kind) -> bool:
        """Whether a call of a kind that has no plan runs as written."""
        return self._count >= RECOMPILE_LIMIT or self._refusals.reason(kind) != ""

    def _waits(self, kind: Kind, key: Signature) -> bool:
        """Whether a program for calls like this is made when more of them have come."""
        if self._open or self.fallback == "error" or self.general is None or self.general.extents == "fixed":
            return False
        return self._repeated.waits(kind, key)

    def _without_plan(self, known: Sequence[Plan], kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call for which no plan is made; MISS for one that is to have a plan."""
        for plan in known:  # another thread may have made it meanwhile
            result = plan.entry(args, kwargs)
            if result is not MISS:
                return result
        if self._count >= RECOMPILE_LIMIT:
            return self._too_many(args, kwargs)
        reason = self._refusals.reason(kind)
        if reason:
            return self._refused(reason, args, kwargs)
        reason = self._without_backward.reason(kind)
        return self._as_written(reason, args, kwargs) if reason else MISS

    def _disproved(self, plan: Plan, key: Signature, instead: Plan) -> Plan:
        """A plan in the place of one that its first call has shown to be wrong."""
        with self._lock:
            self._plans[key] = [instead, *(p for p in self._plans.get(key, ()) if p is not plan)]
            self._open = tuple(p for p in self._open if p is not plan)
            self._recent = tuple(p for p in self._recent if p is not plan)
            self._promote(instead)
        return instead

    def _refused(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call like others that can't be captured. Where none was compiled, or those that were come first, those to
        come are not looked into."""
        compiled = any(plan.is_compiled for plan in self.plans)
        if self._refusals.is_usual() and (not compiled or reason == COUNTING):
            entry = self._written.make(args, kwargs, self._runner(reason), MISS)
            if entry is not None:
                self._promote(Plan(entry, reason=reason))
                if compiled:
                    self._recent = (*self._recent[1:], self._recent[0])
                    self._take_recent()
        return self._as_written(reason, args, kwargs)

    def _promote(self, plan: Plan) -> None:
        self._recent = (plan, *(p for p in self._recent if p is not plan))[:_RECENT]
        self._take_recent()

    def _take_recent(self) -> None:
        first, *others = (p.entry for p in self._recent)
        self.entry, self._others = first, tuple(others)

    def _log_recompile(self, key: Signature, known: tuple[Plan, ...]) -> None:
        if not self._keys:
            log.info("%s: first call", self.name)
        elif not known:
            nearest = min((what_differs(key, other) for other in self._keys), key=len)
            log.info("%s: new signature (%d plans so far): %s", self.name, self._count, "; ".join(nearest))
        else:
            why = getattr(known[-1].capture and known[-1].capture.environment, "why_changed", lambda: "")()
            log.info("%s: %s", self.name, why or "a tensor that it reads has changed its layout")

    def _too_many(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = f"it was compiled {RECOMPILE_LIMIT} times, for as many signatures; further ones are not compiled"
        return self._as_written(reason, args, kwargs)

    # What counts

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, counting: bool = False) -> Capture:
        """The function captured for one call. FusecError where no library's arrays are among the arguments.

        ``counting``: one that counts in attributes is captured for their values.
        """
        library = library_of(self.function, args, kwargs)
        if library is None:
            raise FusecError(f"{self.name}: no torch tensor or NumPy array is among the arguments")
        try:
            return self._capture(library, args, kwargs)
        except (StateChangedError, HoldsArraysError) as error:
            if self.edits and self._objects.open_for(error, (*args, *kwargs.values())):
                return self.capture(args, kwargs, counting=counting)
            if not counting or not isinstance(error, StateChangedError) or not error.counters:
                raise
            values = (counter.value for counter in error.counters)
            return _Counting(self, error.counters)._capture(library, (*args, *values), kwargs)

    def _may_count(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        return bool(counters) and self.general is not None and self.general.integers and self._counting is None

    def _counts(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        """Whether calls are taken over by programs that count in these attributes, from now on."""
        if not self._may_count(counters):
            return False
        self._counting = _Counting(self, counters)
        self.entry, self._others = self._counting.counted, ()
        return True


class _Counting(Dispatcher):
    """The calls of a function that counts in attributes of objects, whose values come behind its arguments.

    Its results are the function's, each with what is to be added to the counters: nothing where the call ran as
    written, which has done so.
    """

    def __init__(self, outer: Dispatcher, counters: tuple[IntegerAttribute, ...]) -> None:
        general = replace(outer.general, extents="fixed") if outer.general is not None else None
        super().__init__(
            outer.function,
            outer.compile,
            fallback=outer.fallback,
            name=outer.name,
            capture=outer._capture_function,
            general=general,
            static=outer.static,
            telling=outer.telling,
            device=outer.device,
            differentiate=outer.differentiate,
            edits=False,
        )
        self.counters = counters
        self.eager_calls = outer.eager_calls
        self._alone: dict[Hashable, set[tuple[int, ...]]] = {}
        self._mode: Callable[[], Hashable] = lambda: None

    @property
    def values(self) -> list[int]:
        """What the counters have now."""
        return [counter.value for counter in self.counters]

    def counted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The entry of the function's own dispatcher. A call that raises changes no counter."""
        values = [counter.value for counter in self.counters]
        if any(type(value) is not int for value in values) or self._gives_up():
            return MISS
        result, steps = self((*args, *values), kwargs)
        for counter, value, step in zip(self.counters, values, steps, strict=False):
            counter.set(value + step)
        return result

    def _gives_up(self) -> bool:
        """Whether the function was compiled for too many values in the mode that is on, and for no range of them."""
        if self._open or not any(len(values) > MOST_ALONE for values in self._alone.values()):
            return False
        return len(self._alone.get(self._mode(), ())) > MOST_ALONE

    def make(
        self, arrays: Arrays, leaves: list[Any], spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan:
        self._mode = arrays.mode
        self._alone.setdefault(arrays.mode(), set()).add(self._split(args)[1])
        return super().make(arrays, leaves, spec, args, kwargs)

    def _capture(self, library: Library, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
        own, given = self._split(args)
        with Counting(self.counters, given) as counting:
            made = super()._capture(library, own, kwargs)
            steps = counting.steps()
        rebuild, recorded = made.rebuild, made.recorded
        if recorded is not None:
            inner = recorded.rebuild
            recorded = replace(recorded, rebuild=lambda outputs: (inner(outputs), steps))
        return replace(made, rebuild=lambda outputs: (rebuild(outputs), steps), recorded=recorded)

    def _may_count(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        """Where a call counts in further attributes, it runs as written."""
        return False

    def _follows_branches(self, arrays: Arrays) -> bool:
        """Ways differ in how far they count, perhaps."""
        return False

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._bind(self._split(args)[0], kwargs)

    def _runner(self, reason: str) -> Entry:
        return functools.partial(self._as_written, reason)

    def _as_written(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], cause: Cause = "known") -> Any:
        return super()._as_written(reason, self._split(args)[0], kwargs, cause), ()

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        return super()._again(self._split(args)[0], kwargs, error), ()

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        count = len(args) - len(self.counters)
        return args[:count], args[count:]


def _changes_inputs(plan: Plan) -> bool:
    return plan.capture is not None and any(p.mutates is not None for p in plan.capture.graph.output_ports)
