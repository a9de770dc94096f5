# SPDX-License-Identifier: Apache-2.0
"""The code that a call runs: tests that this call is the one a plan was made for, then the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fusec.frontend.capture import (
    FAILED,
    ArgumentSource,
    Capture,
    Conditions,
    IntegerSource,
    Rebuild,
    ReferenceSource,
    Source,
    TableEntry,
    inputs_of,
)
from fusec.frontend.raw import has_slots, items_of, looks_up_plainly
from fusec.frontend.structures import Again, CallSpec, Integer, Node, Static, Structure, own_attributes
from fusec.runtime.arrays import Arrays
from fusec.runtime.code import Scope, indented, make_function, variable_of
from fusec.runtime.dynamic import Opening, is_open, opening_tests
from fusec.runtime.emit import ProgramWriter
from fusec.runtime.executable import Executable
from fusec.runtime.program import Call
from fusec.runtime.sharing import Sharing

MISS = object()
"""What an entry returns for a call that it was not made for."""

Entry = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_BY_VALUE = (int, str, bytes, type(None), type(...), range, bool)


class _EntryWriter:
    """Writes the tests of a call's structure; ``leaves`` are the variables of its arrays, in order."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.integers: dict[str, str] = {}
        self.containers: dict[int, str] = {}
        self._count = 0
        self.miss = scope.bind(MISS, "MISS")

    def call(self, spec: CallSpec) -> None:
        self.unless(f"len(kwargs) == {len(spec.kwargs)}" if spec.kwargs else "not kwargs")
        variables = [self._variable() for _ in spec.args]
        if variables:
            self.attempt([f"{', '.join(variables)}, = args"])
        else:
            self.unless("not args")
        for variable, part in zip(variables, spec.args, strict=True):
            self._part(variable, part)
        if spec.kwargs:
            self._named(spec.kwargs)

    def _named(self, parts: Sequence[tuple[str, Structure]]) -> None:
        """Arguments given by name, in the order of the call: a function of ``**named`` sees it."""
        names, variables = [self._variable() for _ in parts], [self._variable() for _ in parts]
        self.lines.append(f"{', '.join(names)}, = kwargs")
        self.unless(" and ".join(f"{v} == {name!r}" for v, (name, _) in zip(names, parts, strict=True)))
        self.lines.append(f"{', '.join(variables)}, = kwargs.values()")
        for variable, (_, part) in zip(variables, parts, strict=True):
            self._part(variable, part)

    def unless(self, condition: str) -> None:
        """Leaves with a miss where the condition does not hold."""
        if condition != "True":
            self.lines.append(f"if not ({condition}): return {self.miss}")

    def unless_arrays(self, condition: str) -> None:
        """The same where the condition may raise, for arguments that are no arrays at all."""
        self.attempt([f"if not ({condition}): return {self.miss}"])

    def attempt(self, lines: Sequence[str]) -> None:
        """Runs lines, and leaves with a miss where one raises."""
        self.lines += ["try:", *("    " + line for line in lines), f"except Exception: return {self.miss}"]

    def _variable(self) -> str:
        self._count += 1
        return f"a{self._count - 1}"

    def _unpack(self, source: str, parts: Sequence[Structure]) -> None:
        if not parts:
            return
        variables = [self._variable() for _ in parts]
        self.lines.append(f"{', '.join(variables)}, = {source}")
        for variable, part in zip(variables, parts, strict=True):
            self._part(variable, part)

    def _part(self, variable: str, part: Structure) -> None:
        if isinstance(part, Static):
            self._static(variable, part)
        elif isinstance(part, Integer):
            self._integer(variable, part)
        elif isinstance(part, Node):
            self._container(variable, part)
        elif isinstance(part, Again):
            known = self.leaves[part.number] if part.is_leaf else self.containers[part.number]
            self.unless(f"{variable} is {known}")
        else:
            self.leaves.append(variable)

    def _static(self, variable: str, part: Static) -> None:
        value = part.value
        kind = type(value)
        if value is None or value is ... or kind is bool:
            self.unless(f"{variable} is {value!r}" if value is not ... else f"{variable} is ...")
        elif kind in _BY_VALUE or (kind in (float, complex) and value and value == value):
            known = self.scope.bind(value, "value")
            self.unless(f"type({variable}) is {self.scope.bind(kind, kind.__name__)} and {variable} == {known}")
        else:  # zeros and NaNs among numbers, objects
            static = self.scope.bind(Static, "Static")
            known = self.scope.bind(part, "static")
            self.unless(f"{variable} is {self.scope.bind(value, 'value')} or {static}({variable}) == {known}")

    def _integer(self, variable: str, part: Integer) -> None:
        first = self.integers.setdefault(part.name, variable)
        kind = f"type({variable}) is {self.scope.bind(int, 'int')}"
        known = f"{variable} == {first}" if first != variable else f"{part.least} <= {variable} <= {part.most}"
        self.unless(f"{kind} and {known}")

    def _container(self, variable: str, part: Node) -> None:
        kind = self.scope.bind(part.kind, part.kind.__name__)
        self.unless(f"type({variable}) is {kind}")
        if part.number >= 0:
            self.containers[part.number] = variable
        if part.kind is dict:
            self._entries(variable, part)
        elif issubclass(part.kind, dict):
            inner = self._variable()
            self.lines.append(f"{inner} = dict({self.scope.bind(items_of, 'items_of')}({variable}))")
            self._entries(inner, replace(part, parts=part.parts[: len(part.keys)]))
            for attributes in part.parts[len(part.keys) :]:
                assert isinstance(attributes, Node), "attributes are a node"
                self._attributes(variable, part.kind, attributes)
        elif issubclass(part.kind, tuple | list):
            self.unless(f"len({variable}) == {len(part.parts)}")
            self._unpack(variable, part.parts)
        else:
            self._attributes(variable, part.kind, part)

    def _entries(self, variable: str, part: Node) -> None:
        self.unless(f"tuple({variable}) == {self.scope.bind(part.keys, 'keys')}")
        self._unpack(f"{variable}.values()", part.parts)

    def _attributes(self, variable: str, kind: type, part: Node) -> None:
        """The attributes of an object, and its slots."""
        inner = self._variable()
        if has_slots(kind) or not looks_up_plainly(kind):
            self.lines.append(f"{inner} = dict({self.scope.bind(own_attributes, 'attributes')}({variable}))")
        else:
            self.lines.append(f"{inner} = {variable}.__dict__")
        self._entries(inner, part)


