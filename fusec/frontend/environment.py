# SPDX-License-Identifier: Apache-2.0
"""What a traced function read besides its tensors, so that a changed closure cell, global or attribute is seen.

While the function runs, a profile hook notes which of the user's code objects ran and with which arguments.
Afterwards their bytecode says which globals, closure cells and attribute names they read. From those roots the
values are walked, and each becomes a guard: a scalar by value and type, a function by its code and defaults, an
object by identity (held weakly) with the attributes that were read. The guards are compiled to one Python function,
so that checking costs some tens of nanoseconds each.

Values after the run are what is guarded. Tensors are not: the frontends lift them by reference.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from contextvars import ContextVar, Token
from functools import cached_property
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

import numpy as np

from fusec.errors import UnsupportedOpError
from fusec.frontend.capture import Conditions
from fusec.frontend.cells import content_of, imported
from fusec.frontend.finalizers import is_finalized, made_of, refuse_finalized
from fusec.frontend.garbage import collect_while, made_lately
from fusec.frontend.guard_code import GuardCode
from fusec.frontend.guards import GuardWriter
from fusec.frontend.insides import MISSING
from fusec.frontend.kinds import Kinds, StandIn
from fusec.frontend.loads import Loads, loads_of, names_read
from fusec.frontend.output import (
    FINALIZE,
    IN_C,
    IN_PYTHON,
    Rearmed,
    Streams,
    refuse_output,
    refuse_output_in_c,
    refuse_partial_prints,
)
from fusec.frontend.plain import is_plain
from fusec.frontend.raw import is_a
from fusec.frontend.readings import RUNNING
from fusec.frontend.results import leads_to
from fusec.frontend.side_effects import LOCKS, Snapshots
from fusec.frontend.source import code_location, is_user_file, user_location
from fusec.frontend.stand_in_types import is_stand_in_type
from fusec.frontend.state_errors import MemoFilledError, StateChangedError

_KINDS = {"int", "__name__", "__qualname__"}

Hook = Callable[[FrameType, str, object], None]
Asked = Mapping[object, tuple[str, Callable[[], object] | None]]
_NONE: Asked = {}

_HOOK: ContextVar[Hook | None] = ContextVar("fusec_hook", default=None)
"""The profile hook of the capture that runs, where nobody else's is called along."""


class Environment:
    """The guards of one capture.

    ``holds()`` is True while everything that the capture read is as it was then. It is a plain function, fast and
    safe to call from any thread; a call's code holds the same tests itself (``conditions``).
    """

    def __init__(self, code: GuardCode, apart: frozenset[int] | None = None) -> None:
        self._code = code
        self._apart = apart

    @cached_property
    def holds(self) -> Callable[[], bool]:
        return self._code.compile_check()

    def __len__(self) -> int:
        """Number of guards."""
        return self._code.count

    @property
    def conditions(self) -> Conditions:
        return Conditions((), None, self._code.written(), apart=self._apart)

    def why_changed(self) -> str:
        """The first thing found changed, such as ``global SCALE: was 2.0, now 3.0``; empty when nothing is."""
        return self._code.explain()


class Unwatched:
    """A context for a library's own code, in which none of the user's runs: the hook would see each call in it.

    An operation on fake tensors is some 2,000 calls, and the hook takes longer than they do.
    """

    __slots__ = ("_hook",)

    def __enter__(self) -> None:
        self._hook = _HOOK.get()
        if self._hook is not None and sys.getprofile() is self._hook:
            sys.setprofile(None)
        else:
            self._hook = None

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            sys.setprofile(self._hook)


