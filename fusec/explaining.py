# SPDX-License-Identifier: Apache-2.0
"""What :func:`fusec.explain` says: first how a function's calls run now, then the kernels, or why there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusec.accuracy import error_text, output_errors
from fusec.arguments import capturing, examples, is_argument, plain
from fusec.build import Options, compile_with
from fusec.checks import check_environment
from fusec.compiled import argument_of
from fusec.differentiating import differentiate_with
from fusec.digest import tell_program
from fusec.errors import BranchError, CaptureError, FusecError, SetupError
from fusec.exporting import Compiled
from fusec.frontend.capture import AsWritten, Capture, IntegerSource
from fusec.frontend.structures import CallSpec, flatten
from fusec.runtime.arrays import Arrays
from fusec.runtime.branches import Branches
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.executable import Executable
from fusec.runtime.faults import described, fault_reason, is_capture_fault, is_compile_fault
from fusec.runtime.jit import JitFunction, JitModule
from fusec.runtime.libraries import needs_autograd
from fusec.runtime.plan import GradientProgram, Plan
from fusec.runtime.signatures import bind_arguments
from fusec.runtime.standing import standing_plan
from fusec.specs import TensorSpec
from fusec.target.gpu import has_cuda, is_gpu

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True)
class _Wanted:
    """What is done besides telling: kernels are timed, results held against float64. detail: every kernel is told."""

    measure: bool = False
    errors: bool = False
    detail: bool = False


def explain_function(
    function: Any, args: Args, kwargs: Kwargs, *, measure: bool = False, errors: bool = False, detail: bool = False
) -> str:
    """The report. Whatever is raised on the way is told in it."""
    try:
        return _explained(function, args, kwargs, _Wanted(measure, errors, detail))
    except FusecError as error:
        return f"{_name_of(function)} can't be explained: {error}\n"
    except (Exception, SystemExit) as error:
        return f"{_name_of(function)} can't be explained: {described(error)}\n"


def _name_of(function: Any) -> str:
    try:
        return str(getattr(function, "__qualname__", None) or type(function).__name__)
    except Exception:  # an object may answer anything
        return type(function).__name__


def _explained(function: Any, args: Args, kwargs: Kwargs, wanted: _Wanted) -> str:
    if isinstance(function, Compiled):
        return function.explain(measure=wanted.measure, detail=wanted.detail) + _not_told(
            wanted, "of a function compiled ahead"
        )
    if "torch._dynamo" in sys.modules:
        from fusec.torch_compile import explain_compiled, original_of

        original = original_of(function)
        if original is not None:
            return explain_compiled(original, args, kwargs) + _not_told(wanted, "of torch.compile's graphs")
    if isinstance(function, JitModule):
        function = function.__dict__["_fusec"]
    if isinstance(function, JitFunction):
        return _explain_jitted(function.dispatcher, args, kwargs, wanted)
    return _explain_plain(plain(function), args, kwargs, wanted)


def _not_told(wanted: _Wanted, of: str) -> str:
    return f"errors {of} are not told; fusec.explain of the function of fusec.jit tells them\n" if wanted.errors else ""


def _explain_plain(function: Any, args: Args, kwargs: Kwargs, wanted: _Wanted) -> str:
    options = Options()
    dispatcher = capturing(
        function, compile=compile_with(options), differentiate=differentiate_with(options), edits=True
    )
    head = f"{dispatcher.name} is not compiled: it is no function of fusec.jit"
    return _Asked(dispatcher, head, wanted=wanted).report(args, kwargs)


def _explain_jitted(dispatcher: Dispatcher, args: Args, kwargs: Kwargs, wanted: _Wanted) -> str:
    if not args and not kwargs and dispatcher.plans and not _takes(dispatcher.function, args, kwargs):
        return _every_plan(dispatcher, detail=wanted.detail)
    so_far = _so_far(dispatcher)
    head = f"{dispatcher.name} is not called " + (f"like this yet ({so_far})" if so_far else "yet")
    fresh = capturing(
        dispatcher.function,
        dispatcher.fallback,
        dispatcher.static,
        dispatcher.compile,
        dispatcher.requires,
        differentiate=dispatcher.differentiate,
        edits=True,
    )
    return _Asked(fresh, head, dispatcher, wanted).report(args, kwargs)


def _takes(function: Any, args: Args, kwargs: Kwargs) -> bool:
    try:
        bind_arguments(function, args, kwargs)
    except TypeError:
        return False
    return True


def _so_far(dispatcher: Dispatcher) -> str:
    """What the calls up to now were; empty where there were none."""
    compiled = sum(plan.is_compiled for plan in dispatcher.plans)
    eager = sum(dispatcher.eager_calls.values())
    if not compiled and not eager:
        return ""
    plans = f"compiled for {compiled} signature{'' if compiled == 1 else 's'}" if compiled else "not compiled"
    return f"{plans}, {eager} call{'' if eager == 1 else 's'} ran as written" if eager else plans


def _every_plan(dispatcher: Dispatcher, *, detail: bool) -> str:
    """The report on a function's plans, for no call in particular."""
    texts = [f"{dispatcher.name}: {_so_far(dispatcher)}\n"]
    for plan in dispatcher.plans:
        if plan.executable is not None and plan.capture is not None:
            texts.append(tell_program(plan.executable.program, plan.capture.notes, detail=detail))
        if plan.gradient is not None:
            texts.append(plan.gradient.report())
        ways = plan.branches.ways.values() if plan.branches is not None else ()
        texts += [tell_program(along.executable.program, along.capture.notes, detail=detail) for along in ways]
    return "\n".join(texts) + _eager_lines(dispatcher)