def compiled_entry(
    executable: Executable,
    capture: Capture,
    spec: CallSpec,
    leaves: Sequence[Any],
    eager: Callable[..., Any],
    again: Callable[..., Any],
    opening: Opening | None = None,
    *,
    frequent: Callable[..., bool] | None = None,
    smaller: Sequence[tuple[int, Executable]] = (),
    other: Callable[[int], Entry | None] | None = None,
    owns: bool = False,
) -> Entry:
    """The entry that runs an executable for calls like the one of ``spec`` and ``leaves``.

    owns: arguments that come as a list are the entry's, which empties it, and lets go of each when it has been read.

    ``opening`` holds the shapes of the leaves where some extents are symbolic; integers of ``spec`` may be.
    ``frequent`` tells by the values of its symbols which calls it is not for all the same. ``smaller``: what runs calls
    instead the product of whose symbols is a number at most, the least number first. ``other``: from that product to
    the entry that is to take a call over, or None.

    ``eager(args, kwargs)`` takes over where a changed input shares memory with another, ``again(args, kwargs, error)``
    where the program has raised and has changed nothing yet: run as written, the call raises where the code does, and
    leaves what it had written by then.
    """
    arrays = executable.arrays
    conditions = capture.environment.conditions
    scope = Scope({} if conditions.guards is None else conditions.guards.objects)
    writer = _EntryWriter(scope)
    writer.call(spec)
    _check_conditions(writer, conditions)
    inputs = _check_arrays(writer, arrays, leaves, capture.sources, opening)
    _check_bare(writer, conditions)
    _check_apart(writer, conditions, leaves, inputs)
    if opening is not None and frequent is not None:
        values = ", ".join(variable_of(s) for s in opening.symbols)
        writer.unless(f"not {scope.bind(frequent, 'frequent')}({values})")
    ports = executable.program.input_ports
    among = [k for k, port in enumerate(ports) if port.role != "integer"]
    mutated = [port.mutates for port in executable.program.output_ports if port.mutates is not None]
    given = [inputs[k] for k in among]
    writer.lines += _clashes(arrays, scope, given, [among.index(k) for k in mutated], eager, fixed=opening is None)
    if opening is not None and (smaller or other is not None):
        writer.lines.append(f"_size = {' * '.join(variable_of(s) for s in opening.symbols)}")
    if other is not None:
        writer.lines += [
            f"_other = {scope.bind(other, 'other')}(_size)",
            "if _other is not None: return _other(args, kwargs)",
        ]

    def run(executable: Executable) -> list[str]:
        return _run(writer, executable, capture, inputs, again, owns)

    lines = list(writer.lines)
    for upto, program in smaller:
        lines += [f"if _size <= {upto}:", *indented(run(program))]
    return make_function(f"call_{executable.program.name}", ["args", "kwargs"], [*lines, *run(executable)], scope)


