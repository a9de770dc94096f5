"""``fusec.jit``'s machinery: from a call to the plan made for calls like it, and to a new plan where there is none."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from fusec import tracing
from fusec.config import logger, verifies
from fusec.errors import CaptureError, CodegenError, DataDependentError, FusecError, LoweringError, SetupError
from fusec.frontend.capture import (
    AsWritten,
    Capture,
    Fallback,
    Library,
    Recorded,
    inputs_of,
    leaves_of_parameters,
    with_static,
)
from fusec.frontend.counters import Counting, IntegerAttribute
from fusec.frontend.side_effects import StateChangedError
from fusec.frontend.structures import CallSpec, flatten
from fusec.ir.indexing import evaluate
from fusec.ir.types import contiguous_strides
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays, Layout
from fusec.runtime.captures import captures, is_capturing
from fusec.runtime.code import Scope
from fusec.runtime.dynamic import Generality, Opening, Openings, is_open, openings, symbols_in
from fusec.runtime.entry import MISS, Entry, compiled_entry, eager_entry, recorded_entry
from fusec.runtime.executable import Executable
from fusec.runtime.faults import fault_reason, is_capture_fault, is_compile_fault
from fusec.runtime.integers import IntegersSeen, OpenIntegers, SampledIntegers
from fusec.runtime.libraries import CaptureFunction, is_torch_module, library_of, load_capture, needs_autograd
from fusec.runtime.library import ResultsDifferError
from fusec.runtime.objects import ObjectsSeen
from fusec.runtime.refusals import Refusals, WrittenEntries, kind_of
from fusec.runtime.signatures import bind_arguments, unfit, what_differs
from fusec.runtime.telling import Cause, Telling

RECOMPILE_LIMIT = 64
"""Plans that one function may have; further signatures run as written."""

_RECENT = 4
OPEN_FAILURES = 6
"""Ranges of extents that are tried for one function and that no graph serves, after which none is tried any more."""

MOST_ALONE = 4
"""Values of integer attributes that a function is compiled for one by one until, with no range, it runs as written."""

GRADIENT = "a gradient is needed and only the forward is compiled; call it under torch.no_grad() if it is not"
"""Why a call runs as written that the library records for a gradient, where no backward is made."""

log = logger("recompile")


Compile = Callable[[Capture], Executable]
"""From a capture to an executable, with the options of the function that is being compiled."""


class GradientProgram(Protocol):
    """What runs a recorded function for calls that need a gradient: forward, and backward where that is asked for."""

    def __call__(self, *inputs: Any) -> Any:
        """The function's result."""

    def report(self) -> str:
        """What was fused into which kernels, forward and backward."""


Differentiate = Callable[[Recorded, Sequence[Any], str], GradientProgram]
"""From a recorded function, examples of its inputs and its name. FusecError where no backward is made."""

Require = Callable[[Library, Collection[str]], None]
"""SetupError where nothing can be compiled for arrays of a library on these devices, whatever the function."""


Signature = tuple[Library, CallSpec, tuple[Layout, ...], Hashable]
"""What tells calls apart: whose arrays, the structure with all static values, the arrays' layouts, a library's mode."""


def nothing_required(library: Library, devices: Collection[str]) -> None:
    pass


def _no_entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return MISS


@dataclass(frozen=True, eq=False)
class Plan:
    """What calls of one signature do. ``executable`` is None where they run as written; then ``reason`` says why.

    ``in_code``: its code asks for a tensor's value. ``opening`` and ``structure``: what calls beside the first may have
    in place of its extents, or of its integers. ``gradient`` runs calls that need one.
    """

    entry: Entry
    capture: Capture | None = None
    executable: Executable | None = None
    reason: str = ""
    in_code: bool = False
    signature: Signature | None = None
    opening: Opening | None = None
    structure: CallSpec | None = None
    gradient: GradientProgram | None = None

    @property
    def is_compiled(self) -> bool:
        return self.executable is not None or self.gradient is not None