def _eager_lines(dispatcher: Dispatcher | None) -> str:
    lines = [f"    {count} × {reason}\n" for reason, count in (dispatcher.eager_calls if dispatcher else {}).items()]
    return "".join(["calls that ran as written\n", *lines] if lines else [])


@dataclass(frozen=True)
class _Asked:
    """How one call is looked at.

    dispatcher: captures and compiles, and keeps nothing of it. head: what is said where the call has no plan.
    jitted: whose plans are the function's.
    """

    dispatcher: Dispatcher
    head: str
    jitted: Dispatcher | None = None
    wanted: _Wanted = _Wanted()

    @property
    def _declined(self) -> str:
        refused = self.dispatcher.fallback == "error"
        return "would be refused (fallback='error')" if refused else "would run as written"

    def report(self, args: Args, kwargs: Kwargs) -> str:
        name, function = self.dispatcher.name, self.dispatcher.function
        try:
            check_environment()
            bind_arguments(function, args, kwargs)
        except SetupError as error:
            return self._said(f"{name} can't be compiled here: {error}")
        except TypeError as error:
            return self._said(f"{name} raises TypeError for these arguments: {error}")
        specs = [leaf for leaf in flatten(args, kwargs, is_argument)[0] if isinstance(leaf, TensorSpec)]
        for given in specs:
            if is_gpu(given.device) and not has_cuda():
                advice = "fusec.compile(..., target='cuda:sm_90').explain() tells of a program for one"
                return self._said(f"{name} can't be compiled here: {given} is on a GPU, which is not here; {advice}")
        if specs:
            args, kwargs, _ = examples(function, args, kwargs)
        call = self.dispatcher.read(args, kwargs)
        if isinstance(call, AsWritten):
            return self._said(f"{name} runs as written for these arguments: {call.reason}")
        arrays, leaves, spec, _ = call
        plan = standing_plan(self.jitted, args, kwargs) if self.jitted is not None else None
        gradient = needs_autograd(arrays.library, leaves, plan.capture if plan is not None else None)
        if plan is not None and plan.executable is not None and plan.capture is not None:
            said = self._program(f"{name} is compiled for such calls", plan.capture, plan.executable, leaves)
            return said + self._errors(plan.capture, plan.executable, leaves, spec)
        if plan is not None and plan.gradient is not None:
            capture = self.dispatcher.capture(args, kwargs, counting=True) if self.wanted.errors else None
            return self._both(f"{name} is compiled for such calls", plan.gradient, capture, leaves, spec)
        if plan is not None and plan.branches is not None and not gradient:
            return self._branching(plan.branches, leaves)
        if plan is not None and not gradient:
            return self._said(f"{name} runs as written for such calls: {plan.reason}")
        return self._anew(args, kwargs, arrays, leaves, spec, plan)

    def _branching(self, branches: Branches, leaves: list[Any]) -> str:
        """The report on calls that branch on values, with the program of the way that the latest one went."""
        head = f"{self.dispatcher.name} branches on values; such calls run {branches.describe()}"
        if branches.reason or not branches.ways:
            return self._said(head)
        latest = next(iter(branches.ways.values()))
        told = self._program(head, latest.capture, latest.executable, leaves)
        return told + ("errors of a function that branches on values are not told\n" if self.wanted.errors else "")

    def _anew(
        self, args: Args, kwargs: Kwargs, arrays: Arrays, leaves: list[Any], spec: CallSpec, plan: Plan | None
    ) -> str:
        """The report on a call without a plan, or with one that runs it as written for a gradient's sake."""
        name, head = self.dispatcher.name, f"{self.head}; it would be compiled so"
        try:
            self.dispatcher.require(arrays, leaves)
            capture = self.dispatcher.capture(args, kwargs, counting=True)
        except SetupError as error:
            return self._said(f"{name} can't be compiled here: {error}")
        except Exception as error:
            may_branch = (
                isinstance(error, BranchError) and arrays.library == "torch" and self.dispatcher.fallback == "eager"
            )
            declined = "would have a program for each way that it branches" if may_branch else self._declined
            return self._said(f"{self.head}; it {declined}: {_reason(error, is_capture_fault(error))}")
        if needs_autograd(capture.library, leaves, capture):
            try:
                program = self.dispatcher.gradient_program(capture, leaves)
                return self._both(head, program, capture, leaves, spec)
            except CaptureError as error:
                state = "runs" if plan is not None else "would run"
                head = f"{name} {state} as written for such calls: {error}; without one it is compiled so"
        try:
            executable = self.dispatcher.compile(capture)
        except SetupError as error:
            return self._said(f"{name} can't be compiled here: {error}")
        except Exception as error:
            return self._said(f"{self.head}; it {self._declined}: {_reason(error, is_compile_fault(error))}")
        return self._program(head, capture, executable, leaves) + self._errors(capture, executable, leaves, spec)

    def _both(
        self, head: str, program: GradientProgram, capture: Capture | None, leaves: Sequence[Any], spec: CallSpec
    ) -> str:
        measured = "a forward and its backward are not measured\n" if self.wanted.measure else ""
        said = self._said(f"{head}, forward and backward\n\n{program.report()}{measured}")
        if capture is None or not self.wanted.errors:
            return said
        return said + "of a forward alone, " + self._errors(capture, self.dispatcher.compile(capture), leaves, spec)

    def _errors(self, capture: Capture, executable: Executable, leaves: Sequence[Any], spec: CallSpec) -> str:
        """What is said of the results' errors, where it is asked for; whatever is raised on the way is told."""
        if not self.wanted.errors:
            return ""
        try:
            found = output_errors(capture, executable, self.dispatcher.function, leaves, spec)
        except Exception as error:
            return f"errors against float64 can't be told: {described(error)}\n"
        return error_text(found)

    def _program(self, head: str, capture: Capture, executable: Executable, leaves: Sequence[Any]) -> str:
        measured, notes = None, list(capture.notes)
        if self.wanted.measure and any(isinstance(source, IntegerSource) for source in capture.sources):
            notes.append("a program for a range of integers is not measured")
        elif self.wanted.measure:
            sources = [argument_of(source) for source in capture.sources]
            try:
                measured = executable.profile([leaves[s] if isinstance(s, int) else s() for s in sources])
            except Exception as error:
                notes.append(f"it can't be measured: {described(error)}")
        eager = self.jitted.eager_calls if self.jitted is not None else {}
        return f"{head}\n\n" + tell_program(executable.program, notes, eager, measured, detail=self.wanted.detail)

    def _said(self, text: str) -> str:
        return f"{text}\n{_eager_lines(self.jitted)}"


def _reason(error: Exception, fault: bool) -> str:
    if isinstance(error, FusecError) and not fault:
        return str(error)
    if fault:
        return f"{fault_reason(error)}; please report it"
    return f"it raises {type(error).__name__}: {error}"