def _run(
    writer: _EntryWriter,
    executable: Executable,
    capture: Capture,
    inputs: Sequence[str],
    again: Callable[..., Any],
    owns: bool,
) -> list[str]:
    """Lines that run an executable and return what the function does."""
    scope = writer.scope
    free = [inputs[k] for k in executable.free_inputs]
    written = executable.write(scope, free, owned=owns)
    rebuild = scope.bind(capture.rebuild, "rebuild")
    followed = _followed(capture, written.results)
    containers = [writer.containers[number] for number in sorted(writer.containers)]
    also = f", [{', '.join(containers)}]" if capture.takes_given else ""
    result = None if capture.takes_given or capture.branches else _plain_result(capture.rebuild, written.results)
    if result is None:
        result = f"{rebuild}([{', '.join(written.results)}]{also})"
        result = f"{result} if {followed} else {writer.miss}" if followed else result
    lines: list[str] = []
    if not followed:
        watched = f"{scope.bind(executable, 'program')}.watched({', '.join(free)})"
        lines.append(f"if {executable.watch_test(scope)}: return {rebuild}({watched}{also})")
    if owns:
        lines.append(f"if type(args) is {scope.bind(list, 'list')}: args.clear()")
    return [*lines, *_attempted(executable, scope, written, f"return {result}", again)]


def _followed(capture: Capture, results: Sequence[str]) -> str:
    """The test that a call went the way of the capture; empty where that follows no branches."""
    asked = [(results[number], found) for number, found in capture.branches]
    return " and ".join(f"{result}.item() is {found}" for result, found in asked)


def _attempted(
    executable: Executable, scope: Scope, written: ProgramWriter, result: str, again: Callable[..., Any]
) -> list[str]:
    """The program's lines; where it makes library calls, those that change nothing may raise."""
    if not any(isinstance(step, Call) for step in executable.program.steps):
        return [*written.lines, result]
    first, rest = written.lines[: written.before_writes], [*written.lines[written.before_writes :], result]
    return [
        "try:",
        *indented(first),
        f"except {scope.bind(Exception, 'Exception')} as _raised:",
        "    _error = _raised",
        "else:",
        *indented(rest),
        f"return {scope.bind(again, 'again')}(args, kwargs, _error)",
    ]


def recorded_entry(
    run: Callable[..., Any],
    capture: Capture,
    spec: CallSpec,
    arrays: Arrays,
    leaves: Sequence[Any],
    eager: Callable[..., Any],
) -> Entry:
    """The entry that gives the inputs of what was recorded to ``run``, for calls like the one of ``spec`` and
    ``leaves``; ``eager`` as in :func:`compiled_entry`."""
    recorded = capture.recorded
    assert recorded is not None, "the function was recorded"
    conditions = capture.environment.conditions
    scope = Scope({} if conditions.guards is None else conditions.guards.objects)
    writer = _EntryWriter(scope)
    writer.call(spec)
    _check_conditions(writer, conditions)
    inputs = _check_arrays(writer, arrays, leaves, recorded.sources)
    _check_bare(writer, conditions)
    _check_apart(writer, conditions, leaves, inputs)
    for number, example in zip(recorded.changed, inputs_of([recorded.sources[k] for k in recorded.changed], leaves)):
        writer.unless(f"{inputs[number]}.is_leaf is {example.is_leaf}")  # autograd refuses changes of some leaves
    writer.lines += _clashes(arrays, scope, inputs, recorded.changed, eager, fixed=True)
    lines = [*writer.lines, f"return {scope.bind(run, 'run')}({', '.join(inputs)})"]
    return make_function("call_recorded", ["args", "kwargs"], lines, scope)


