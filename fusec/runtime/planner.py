# SPDX-License-Identifier: Apache-2.0
"""Makes the plans of one function: captured and compiled for one signature, for a range, or run as written."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from dataclasses import replace
from math import prod
from typing import Any, Unpack

from fusec import tracing
from fusec.config import logger, verifies
from fusec.errors import (
    BranchError,
    CaptureError,
    CodegenError,
    DataDependentError,
    FusecError,
    LoweringError,
    SetupError,
    TypeRuleError,
)
from fusec.frontend.capture import Capture, Library, inputs_of, leaves_of_parameters, with_static
from fusec.frontend.counters import IntegerAttribute
from fusec.frontend.outcomes import following
from fusec.frontend.state_errors import StateChangedError
from fusec.frontend.structures import TENSOR, CallSpec, Static, flatten, nodes_in
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays, Layout
from fusec.runtime.branches import MOST_SIGNATURES, Along, Branches, Way, in_vain
from fusec.runtime.captures import captures
from fusec.runtime.dynamic import Opening, openings
from fusec.runtime.entry import Entry, compiled_entry, eager_entry, recorded_entry
from fusec.runtime.executable import Executable
from fusec.runtime.faults import Stage, cause_of, fault_reason, is_capture_fault, reason_of
from fusec.runtime.frequent import Frequent
from fusec.runtime.integers import IntegersSeen, OpenIntegers, SampledIntegers, integers_in, with_integers
from fusec.runtime.libraries import is_torch_module, load_capture, needs_autograd
from fusec.runtime.objects import ObjectsSeen
from fusec.runtime.opened import OpenedCall
from fusec.runtime.plan import Compile, GradientProgram, Plan, PlanOptions, nothing_required
from fusec.runtime.reaching import ends_seen, within_reach
from fusec.runtime.signatures import bind_arguments
from fusec.runtime.sized import SizedEntry
from fusec.runtime.telling import Cause, Telling

OPEN_FAILURES = 6
"""Ranges of extents that are tried for one function and that no graph serves, after which none is tried any more."""

GRADIENT = "a gradient is needed and only the forward is compiled; call it under torch.no_grad() if it is not"
"""Why a call runs as written that the library records for a gradient, where no backward is made."""

MOST_COUNTED = 4
"""Integers that calls with arrays in their objects may differ in, after which none of them is compiled."""

log = logger("recompile")


class OpenedError(Exception):
    """Objects among the arguments are now told by what is in them: the call is to be read anew."""


class Planner:
    """What is known of one function, and how a call of it becomes a plan."""

    def __init__(self, function: Callable[..., Any], compile: Compile, **options: Unpack[PlanOptions]) -> None:
        self.function = function
        self.compile = compile
        self.fallback = options.get("fallback", "eager")
        self.name: str = options.get("name", "") or str(getattr(function, "__qualname__", type(function).__name__))
        self.general = options.get("general")
        self.static = options.get("static", frozenset())
        self.requires = options.get("require", nothing_required)
        self.telling = options.get("telling") or Telling()
        self.device = options.get("device")
        self.differentiate = options.get("differentiate")
        self.owns = options.get("owns", False)
        self.edits = options.get("edits", True)
        self.closed: list[str] = []
        self.eager_calls: Counter[str] = Counter()
        self._capture_function = options.get("capture")
        self._openings = options.get("openings", openings)
        self._integers = IntegersSeen()
        self._without_kernel: set[str] = set()
        self._seen: dict[Hashable, list[tuple[Layout, ...]]] = {}
        self._counted: dict[Hashable, set[tuple[int, ...]]] = {}
        """The integers in the arguments of calls that are alike in all but these and extents."""
        self._passed: set[int] = set()
        """Lists among these, by ids, of which a call has run as written since what comes next was not known."""
        self._restless = False
        self._grows = False
        """Whether calls leave arrays in their arguments: extents change from call to call, then."""
        self._objects = ObjectsSeen()
        self._frequent: list[Frequent] = []
        self._branching = 0
        """Signatures of calls that branch on values."""
        self._mistake = threading.local()
        """``error``: what a program raised last, in a thread, where the function as written did not."""

    def require(self, arrays: Arrays, leaves: list[Any]) -> None:
        """SetupError where no function of such arrays can be compiled and run."""
        self.requires(arrays.library, {arrays.layout(leaf).type.device for leaf in leaves})

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bind_arguments(self.function, args, kwargs)

    def _may_count(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        """Whether calls may be taken over by programs that count in these attributes."""
        return False

    def _capture(self, library: Library, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
        capture = self._capture_function or load_capture(library)
        with captures.run(), tracing.span(f"capture {self.name}", "compile", library=library):
            is_own = library == "torch" and self._capture_function is None
            record = self.differentiate is not None
            own: dict[str, Any] = {"opens": self._objects.opens, "device": self.device, "record": record}
            own = {**own, "edits": self.edits} if is_own else {}
            made = copy_context().run(capture, self.function, args, kwargs, fallback=self.fallback, **own)
        if not self.static:
            return made
        called: Any = self.function
        called = called.forward if is_torch_module(called) else called
        is_array = load_arrays(library).is_array
        return with_static(made, leaves_of_parameters(called, args, kwargs, is_array, self.static, self._objects.opens))

    def make(
        self,
        arrays: Arrays,
        leaves: list[Any],
        spec: CallSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Plan:
        """A plan for calls of one signature."""
        if self.differentiate is None and needs_autograd(arrays.library, leaves):
            return self._eager_plan(arrays, spec, leaves, GRADIENT)
        stage: Stage = "call"
        try:
            self._bind(args, kwargs)
            stage = "capture"
            capture = self._capture(arrays.library, args, kwargs)
            self._grows = self._grows or capture.takes_given
            stage = "compile"
            if needs_autograd(arrays.library, leaves, capture):
                return self._gradient_plan(arrays, spec, leaves, capture)
            executable = self.compile(capture)
            self.require(arrays, leaves)
            eager = functools.partial(self._as_written, "a changed input shares memory with another input")
            entry = compiled_entry(executable, capture, spec, leaves, eager, self._again, owns=self.owns)
            return Plan(entry, capture, executable)
        except SetupError:
            raise
        except Exception as error:
            if self.fallback == "error":
                raise
            if stage == "capture" and self.edits and self._objects.open_for(error, (*args, *kwargs.values())):
                raise OpenedError from error
            if isinstance(error, StateChangedError) and (self._may_count(error.counters) or not self._restless):
                self._restless = self._restless or not error.counters
                raise
            if stage == "compile" and isinstance(error, OSError):
                raise SetupError(f"{self.name} can't be compiled here: {error}") from error
            if isinstance(error, BranchError) and self._follows_branches(arrays):
                self._branching += 1
                branches = Branches(self._noted, functools.partial(self._make_way, arrays), self._tell_written)
                return Plan(eager_entry(arrays, spec, leaves, branches), reason=f"{error}", branches=branches)
            cause = cause_of(error, stage)
            if cause == "fault" and verifies():
                raise
            return self._declined_plan(arrays, spec, leaves, error, cause)

    def _follows_branches(self, arrays: Arrays) -> bool:
        """Whether calls that branch on values have programs for the ways that they go."""
        if self._branching >= MOST_SIGNATURES or self.fallback == "error":
            return False
        return arrays.library == "torch" and self._capture_function is None

    def _noted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Way]:
        from fusec.frontend.torch_outcomes import NotedOutcomes

        with NotedOutcomes() as noted:
            result = self.function(*args, **kwargs)
        self.eager_calls["it branches on values, and shows its way"] += 1
        return result, tuple(noted.found)

    def _tell_written(self, branches: Branches, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._as_written(branches.reason, args, kwargs)

    def _make_way(self, arrays: Arrays, args: tuple[Any, ...], kwargs: dict[str, Any], way: Way) -> Along:
        """The program of calls that go a way. FusecError where there is none."""
        leaves, spec = flatten(args, kwargs, arrays.is_array, self._objects.opens)
        stage: Stage = "capture"
        try:
            with following(way):
                capture = self._capture(arrays.library, args, kwargs)
            if needs_autograd(arrays.library, leaves, capture):
                raise CaptureError(GRADIENT)
            stage = "compile"
            executable = self.compile(capture)
            entry = compiled_entry(executable, capture, spec, leaves, in_vain, in_vain)
        except Exception as error:
            cause = cause_of(error, stage)
            if cause == "known" or (cause == "fault" and verifies()):
                raise
            reason = reason_of(error, cause)
            if cause == "fault":
                self.telling.internal_error(self.name, "its calls run as written", reason)
            raise CaptureError(reason) from error
        log.info("%s: compiled for one way of its branches on values", self.name)
        return Along(entry, capture, executable)

    def _gradient_plan(self, arrays: Arrays, spec: CallSpec, leaves: list[Any], capture: Capture) -> Plan:
        """A plan for calls that need a gradient: forward and backward compiled, or as written with the reason."""
        try:
            program = self.gradient_program(capture, leaves)
        except FusecError as error:
            log.debug("%s", error, exc_info=error)
            return self._eager_plan(arrays, spec, leaves, f"{error}", capture)
        self.require(arrays, leaves)
        eager = functools.partial(self._as_written, "a changed input shares memory with another input")
        entry = recorded_entry(program, capture, spec, arrays, leaves, eager)
        return Plan(entry, capture, gradient=program)

    def gradient_program(self, capture: Capture, leaves: Sequence[Any]) -> GradientProgram:
        """What runs calls like the one with these leaves that need a gradient. CaptureError where nothing does."""
        recorded = capture.recorded
        if self.differentiate is None or recorded is None:
            raise CaptureError(GRADIENT)
        try:
            return self.differentiate(recorded, inputs_of(recorded.sources, leaves), self.name)
        except FusecError as error:
            raise CaptureError(f"a gradient is needed, and {error}") from error

    def make_open(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> Plan | None:
        """A plan for ranges of extents, where calls differ in extents alone and one graph serves them; else None."""
        if self.general is None or needs_autograd(arrays.library, leaves):
            return None
        follows = self.general.extents == "followed" and arrays.library == "torch"
        if not follows and self.general.extents != "sampled" and not self._grows:
            return None
        seen = self._seen_like(arrays, leaves, spec)
        layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        if any(frequent.wants_own(layouts) for frequent in self._frequent):
            return None
        seen[:] = [*(known for known in seen if known != layouts), layouts]
        if arrays.library == "cupy":
            return None
        for opening in self._openings(seen):
            if len(self.closed) >= OPEN_FAILURES or str(opening) in self._without_kernel:
                continue
            try:
                return self._open_plan(opening, seen, arrays, leaves, spec)
            except SetupError:
                raise
            except Exception as error:  # the function itself may refuse an extent that no call has had
                self._tell_unopened("each size is compiled by itself", error)
                self.closed.append(f"{error}")
                log.info("%s: not for a range of extents: %s", self.name, error)
                if isinstance(error, LoweringError | CodegenError):
                    self._without_kernel.add(str(opening))
        return None

    def leave_to_range(self, arrays: Arrays, leaves: list[Any]) -> bool:
        """Whether calls that are too frequent for a program for ranges are served by it all the same from now on."""
        layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        return sum(frequent.stays(layouts) for frequent in self._frequent) > 0

    def _open_plan(
        self, opening: Opening, seen: Sequence[Sequence[Layout]], arrays: Arrays, leaves: list[Any], spec: CallSpec
    ) -> Plan:
        assert self.general is not None
        make = self.general.make
        strict = self.general.extents == "followed" and not self._grows
        call = OpenedCall(self.function, self._capture, arrays, leaves, spec, opening, strict)
        asked = call.check if arrays.library == "torch" else None
        if strict:  # a run costs less than the captures that it may spare
            ends = ends_seen(opening, seen)
            call.check({name: most for name, (_, most) in ends.items()}, ends)
        try:
            capture = make(call.capture_at, opening.symbols, asked)
        except SetupError:
            raise
        except Exception:  # the function may do all but the last extents in one way
            narrower = within_reach(opening, seen, call.capture_at)
            if narrower is None:
                raise
            opening = narrower
            call = replace(call, opening=opening)
            capture = make(call.capture_at, opening.symbols, call.check if asked else None)
        if needs_autograd(arrays.library, leaves, capture):
            raise CaptureError("a gradient is needed")
        frequent = Frequent(opening) if strict else None
        entry, executable = self._sized_entry(capture, spec, leaves, opening, seen, frequent)
        if frequent is not None:
            self._frequent.append(frequent)
        ranges = ", ".join(f"{s} from {s.lo} to {s.hi}" for s in opening.symbols)
        log.info("%s: compiled for %s", self.name, ranges)
        return Plan(entry, capture, executable, opening=opening)

    def _sized_entry(
        self,
        capture: Capture,
        spec: CallSpec,
        leaves: list[Any],
        opening: Opening,
        seen: Sequence[Sequence[Layout]],
        frequent: Frequent | None,
    ) -> tuple[Entry, Executable]:
        """The entry for ranges, and the program that it runs for calls like the last."""
        assert self.general is not None
        eager = functools.partial(self._as_written, "a changed input shares memory with another input")

        def write(
            executable: Executable,
            smaller: Sequence[tuple[int, Executable]] = (),
            other: Callable[[int], Entry | None] | None = None,
        ) -> Entry:
            again = self._again
            return compiled_entry(
                executable,
                capture,
                spec,
                leaves,
                eager,
                again,
                opening,
                frequent=frequent,
                smaller=smaller,
                other=other,
            )

        classes = self.general.classes(capture.graph, opening.symbols)
        if len(classes) == 1:
            executable = self.compile(capture)
            return write(executable), executable
        now = prod(end for end, _ in ends_seen(opening, seen[-1:]).values())
        sized = SizedEntry(classes, functools.partial(self.compile, capture), write, now)
        return sized, sized.executable

    def _seen_like(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> list[tuple[Layout, ...]]:
        """The layouts of calls that differ from this one in extents alone."""
        layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        kinds = tuple((x.type.dtype, x.type.rank, x.type.device, x.flags) for x in layouts)
        return self._seen.setdefault((arrays.library, spec, kinds, arrays.mode()), [])

    def is_passing(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> bool:
        """Whether a call is the first of its kind, and has in its arguments what an earlier one may have left there.

        Where it leaves more, the next has other extents, and what is compiled for these is called once. Where the next
        has the same extents, such as those of a preallocated cache, it is compiled for them.
        """
        if not self._grows or self.general is None or self.fallback == "error":
            return False
        parts = (*spec.args, *(part for _, part in spec.kwargs))
        held = any(TENSOR in node.parts for part in parts for node in nodes_in(part))
        seen = self._seen_like(arrays, leaves, spec)
        if not held or len(seen) != 1 or id(seen) in self._passed:
            return False
        self._passed.add(id(seen))
        return True

    def counts_in_objects(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> bool:
        """Whether calls that change their containers differ in an integer, again and again: what is compiled for one
        would be called once. Caches with a window count positions so.
        """
        if not self._grows or self.general is None or self.fallback == "error":
            return False
        values = tuple(integers_in(spec))
        kinds = tuple((x.type.dtype, x.type.rank, x.type.device) for x in map(arrays.layout, leaves))
        seen = self._counted.setdefault(
            (arrays.library, with_integers(spec, [Static(None)] * len(values)), kinds), set()
        )
        if len(seen) <= MOST_COUNTED:
            seen.add(values)
        return len(seen) > MOST_COUNTED

    def make_open_integers(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> Plan | None:
        """A plan for ranges of integers, where calls differ in integers alone and one graph serves them; else None."""
        if self.general is None or not self.general.integers or needs_autograd(arrays.library, leaves):
            return None
        if not is_on_cpu(arrays, leaves):
            return None
        layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        kind = (arrays.library, layouts, arrays.mode())
        opened = self._integers.opening(kind, spec)
        if opened is None:
            return None
        try:
            return self._integers_plan(opened, arrays, leaves)
        except SetupError:
            raise
        except Exception as error:
            if not isinstance(error, _REFUSALS):
                self._tell_unopened("each integer is compiled by itself", error)
            self._integers.close(kind, opened)
            log.info("%s: not for a range of integers: %s", self.name, error)
            return None

    def _integers_plan(self, opened: OpenIntegers, arrays: Arrays, leaves: list[Any]) -> Plan:
        assert self.general is not None

        def capture_as(spec: CallSpec) -> Capture:
            return self._capture(arrays.library, *spec.restore(leaves))

        sampled = SampledIntegers(opened, capture_as).narrowed()
        opened = sampled.opened
        conditions = functools.partial(sampled.check, arrays.library)
        capture = self.general.make(sampled.capture_at, opened.distinct, conditions)
        if needs_autograd(arrays.library, leaves, capture):
            raise CaptureError("a gradient is needed")
        executable = self.compile(capture)
        eager = functools.partial(self._as_written, "a changed input shares memory with another input")
        entry = compiled_entry(executable, capture, opened.structure, leaves, eager, self._again)
        ranges = ", ".join(f"{s} from {s.lo} to {s.hi}" for s in opened.distinct)
        log.info("%s: compiled for integers %s", self.name, ranges)
        return Plan(entry, capture, executable, structure=opened.structure)

    def _tell_unopened(self, so: str, error: Exception) -> None:
        """Tells a bug of ours that ended a compilation for a range. That no kernel serves one is none."""
        refused = isinstance(error, LoweringError | CodegenError)
        if refused or not is_capture_fault(error):
            return
        if self.fallback == "error" or verifies():
            raise error
        self.telling.internal_error(self.name, so, fault_reason(error))

    def _declined_plan(self, arrays: Arrays, spec: CallSpec, leaves: list[Any], error: Exception, cause: Cause) -> Plan:
        """Runs as written. The user's own mistake comes out there, as the library says it; a bug of ours is told."""
        reason = reason_of(error, cause)
        log.info("%s runs as written: %s", self.name, reason)
        log.debug("%s", reason, exc_info=error)
        plan = self._eager_plan(arrays, spec, leaves, reason, cause=cause)
        return replace(plan, in_code=isinstance(error, DataDependentError))

    def _eager_plan(
        self,
        arrays: Arrays,
        spec: CallSpec,
        leaves: list[Any],
        reason: str,
        capture: Capture | None = None,
        cause: Cause = "known",
    ) -> Plan:
        run: Entry = functools.partial(self._as_written, reason, cause=cause)
        known = self._runner(reason) if cause == "known" else run

        def eager(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal run
            result = run(args, kwargs)
            run = known  # the reason has been told
            return result

        if capture is None:
            return Plan(eager_entry(arrays, spec, leaves, eager), None, None, reason)
        return Plan(eager_entry(arrays, spec, leaves, eager, capture.sources), capture, None, reason)

    def _runner(self, reason: str) -> Entry:
        """What runs calls as written whose reason has been told."""
        if self.fallback == "error":
            return functools.partial(self._as_written, reason)
        function, counts = self.function, self.eager_calls

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            counts[reason] += 1
            return function(*args, **kwargs)

        return run

    def _as_written(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], cause: Cause = "known") -> Any:
        """Runs the function itself. What the capture ended with may be the function's own error: then that is raised
        here, and there is nothing else to tell."""
        if cause == "part":
            return self.function(*args, **kwargs)
        if self.fallback == "error":
            raise CaptureError(f"{self.name} can't be compiled: {reason}")
        if cause == "known":
            self.telling.runs_as_written(self.name, reason)
        try:
            result = self.function(*args, **kwargs)
        except Exception as error:
            own = cause in ("raised", "fault")
            self.eager_calls[f"it raises {type(error).__name__} as written" if own else reason] += 1
            raise
        self.eager_calls[reason] += 1
        if cause == "raised":
            self.telling.runs_as_written(self.name, reason)
        elif cause == "fault":
            self.telling.internal_error(self.name, "its calls run as written", reason)
        return result

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        """A call whose program raised before it changed anything, as written: that raises as the code does.

        What it does not raise is a mistake of ours. Under ``fallback="error"`` that is an error, whatever the function
        gives.
        """
        if self.owns and not args:  # they were let go
            raise error
        result = self.function(*args, **kwargs)
        if self.fallback == "error":
            said = f"its program raised {type(error).__name__}: {error}; the function as written does not"
            raise CaptureError(f"{self.name} can't be compiled: {said}") from error
        self._note_mistake(error)
        return result

    def _note_mistake(self, error: Exception) -> None:
        if verifies():
            raise error
        self._mistake.error = error
        log.warning("%s ran as written: its program raised %s: %s", self.name, type(error).__name__, error)
        self.eager_calls[f"its program raised {type(error).__name__}: {error}"] += 1


_REFUSALS = (TypeRuleError, ArithmeticError, IndexError)
"""What a function's operations raise for an integer that is out of range: one that it was given, or that no call has
had. A call with the integer then tells whether the function raises it as written."""


def is_on_cpu(arrays: Arrays, leaves: list[Any]) -> bool:
    return all(arrays.layout(leaf).type.device == "cpu" for leaf in leaves)