class Dispatcher:
    """The plans of one function. Safe to call from many threads."""

    def __init__(
        self,
        function: Callable[..., Any],
        compile: Compile,
        *,
        fallback: Fallback = "eager",
        name: str = "",
        capture: CaptureFunction | None = None,
        general: Generality | None = None,
        openings: Openings = openings,
        static: frozenset[str] = frozenset(),
        require: Require = nothing_required,
        telling: Telling | None = None,
        device: str | None = None,
        differentiate: Differentiate | None = None,
    ) -> None:
        """``device``: the GPU that the function is captured for, where its tensors are not there. ``differentiate``
        makes what serves calls that need a gradient; without, they run as written."""
        self.function = function
        self.differentiate = differentiate
        self.device = device
        self.requires = require
        self.telling = telling or Telling()
        self.static = static
        self.general = general
        self._integers = IntegersSeen()
        self._openings = openings
        self.closed: list[str] = []
        self._without_kernel: set[str] = set()
        self._seen: dict[Hashable, list[tuple[Layout, ...]]] = {}
        self._open: tuple[Plan, ...] = ()
        self._capture_function = capture
        self.eager_calls: Counter[str] = Counter()
        self.compile = compile
        self.fallback = fallback
        self.name = name or getattr(function, "__qualname__", type(function).__name__)
        self._lock = threading.RLock()
        self._recent: tuple[Plan, ...] = ()
        self.entry: Entry = _no_entry
        """The latest plan's."""
        self._others: tuple[Entry, ...] = ()
        self._plans: dict[Signature, list[Plan]] = {}
        self._keys: list[Signature] = []
        self._count = 0
        self._restless = False
        self._refusals = Refusals()
        self._without_backward = Refusals()
        self._written = WrittenEntries()
        self._objects = ObjectsSeen()
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
            for plan in known:  # another thread may have made it meanwhile
                result = plan.entry(args, kwargs)
                if result is not MISS:
                    return result
            if self._count >= RECOMPILE_LIMIT:
                return self._too_many(args, kwargs)
            kind = kind_of(arrays.library, spec, tuple(arrays.layout(leaf) for leaf in leaves), arrays.mode())
            reason = self._refusals.reason(kind)
            if reason:
                return self._refused(reason, args, kwargs)
            reason = self._without_backward.reason(kind)
            if reason:
                return self._as_written(reason, args, kwargs)
            if self.fallback == "eager":  # else whatever stands against it first is raised
                self.require(arrays, leaves)
            self._log_recompile(key, known)
            start = time.monotonic()
            opened = self._make_open(arrays, leaves, spec) or self._make_open_integers(arrays, leaves, spec)
            if opened is not None:
                plan = replace(opened, signature=key)
                self._open = (plan, *self._open)
            else:
                try:
                    plan = replace(self._make(arrays, leaves, spec, args, kwargs), signature=key)
                except StateChangedError as error:
                    if _is_on_cpu(arrays, leaves) and self._counts(error.counters):
                        return self.entry(args, kwargs)
                    if self.fallback == "error":
                        raise
                    self._refusals.failed(kind, f"{error}", time.monotonic() - start, may_settle=True)
                    return self._as_written(f"{error}", args, kwargs, "settling")
                if plan.capture is None:
                    failure = time.monotonic() - start
                elif not plan.is_compiled:
                    self._without_backward.failed(kind, plan.reason, time.monotonic() - start)
                self._plans.setdefault(key, []).append(plan)
            self._count += 1
            self._keys.append(key)
            self._promote(plan)
        try:
            result = plan.entry(args, kwargs)
        except ResultsDifferError as error:
            if self.fallback == "error" or verifies() or _changes_inputs(plan):
                raise
            plan = self._disproved(
                plan, key, replace(self._declined_plan(arrays, spec, leaves, error, "known"), signature=key)
            )
            result = plan.entry(args, kwargs)
        if failure is not None:  # and it is no mistake of the call's, at which the function itself has raised
            self._refusals.failed(kind, plan.reason, failure, in_code=plan.in_code)
        if result is MISS:
            return self._as_written("what it reads changes while it runs", args, kwargs)
        return result

    def _disproved(self, plan: Plan, key: Signature, instead: Plan) -> Plan:
        """A plan in the place of one that its first call has shown to be wrong."""
        with self._lock:
            self._plans[key] = [instead, *(p for p in self._plans.get(key, ()) if p is not plan)]
            self._open = tuple(p for p in self._open if p is not plan)
            self._recent = tuple(p for p in self._recent if p is not plan)
            self._promote(instead)
        return instead

    def _refused(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call like others that can't be captured. Where none was compiled, those to come are not looked into."""
        if self._refusals.is_usual() and not any(plan.is_compiled for plan in self.plans):
            entry = self._written.make(args, kwargs, functools.partial(self._as_written, reason), MISS)
            if entry is not None:
                self._promote(Plan(entry, reason=reason))
        return self._as_written(reason, args, kwargs)

    def _promote(self, plan: Plan) -> None:
        self._recent = (plan, *(p for p in self._recent if p is not plan))[:_RECENT]
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

    # Making a plan

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, counting: bool = False) -> Capture:
        """The function captured for one call. FusecError where no library's arrays are among the arguments.

        ``counting``: one that counts in attributes is captured for their values.
        """
        library = library_of(self.function, args, kwargs)
        if library is None:
            raise FusecError(f"{self.name}: no torch tensor or NumPy array is among the arguments")
        try:
            return self._capture(library, args, kwargs)
        except StateChangedError as error:
            if not counting or not error.counters:
                raise
            values = (counter.value for counter in error.counters)
            return _Counting(self, error.counters)._capture(library, (*args, *values), kwargs)

    def require(self, arrays: Arrays, leaves: list[Any]) -> None:
        """SetupError where no function of such arrays can be compiled and run."""
        self.requires(arrays.library, {arrays.layout(leaf).type.device for leaf in leaves})

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bind_arguments(self.function, args, kwargs)

    def _may_count(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        return bool(counters) and self.general is not None and self.general.integers and self._counting is None

    def _counts(self, counters: tuple[IntegerAttribute, ...]) -> bool:
        """Whether calls are taken over by programs that count in these attributes, from now on."""
        if not self._may_count(counters):
            return False
        self._counting = _Counting(self, counters)
        self.entry, self._others = self._counting.counted, ()
        return True

    def _capture(self, library: Library, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
        capture = self._capture_function or load_capture(library)
        with captures.run(), tracing.span(f"capture {self.name}", "compile", library=library):
            is_own = library == "torch" and self._capture_function is None
            record = self.differentiate is not None
            own = {"opens": self._objects.opens, "device": self.device, "record": record} if is_own else {}
            made = capture(self.function, args, kwargs, fallback=self.fallback, **own)
        if not self.static:
            return made
        called: Any = self.function
        called = called.forward if is_torch_module(called) else called
        is_array = load_arrays(library).is_array
        return with_static(made, leaves_of_parameters(called, args, kwargs, is_array, self.static, self._objects.opens))

    def _make(
        self,
        arrays: Arrays,
        leaves: list[Any],
        spec: CallSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Plan:
        if self.differentiate is None and needs_autograd(arrays.library, leaves):
            return self._eager_plan(arrays, spec, leaves, GRADIENT)
        stage: Stage = "call"
        try:
            self._bind(args, kwargs)
            stage = "capture"
            capture = self._capture(arrays.library, args, kwargs)
            stage = "compile"
            if needs_autograd(arrays.library, leaves, capture):
                return self._gradient_plan(arrays, spec, leaves, capture)
            executable = self.compile(capture)
            self.require(arrays, leaves)
            eager = functools.partial(self._as_written, "a changed input shares memory with another input")
            entry = compiled_entry(executable, capture, spec, leaves, eager, self._again)
            return Plan(entry, capture, executable)
        except SetupError:
            raise
        except Exception as error:
            if self.fallback == "error":
                raise
            if isinstance(error, StateChangedError) and (self._may_count(error.counters) or not self._restless):
                self._restless = self._restless or not error.counters
                raise
            if stage == "compile" and isinstance(error, OSError):
                raise SetupError(f"{self.name} can't be compiled here: {error}") from error
            cause = _cause(error, stage)
            if cause == "fault" and verifies():
                raise
            return self._declined_plan(arrays, spec, leaves, error, cause)

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

    def _make_open(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> Plan | None:
        """A plan for ranges of extents, where calls differ in extents alone and one graph serves them; else None."""
        if self.general is None or not self.general.extents or needs_autograd(arrays.library, leaves):
            return None
        layouts = tuple(arrays.layout(leaf) for leaf in leaves)
        kinds = tuple((x.type.dtype, x.type.rank, x.type.device, x.flags) for x in layouts)
        seen = self._seen.setdefault((arrays.library, spec, kinds, arrays.mode()), [])
        seen[:] = [*(known for known in seen if known != layouts), layouts]
        if arrays.library == "cupy":
            return None
        for opening in self._openings(seen):
            if len(self.closed) >= OPEN_FAILURES or str(opening) in self._without_kernel:
                continue
            try:
                return self._open_plan(opening, arrays, leaves, spec)
            except SetupError:
                raise
            except Exception as error:  # the function itself may refuse an extent that no call has had
                self._tell_unopened("each size is compiled by itself", error)
                self.closed.append(f"{error}")
                log.info("%s: not for a range of extents: %s", self.name, error)
                if isinstance(error, LoweringError | CodegenError):
                    self._without_kernel.add(str(opening))
        return None

    def _open_plan(self, opening: Opening, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> Plan:
        assert self.general is not None
        shapes = opening.shapes

        def capture_at(extents: Mapping[str, int]) -> Capture:
            made = []
            for number, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
                if not is_open(shape):
                    made.append(leaf)
                    continue
                scope = Scope()
                type = arrays.layout(leaf).type.with_shape([evaluate(n, extents) for n in shape])
                steps = opening.steps.get(number)
                strides = [evaluate(n, extents) for n in steps] if steps else contiguous_strides(type.static_shape)
                expression = arrays.allocate(scope, type, strides)
                made.append(eval(expression, dict(scope.objects)))
            args, kwargs = spec.restore(made)
            return self._capture(arrays.library, args, kwargs)

        def conditions(extents: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> None:
            from fusec.frontend.torch_sizes import check_conditions

            named = [[n if isinstance(n, int) else str(n) for n in shape] for shape in shapes]
            dtypes = [arrays.layout(leaf).type.dtype for leaf in leaves]
            with captures.run():
                check_conditions(self.function, list(zip(named, dtypes, strict=True)), spec.restore, extents, ranges)

        capture = self.general.make(capture_at, symbols_in(shapes), conditions if arrays.library == "torch" else None)
        if needs_autograd(arrays.library, leaves, capture):
            raise CaptureError("a gradient is needed")
        executable = self.compile(capture)
        eager = functools.partial(self._as_written, "a changed input shares memory with another input")
        entry = compiled_entry(executable, capture, spec, leaves, eager, self._again, opening)
        ranges = ", ".join(f"{s} from {s.lo} to {s.hi}" for s in symbols_in(shapes))
        log.info("%s: compiled for %s", self.name, ranges)
        return Plan(entry, capture, executable, opening=opening)

    def _make_open_integers(self, arrays: Arrays, leaves: list[Any], spec: CallSpec) -> Plan | None:
        """A plan for ranges of integers, where calls differ in integers alone and one graph serves them; else None."""
        if self.general is None or not self.general.integers or needs_autograd(arrays.library, leaves):
            return None
        if not _is_on_cpu(arrays, leaves):
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
        except Exception as error:  # the function itself may refuse an integer that no call has had
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
        reason = f"{error}" if isinstance(error, FusecError) else f"capture ended with {type(error).__name__}: {error}"
        if cause == "fault":
            reason = fault_reason(error)
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
        def eager(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._as_written(reason, args, kwargs, cause)

        if capture is None:
            return Plan(eager_entry(arrays, spec, leaves, eager), None, None, reason)
        return Plan(eager_entry(arrays, spec, leaves, eager, capture.sources), capture, None, reason)

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

        What it does not raise is a mistake of ours.
        """
        result = self.function(*args, **kwargs)
        self._note_mistake(error)
        return result

    def _note_mistake(self, error: Exception) -> None:
        if verifies():
            raise error
        log.warning("%s ran as written: its program raised %s: %s", self.name, type(error).__name__, error)
        self.eager_calls[f"its program raised {type(error).__name__}: {error}"] += 1


Stage = Literal["call", "capture", "compile"]
"""What ended with an error: arguments that don't fit the function's parameters, the capture, or all after it."""


def _cause(error: Exception, stage: Stage) -> Cause:
    if (stage == "capture" and is_capture_fault(error)) or (stage == "compile" and is_compile_fault(error)):
        return "fault"
    return "known" if isinstance(error, FusecError) else "raised"


class _Counting(Dispatcher):
    """The calls of a function that counts in attributes of objects, whose values come behind its arguments.

    Its results are the function's, each with what is to be added to the counters: nothing where the call ran as
    written, which has done so.
    """

    def __init__(self, outer: Dispatcher, counters: tuple[IntegerAttribute, ...]) -> None:
        general = replace(outer.general, extents=False) if outer.general is not None else None
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

    def _make(
        self, arrays: Arrays, leaves: list[Any], spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan:
        self._mode = arrays.mode
        self._alone.setdefault(arrays.mode(), set()).add(self._split(args)[1])
        return super()._make(arrays, leaves, spec, args, kwargs)

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

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._bind(self._split(args)[0], kwargs)

    def _as_written(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], cause: Cause = "known") -> Any:
        return super()._as_written(reason, self._split(args)[0], kwargs, cause), ()

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        return super()._again(self._split(args)[0], kwargs, error), ()

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        count = len(args) - len(self.counters)
        return args[:count], args[count:]


def _changes_inputs(plan: Plan) -> bool:
    return plan.capture is not None and any(p.mutates is not None for p in plan.capture.graph.output_ports)


def _is_on_cpu(arrays: Arrays, leaves: list[Any]) -> bool:
    return all(arrays.layout(leaf).type.device == "cpu" for leaf in leaves)