class _Paths:
    """Writes how what is taken by reference is fetched; the way to each module is gone once."""

    def __init__(self, scope: Scope, lines: list[str]) -> None:
        self._scope = scope
        self._lines = lines
        self._known: dict[tuple[object, ...], str] = {}

    def fetch(self, function: Callable[[], Any]) -> str:
        """The expression that fetches it; lines before it go to ``lines``."""
        if not isinstance(function, TableEntry):
            return f"{self._scope.bind(function, 'fetch')}()"
        module = self._module(function.root, function.steps)
        return f"{self._once((module, function.table), f'{module}.{function.table}')}[{function.name!r}]"

    def _module(self, root: Any, steps: tuple[str, ...]) -> str:
        if not steps:
            return self._scope.bind(root, "module")
        parent = self._module(root, steps[:-1])
        children = self._once((parent, "_modules"), f"{parent}._modules")
        return self._once((children, steps[-1]), f"{children}[{steps[-1]!r}]")

    def _once(self, key: tuple[object, ...], expression: str) -> str:
        if key not in self._known:
            self._known[key] = f"m{len(self._known)}"
            self._lines.append(f"{self._known[key]} = {expression}")
        return self._known[key]


def _check_conditions(writer: _EntryWriter, conditions: Conditions) -> None:
    for function, value in conditions.values:
        name = writer.scope.bind(function, getattr(function, "__name__", "function"))
        writer.unless(f"{name}() is {writer.scope.bind(value, 'known')}")
    if conditions.rest is not None:
        writer.unless(f"{writer.scope.bind(conditions.rest, 'holds')}()")
    if conditions.guards is not None:
        writer.attempt([line.replace(FAILED, writer.miss) for line in conditions.guards.lines])


def _check_bare(writer: _EntryWriter, conditions: Conditions) -> None:
    for number, name in conditions.bare:
        own = f"{writer.leaves[number]}.__dict__"
        writer.unless(f"not {own}" if name is None else f"{name!r} not in {own}")


def _check_apart(writer: _EntryWriter, conditions: Conditions, leaves: Sequence[Any], inputs: Sequence[str]) -> None:
    """Tests that arrays which the capture took for several objects are several, where code may ask for that."""
    if conditions.apart is None or not leaves:
        return
    given = list({id(leaf): variable for leaf, variable in zip(leaves, writer.leaves, strict=True)}.values())
    all_ids = [f"id({variable})" for variable in dict.fromkeys((*given, *(x for x in inputs if x[0] == "r")))]
    if conditions.apart:
        ids = f"{{{', '.join(f'id({variable})' for variable in given)}}}"
        writer.unless(f"{writer.scope.bind(conditions.apart, 'apart')}.isdisjoint({ids})")
    if len(all_ids) > 1:
        writer.unless(f"len({{{', '.join(all_ids)}}}) == {len(all_ids)}")


def variant_entry(
    executable: Executable,
    arguments: Sequence[int | Callable[[], Any]],
    rebuild: Rebuild,
    spec: CallSpec,
    leaves: Sequence[Any],
) -> Entry:
    """The entry that runs what was compiled ahead, for calls like the one of ``spec`` and ``leaves``.

    ``arguments``: for each input of the executable the number of a leaf, or the function that fetches it.
    """
    scope = Scope()
    writer = _EntryWriter(scope)
    writer.call(spec)
    if leaves:
        writer.unless_arrays(executable.arrays.check(scope, leaves, writer.leaves))
    inputs = [writer.leaves[a] if isinstance(a, int) else f"{scope.bind(a, 'fetch')}()" for a in arguments]
    made = f"{scope.bind(executable, 'program')}({', '.join(inputs)})"
    lines = [*writer.lines, f"return {scope.bind(rebuild, 'rebuild')}({made})"]
    return make_function(f"run_{executable.program.name}", ["args", "kwargs"], lines, scope)