class Recorder:
    """Notes the user's code that runs in this thread while it is entered as a context."""

    def __init__(
        self,
        root: Callable[..., object],
        args: Iterable[object],
        holds_arrays: bool,
        asked: Asked,
        hashing: CodeType | None,
    ) -> None:
        self._root = root
        self._args = list(args)
        self._frames: dict[tuple[int, int], tuple[CodeType, dict[str, object]]] = {}
        self._seen: dict[int, object] = {}
        self._closures: dict[int, dict[tuple[int, ...], tuple[object, ...]]] = {}
        """By code object: what the cells of its functions held that ran."""
        self._pins: list[tuple[str, Callable[[], object], object]] = []
        self._layouts: list[tuple[str, Callable[[], object], object]] = []
        self._same: list[tuple[str, Callable[[], object], object]] = []
        self._previous: Any = None
        self._token: Token[Hook | None]
        self._holds_arrays = holds_arrays
        self._settings = asked
        self._hashing = hashing
        self._asked: dict[str, Callable[[], object]] = {}
        self._before = Snapshots(is_plain, holds_arrays)
        self._kinds = Kinds()
        self._rearmed = Rearmed()
        self._refusal: UnsupportedOpError | None = None
        self._root_code = _code_of(root)
        self._root_file = self._root_code.co_filename if self._root_code is not None else ""

    def __enter__(self) -> Recorder:
        for position, value in enumerate(self._args):
            self._before.hold(value, f"argument {position}")
        owner = getattr(self._root, "__self__", None if isinstance(self._root, FunctionType) else self._root)
        self._before.hold(owner, "self")
        self._previous = sys.getprofile()
        hook = self._make_hook()
        self._token = _HOOK.set(None if callable(self._previous) else hook)
        sys.setprofile(hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rearmed.leave()
        _HOOK.reset(self._token)
        sys.setprofile(None)
        if hasattr(self._previous, "enable"):  # a C profiler such as cProfile.Profile
            self._previous.enable()
        elif self._previous is not None:
            sys.setprofile(self._previous)
        self._previous = None
        self._kinds.leave()
        if error is not None or self._refusal is not None:
            self._before.take_all_back()
        del traceback  # so that what the run made, such as a progress bar, is gone before the call runs as written
        if self._refusal is not None and (error is None or isinstance(error, Exception)):
            raise self._refusal.with_traceback(None) from None

    def _make_hook(self) -> Hook:
        theirs: dict[str, bool] = {self._root_file: True}
        chained = self._previous if callable(self._previous) else None
        enter, rearmed, streams = self._enter, self._rearmed, Streams()
        settings, asked, hashing = self._settings, self._asked, self._hashing

        def hook(frame: FrameType, event: str, arg: Any) -> None:
            try:
                if event == "call":
                    code = frame.f_code
                    mine = theirs.get(code.co_filename)
                    if mine is None:
                        mine = theirs[code.co_filename] = is_user_file(code.co_filename)
                    if code.co_name in IN_PYTHON or code is FINALIZE:
                        refuse_output(frame)
                    if code is hashing:
                        _refuse_hash(frame)
                    if mine:
                        enter(frame)
                elif event == "c_call":
                    if arg in IN_C or streams[type(arg.__self__)]:
                        refuse_output_in_c(frame, arg)
                    elif type(arg.__self__) in LOCKS:
                        self._before.note_lock(frame, arg)
                    elif arg in settings:
                        name, read = settings[arg]
                        if read is None:
                            raise UnsupportedOpError(f"the function changes {name}", user_location(frame))
                        asked[name] = read
            except UnsupportedOpError as error:  # the function may handle it, and go on
                self._refusal = self._refusal or error
                rearmed.after_error(frame if event == "c_call" else frame.f_back, hook)
                raise
            if chained is not None:
                chained(frame, event, arg)

        return hook

    def _enter(self, frame: FrameType) -> None:
        """A call of the user's code."""
        code = frame.f_code
        if code.co_filename == "<string>" and _is_generated(frame.f_globals):
            return
        is_first = (id(code), id(frame.f_globals)) not in self._frames
        if is_first:
            self._frames[id(code), id(frame.f_globals)] = (code, frame.f_globals)
            _refuse_tests_of_kind(code)
        if is_first or code.co_freevars:
            self._see_code(frame, is_first)
        self._see_arguments(frame)

    def _see_code(self, frame: FrameType, is_first: bool) -> None:
        if is_first:
            refuse_partial_prints(frame)
            refuse_finalized(frame)
            self._before.see(frame, is_root=frame.f_code is self._root_code)
        elif frame.f_code.co_freevars:
            self._before.see_closure(frame)
        if frame.f_code.co_freevars:
            held = frame.f_locals
            cells = tuple(held.get(name, MISSING) for name in frame.f_code.co_freevars)
            self._closures.setdefault(id(frame.f_code), {})[tuple(map(id, cells))] = cells
        if not hasattr(frame.f_globals, "original"):  # in a scope for NumPy, names have their meaning
            self._kinds.enter(frame.f_code, frame.f_globals, frame.f_locals)

    def _see_arguments(self, frame: FrameType) -> None:
        code = frame.f_code
        values = frame.f_locals
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = values.get(name)
            if id(value) not in self._seen:
                if is_finalized(type(value)) and made_lately()(value):
                    raise made_of(type(value).__name__, code)
                self._kinds.check(code, name, value)
                self._seen[id(value)] = value
                self._before.hold(value)

    def pin(self, path: str, read: Callable[[], object], value: object) -> None:
        """Guards the contents of a value that the capture took as a constant, such as an array used as a shape."""
        self._pins.append((path, read, value))

    def pin_layout(self, path: str, read: Callable[[], object], value: object) -> None:
        """Guards the dtype, shape and strides of an array that is fetched anew at each call."""
        self._layouts.append((path, read, value))

    def pin_identity(self, path: str, read: Callable[[], object], value: object) -> None:
        """Guards that an array which no call fetches stays the same object, where code may ask for that."""
        self._same.append((path, read, value))

    def outlasting(self) -> set[int]:
        """The ids of what is known to have been there before the run, or to stay after it."""
        return self._before.outlasting() | set(map(id, self._args))

    def let_go(self, values: Iterable[object]) -> None:
        """What the run got copies of, which are no state: what it changed in them is known."""
        self._before.let_go(values)

    def finish(
        self,
        *,
        is_tensor: Callable[[object], bool],
        is_input: Callable[[object], bool] = lambda value: True,
        graded: bool = False,
        leaves: Iterable[object] = (),
        reached: Callable[[], Iterable[object]] = tuple,
        followed: Container[int] = (),
    ) -> Environment:
        """The guards of what was read. ``is_tensor`` says which values the frontend lifts by reference instead, where
        the function computes with them (``is_input``). ``graded``: a backward is made of it.

        ``leaves`` are the call's arrays, each once, ``reached`` gives those that the function can reach besides: where
        code may ask which are one object, UnsupportedOpError for one that is both.
        ``followed`` has the ids of functions whose results a cache keeps, and which calls make anew.
        """
        self._before.forget_stand_ins()
        loads = {key: loads_of(code) for key, (code, _) in self._frames.items()}
        root_function = unwrap(self._root)
        if isinstance(root_function, FunctionType):
            code = root_function.__code__
            self._frames.setdefault((id(code), id(root_function.__globals__)), (code, root_function.__globals__))
            loads.setdefault((id(code), id(root_function.__globals__)), loads_of(code))
        names = names_read(loads.values(), {key[0] for key in self._frames})
        writer = GuardWriter(names, is_tensor, is_input, graded)
        for path, read, value in (*self._pins, *((path, read, read()) for path, read in self._asked.items())):
            writer.pin(path, read, value)
        for path, read, value in self._layouts:
            writer.pin_layout(path, read, value)
        for path, read, value in self._same if names.identity else ():
            writer.pin_identity(path, read, value)
        self._visit_roots(writer)
        for key, (code, namespace) in self._frames.items():
            original = getattr(namespace, "original", namespace)
            for name in sorted(loads[key].globals):
                writer.visit_global(original, name)
            for module in imported(code, original):
                writer.visit_object(module, f"module {module.__name__}")
        self._visit_cells(writer, loads)
        remembered = list(self._before.remembered())
        self._refuse_changes(writer, is_tensor, followed)
        for path, kept in remembered:
            writer.visit_remembered(kept, path)
        self._visit_seen(writer)
        writer.forget()
        apart = self._apart_from(leaves, reached()) if names.identity else None
        return Environment(writer.code, apart)

    def _apart_from(self, leaves: Iterable[object], reached: Iterable[object]) -> frozenset[int]:
        """The ids of what is reached, which no argument may be: what stands for both is two objects."""
        others = list(map(id, reached))
        known = [*map(id, leaves), *others]
        if len(set(known)) < len(known):
            where = code_location(self._root_code) if self._root_code is not None else None
            raise UnsupportedOpError("the function may ask which of its arrays are one object, and some are", where)
        return frozenset(others)

    def _refuse_changes(
        self, writer: GuardWriter, is_array: Callable[[object], bool], followed: Container[int]
    ) -> None:
        """StateChangedError where the run changed Python state that outlives it, which then is as it was before."""
        stands = is_array if self._holds_arrays else _is_stand_in
        remembers, calls = self._before.fresh_calls(
            lambda value: leads_to(value, stands),
            lambda value: leads_to(value, lambda part: is_array(part) or is_a(part, np.ndarray)),
            self._is_lasting,
        )
        if not remembers and not self._holds_arrays:
            remembers = self._before.called_for_arrays(
                lambda value: leads_to(value, lambda part: is_a(part, np.ndarray)), followed
            )
        changed, counters = self._before.take_back(writer.paths, writer.cells, is_array)
        self._before = Snapshots(is_plain, self._holds_arrays)  # the old one keeps alive what was made during the run
        if changed:
            code = _code_of(self._root)
            raise StateChangedError(changed, code_location(code) if code is not None else None, counters)
        if remembers:
            where = code_location(self._root_code) if self._root_code is not None else None
            raise MemoFilledError(remembers, calls, where)

    def _is_lasting(self, value: object) -> bool:
        """Whether a value is the same in a run and outside of it."""
        if is_plain(value) or is_a(value, type, np.dtype):
            return True
        torch = sys.modules.get("torch")
        return (torch is not None and is_a(value, torch.nn.Module)) or id(value) in self.outlasting()

    def _visit_roots(self, writer: GuardWriter) -> None:
        root = self._root
        owner = getattr(root, "__self__", None)
        if owner is not None:
            writer.visit_object(owner, "self")
        if isinstance(root, FunctionType):
            writer.visit_held(root, root.__qualname__)
        elif owner is None:
            writer.visit_object(root, "self")
        for position, value in enumerate(self._args):
            writer.visit_object(value, f"argument {position}")

    def _visit_cells(self, writer: GuardWriter, loads: Mapping[tuple[int, int], Loads]) -> None:
        """Cells of functions that ran but that no name led to, such as those kept by a decorator's wrapper."""
        inner = {id(c) for code, _ in self._frames.values() for c in code.co_consts if isinstance(c, CodeType)}
        for key, (code, _) in self._frames.items():
            if key[0] in writer.functions_visited or key[0] in inner or not loads[key].cells - {"__class__"}:
                continue
            for candidate in self._functions_of(code):
                writer.visit_held(candidate, candidate.__qualname__)
        self._closures.clear()

    def _functions_of(self, code: CodeType) -> list[FunctionType]:
        """The functions of a code object that ran, by what their cells hold: a decorator's wrappers have one code for
        hundreds. All of them where one of those that ran is not found so."""
        functions = [f for f in gc.get_referrers(code) if is_a(f, FunctionType) and f.__code__ is code]
        functions = [f for f in functions if not hasattr(f.__globals__, "original")]  # the copy that a frontend ran
        ran = self._closures.get(id(code), {})
        by_cells: dict[tuple[int, ...], list[FunctionType]] = {}
        for f in functions:
            by_cells.setdefault(tuple(id(content_of(cell)) for cell in f.__closure__ or ()), []).append(f)
        if not ran or not all(cells in by_cells for cells in ran):
            return functions
        return [f for cells in ran for f in by_cells[cells]]

    def _visit_seen(self, writer: GuardWriter) -> None:
        """Objects whose methods ran but that no name led to. One made during the run is dropped: it is gone by now."""
        references: list[weakref.ref[object]] = []
        lately: list[weakref.ref[object]] = []
        is_new = made_lately()
        for value in self._seen.values():
            try:
                references.append(weakref.ref(value))
            except TypeError:
                continue
            if is_new(value):
                lately.append(references[-1])
        self._seen.clear()
        value = None

        def some_are_left() -> bool:
            return any((value := r()) is not None and not writer.has_met(value) for r in lately)

        collect_while(some_are_left)
        for reference in references:
            value = reference()
            if value is not None and not is_a(value, FunctionType, type):
                writer.visit_object(value, type(value).__qualname__)


def _refuse_hash(frame: FrameType) -> None:
    """UnsupportedOpError where the user's code has the hash taken of what stands for an array."""
    caller = frame.f_back
    stands = is_stand_in_type(type(frame.f_locals.get("self")))
    if caller is not None and stands and is_user_file(caller.f_code.co_filename):
        raise UnsupportedOpError("a tensor is looked up by its identity, as a key", user_location(frame))


def _is_stand_in(value: object) -> bool:
    return issubclass(type(value), StandIn)


def _code_of(root: Callable[..., object]) -> CodeType | None:
    """The code of a function, of a method, or of a module's ``forward``."""
    function = unwrap(root)
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "forward", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _refuse_tests_of_kind(code: CodeType) -> None:
    """An integer that is followed is none to ``type(n) is int``, and no run can tell that it was asked so."""
    running = RUNNING.get()
    if running is not None and running.follows and "type" in code.co_names and not _KINDS.isdisjoint(code.co_names):
        running.refuse("type() of it is asked, perhaps")


def _is_generated(namespace: Mapping[str, object]) -> bool:
    """Whether code without a file was made by a library: a dataclass's ``__init__``, a named tuple's ``__new__``."""
    return "__file__" in namespace or str(namespace.get("__name__", "")).startswith("namedtuple_")


def unwrap(function: Callable[..., object]) -> object:
    """The plain function under a bound method."""
    return getattr(function, "__func__", function)


def record_environment(
    root: Callable[..., object],
    args: Iterable[object] = (),
    *,
    holds_arrays: bool = False,
    asked: Asked = _NONE,
    hashing: CodeType | None = None,
) -> Recorder:
    """A context in which ``root(*args)`` is to be run once; then ``finish`` gives what the run read.

    With ``holds_arrays`` NumPy's arrays are state that it may not change. ``asked``: a library's functions in C that
    tell of its settings, each with the setting's name and what gives it; those that code calls are guarded. One with
    nothing that gives it changes the setting, and is refused.
    ``hashing`` is the code that gives an array's hash, by which the user's code may look up what it knows of the array.
    A profiler that is set stays set and is called along. Only the thread that enters is watched.
    """
    return Recorder(root, args, holds_arrays, asked, hashing)