class _Mark:
    """Stands for an output while a rebuild is looked at; ``[()]`` takes the element out of a 0-d array, and ``view()``
    makes another array object of the same memory."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def __getitem__(self, key: tuple[()]) -> _Mark:
        assert key == ()
        return _Mark(f"{self.expression}[()]")

    def view(self) -> _Mark:
        return _Mark(f"{self.expression}.view()")


def _plain_result(rebuild: Rebuild, results: Sequence[str]) -> str | None:
    """The user's result as an expression, where it is one output or a tuple or list of outputs; else None."""
    try:
        made = rebuild([_Mark(result) for result in results])
    except Exception:  # it does more to an array than a mark can show
        return None
    if isinstance(made, _Mark):
        return made.expression
    if type(made) in (tuple, list) and all(isinstance(part, _Mark) for part in made):
        views = [id(part) for part in made if part.expression.endswith(".view()")]
        if len(set(views)) < len(views):  # one object twice
            return None
        inner = "".join(f"{part.expression}, " for part in made)
        return f"({inner})" if type(made) is tuple else f"[{inner}]"
    return None


def eager_entry(
    arrays: Arrays, spec: CallSpec, leaves: Sequence[Any], eager: Callable[..., Any], sources: Sequence[Source] = ()
) -> Entry:
    """The entry that runs calls like this one as the user wrote them, while ``sources`` keep their layouts."""
    scope = Scope()
    writer = _EntryWriter(scope)
    writer.call(spec)
    _check_arrays(writer, arrays, leaves, sources)
    lines = [*writer.lines, f"return {scope.bind(eager, 'eager')}(args, kwargs)"]
    return make_function("call_eager", ["args", "kwargs"], lines, scope)


def _check_arrays(
    writer: _EntryWriter,
    arrays: Arrays,
    leaves: Sequence[Any],
    sources: Sequence[Source],
    opening: Opening | None = None,
) -> list[str]:
    """Fetches what is taken by reference, tests all layouts, and returns the variable of each source."""
    scope = writer.scope
    shapes = opening.shapes if opening is not None else [()] * len(leaves)
    given = list(zip(leaves, writer.leaves, shapes, strict=True))
    examples = [leaf for leaf, _, shape in given if not is_open(shape)]
    variables = [variable for _, variable, shape in given if not is_open(shape)]
    first: dict[int, str] = {}
    for leaf, variable in zip(leaves, writer.leaves, strict=True):
        if (known := first.setdefault(id(leaf), variable)) != variable:
            writer.unless(f"{variable} is {known}")
    for number, (leaf, variable, shape) in enumerate(given):
        if is_open(shape):
            assert opening is not None
            symbolic = [not isinstance(n, int) for n in shape]
            writer.unless_arrays(arrays.check_kind(scope, leaf, variable, symbolic, number not in opening.steps))
    for test in opening_tests(opening, writer.leaves) if opening is not None else ():
        writer.unless(test)
    inputs: list[str] = []
    fetches: list[str] = []
    paths = _Paths(scope, fetches)
    for number, source in enumerate(sources):
        match source:
            case ArgumentSource(index):
                inputs.append(writer.leaves[index])
            case IntegerSource(name):
                inputs.append(writer.integers[name])
            case ReferenceSource():
                variable = f"r{number}"
                fetches.append(f"{variable} = {paths.fetch(source.fetch)}")
                inputs.append(variable)
                variables.append(variable)
                examples.append(source.fetch())
    if fetches:
        writer.attempt(fetches)
    writer.unless_arrays(arrays.check(scope, examples, variables))
    return inputs


def _clashes(
    arrays: Arrays,
    scope: Scope,
    inputs: Sequence[str],
    mutated: Sequence[int],
    eager: Callable[..., Any],
    *,
    fixed: bool,
) -> list[str]:
    """Lines that give way to eager where a mutated input, by its number, shares memory with another input."""
    if not mutated or len(inputs) == 1:
        return []
    shares = Sharing(arrays, sorted(set(mutated)), fixed=fixed)
    given = ", ".join(inputs)
    return [f"if {scope.bind(shares, 'shares')}({given}): return {scope.bind(eager, 'eager')}(args, kwargs)"]
