# SPDX-License-Identifier: Apache-2.0
"""A program as JSON and back. Kernels keep their names and figures; their bodies are machine code elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from fusec.errors import ArtifactError, ParseError
from fusec.ir.attributes import ExternAttributes, Scalar
from fusec.ir.index import Symbol, bounds, symbol, symbols_of
from fusec.ir.index_text import parse_index
from fusec.ir.nodes import InputRole, Port
from fusec.ir.types import DTYPES, Dim, TensorType
from fusec.location import Location
from fusec.options import PRECISIONS, Precision
from fusec.runtime.program import (
    Call,
    Choice,
    Declined,
    FusedOp,
    KernelReport,
    Launch,
    Pack,
    Program,
    Slot,
    SlotKind,
    Step,
)
from fusec.tile.kernel import Kernel
from fusec.tile.scalar import Buffer

Json = Any
_SLOT_KINDS = ("input", "output", "workspace", "packed", "extern", "view", "constant")
_ROLES = ("argument", "parameter", "state", "static", "integer")
_DIMENSION_LIMIT = 1 << 62
_EXPRESSION_LIMIT = 1000


def program_to_json(program: Program, locations: Sequence[Location] = ()) -> Json:
    """The program as lists, dicts, strings and numbers. Extents that hold symbols are text.

    Lines of source are written as numbers into ``locations``, followed by those that are not in it.
    """
    numbers = {location: number for number, location in enumerate(locations)}
    return {
        "name": program.name,
        "target": program.target,
        "symbols": symbols_to_json(symbols_of_program(program)),
        "slots": [_slot_to(s) for s in program.slots],
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "input_ports": [_port_to(p) for p in program.input_ports],
        "output_ports": [_port_to(p) for p in program.output_ports],
        "kernels": [_kernel_to(k) for k in program.kernels],
        "steps": [_step_to(s, numbers) for s in program.steps],
        "reports": [_report_to(r, numbers) for r in program.reports],
        "declined": [[d.rule, d.reason, _location_to(d.location, numbers)] for d in program.declined],
        "choices": [[c.group, c.chosen, c.measured] for c in program.choices],
        "overhead": program.overhead,
        **({} if program.precision == "ieee" else {"precision": program.precision}),
        "locations": [[location.file, location.line] for location in numbers],
    }


def program_from_json(data: Json, locations: Sequence[Location] | None = None) -> Program:
    """The program that :func:`program_to_json` wrote. ``locations`` stand in for those written, in their order.

    Everything is checked: a slot that names a slot that is not there, or a kind that does not exist, is an
    ArtifactError, and not a crash when the program runs.
    """
    try:
        if locations is None:
            locations = [Location(str(f), int(n)) for f, n in data["locations"]]
        symbols = symbols_from_json(data["symbols"])
        program = Program(
            str(data["name"]),
            str(data["target"]),
            tuple(_slot_from(s, symbols) for s in data["slots"]),
            _numbers(data["inputs"]),
            _numbers(data["outputs"]),
            tuple(_port_from(p, symbols) for p in data["input_ports"]),
            tuple(_port_from(p, symbols) for p in data["output_ports"]),
            tuple(_kernel_from(k, symbols) for k in data["kernels"]),
            tuple(_step_from(s, locations, symbols) for s in data["steps"]),
            tuple(_report_from(r, locations) for r in data["reports"]),
            tuple(Declined(str(d[0]), str(d[1]), _location_from(d[2], locations)) for d in data["declined"]),
            tuple(map(_choice_from, data["choices"])),
            float(data.get("overhead", 0.0)),
            _precision_from(data.get("precision", "ieee")),
        )
        _check(program)
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(f"a program record is damaged: {type(error).__name__}: {error}") from None
    return program


def _check(program: Program) -> None:
    """Every number of a slot is that of a slot, views end, kernels exist."""
    count = len(program.slots)
    used = [*program.inputs, *program.outputs]
    names = {kernel.name for kernel in program.kernels}
    for step in program.steps:
        used += step.arguments
        if isinstance(step, Call):
            used += step.results
        elif step.kernel not in names:
            raise ArtifactError(f"a step runs kernel {step.kernel!r}, which is not there")
    if any(not 0 <= slot < count for slot in used):
        raise ArtifactError("a step or an output names a slot that is not there")
    for number, slot in enumerate(program.slots):
        if slot.kind == "view" and not 0 <= slot.source < count:
            raise ArtifactError(f"view {slot.name!r} is of a slot that is not there")
        seen = {number}
        while slot.kind == "view":
            if slot.source in seen:
                raise ArtifactError(f"view {slot.name!r} is a view of itself")
            seen.add(slot.source)
            slot = program.slots[slot.source]
    if len(program.inputs) != len(program.input_ports) or len(program.outputs) != len(program.output_ports):
        raise ArtifactError("inputs or outputs do not match their ports")
    if any(port.mutates is not None and port.mutates >= len(program.inputs) for port in program.output_ports):
        raise ArtifactError("an output changes an input that is not there")


# Parts


def _precision_from(data: Json) -> Precision:
    if data not in PRECISIONS:
        raise ArtifactError(f"there is no precision {str(data)[:40]!r}")
    return cast(Precision, data)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    made = tuple(values)
    if any(type(v) is not int or abs(v) > _DIMENSION_LIMIT for v in made):
        raise ArtifactError(f"{values!r} are not integers")
    return made


def _number(value: Any) -> int:
    return _numbers([value])[0]


def _location_to(location: Location | None, numbers: dict[Location, int]) -> int | None:
    return None if location is None else numbers.setdefault(location, len(numbers))


def _location_from(number: int | None, locations: Sequence[Location]) -> Location | None:
    return None if number is None else locations[number]


Symbols = Mapping[str, Symbol]
"""The symbols of a program by name."""

NO_SYMBOLS: Symbols = {}


def symbols_of_program(program: Program) -> Symbols:
    """The symbolic extents of a program: those of its inputs."""
    found = (s for slot in program.inputs for n in program.slots[slot].type.shape for s in symbols_of(n))
    return {s.name: s for s in sorted(found, key=lambda s: s.name)}


def symbols_to_json(symbols: Symbols) -> Json:
    return {name: list(bounds(s)) for name, s in symbols.items()}


def symbols_from_json(data: Json) -> Symbols:
    found: dict[str, Symbol] = {}
    for name, (low, high) in dict(data).items():
        if not str(name).isidentifier() or not 1 <= _number(low) <= _number(high):
            raise ArtifactError(f"symbol {str(name)[:40]!r} has the range [{low}, {high}]")
        found[str(name)] = symbol(str(name), low, high)
    return found


def dims_to_json(dims: Sequence[Dim]) -> Json:
    """Integers, and index expressions as text."""
    return [d if isinstance(d, int) else str(d) for d in dims]


def dims_from_json(data: Json, symbols: Symbols) -> tuple[Dim, ...]:
    """What :func:`dims_to_json` wrote. ArtifactError for an expression of other symbols, or without bounds."""
    return tuple(_number(v) if not isinstance(v, str) else _dim_from(v, tuple(symbols.items())) for v in data)


@lru_cache(1024)
def _dim_from(value: str, known: tuple[tuple[str, Symbol], ...]) -> Dim:
    symbols = dict(known)
    if len(value) > _EXPRESSION_LIMIT:
        raise ArtifactError(f"an extent of {len(value)} characters")

    def lookup(name: str) -> Symbol:
        if name not in symbols:
            raise ArtifactError(f"there is no symbol {name[:40]!r}")
        return symbols[name]

    try:
        dim = parse_index(value, lookup)
    except (ParseError, ZeroDivisionError) as error:
        raise ArtifactError(f"not an extent: {error}") from None
    low, high = bounds(dim)
    if low is None or high is None or abs(low) > _DIMENSION_LIMIT or high > _DIMENSION_LIMIT:
        raise ArtifactError(f"{dim} is not an extent")
    return dim


def type_to_json(type: TensorType) -> Json:
    return [type.dtype.name, dims_to_json(type.shape), type.device]


def type_from_json(data: Json, symbols: Symbols = NO_SYMBOLS) -> TensorType:
    dtype, shape, device = data
    dims = dims_from_json(shape, symbols)
    if any((bounds(n)[0] or 0) < 0 for n in dims):
        raise ArtifactError(f"shape {shape} has a negative extent")
    return TensorType(DTYPES[dtype], dims, str(device))


def _slot_to(slot: Slot) -> Json:
    value = scalar_to_json(slot.value)
    (offset,) = dims_to_json([slot.offset])
    return [slot.name, slot.kind, type_to_json(slot.type), dims_to_json(slot.strides), slot.source, offset, value]


def _slot_from(data: Json, symbols: Symbols) -> Slot:
    name, kind, type, strides, source, offset, value = data
    if kind not in _SLOT_KINDS:
        raise ArtifactError(f"there is no slot kind {kind!r}")
    found = type_from_json(type, symbols)
    laid = dims_from_json(strides, symbols)
    (first,) = dims_from_json([offset], symbols)
    if len(laid) != found.rank:
        raise ArtifactError(f"slot {name!r} has {found.rank} axes and {len(laid)} strides")
    return Slot(str(name), cast(SlotKind, kind), found, laid, _number(source), first, scalar_from_json(value))


def scalar_to_json(value: Scalar | None) -> Json:
    """JSON has no complex numbers, infinities or NaN; those are written as text."""
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def scalar_from_json(data: Json) -> Scalar | None:
    if isinstance(data, Mapping):
        if "complex" in data:
            real, imag = data["complex"]
            return complex(float(real), float(imag))
        return float(data["float"])
    if data is not None and type(data) not in (bool, int, float):
        raise ArtifactError(f"{data!r} is not a number")
    return cast("Scalar | None", data)


def _port_to(port: Port) -> Json:
    strides = None if port.strides is None else dims_to_json(port.strides)
    return [strides, port.offset, port.role, port.path, port.mutates]


def _port_from(data: Json, symbols: Symbols) -> Port:
    strides, offset, role, path, mutates = data
    if role not in _ROLES:
        raise ArtifactError(f"there is no input role {role!r}")
    return Port(
        None if strides is None else dims_from_json(strides, symbols),
        _number(offset),
        cast(InputRole, role),
        str(path),
        None if mutates is None else _number(mutates),
    )


def _kernel_to(kernel: Kernel) -> Json:
    parameters = [[p.name, p.dtype.name, dims_to_json(p.shape), dims_to_json(p.strides)] for p in kernel.parameters]
    return [
        kernel.name,
        kernel.kind,
        parameters,
        kernel.outputs,
        kernel.flops,
        kernel.bytes,
        [s.name for s in kernel.sizes],
    ]


def _kernel_from(data: Json, symbols: Symbols) -> Kernel:
    name, kind, parameters, outputs, flops, nbytes, sizes = data
    made = tuple(
        Buffer(str(n), DTYPES[d], dims_from_json(shape, symbols), dims_from_json(strides, symbols))
        for n, d, shape, strides in parameters
    )
    given = tuple(symbols[str(n)] for n in sizes)
    return Kernel(str(name), str(kind), made, _number(outputs), (), _number(flops), _number(nbytes), sizes=given)


def _step_to(step: Step, numbers: dict[Location, int]) -> Json:
    match step:
        case Launch():
            return ["launch", step.kernel, list(step.arguments), step.group]
        case Pack():
            return ["pack", step.kernel, list(step.arguments), step.cacheable]
        case Call(attributes, arguments, results, location):
            types = [type_to_json(t) for t in attributes.types]
            record = [attributes.target, attributes.arguments, types, attributes.reason]
            more = [list(attributes.strided), list(attributes.orders), list(attributes.positions)]
            record += more if any(more) else []
            return ["call", record, list(arguments), list(results), _location_to(location, numbers)]


def _step_from(data: Json, locations: Sequence[Location], symbols: Symbols) -> Step:
    match data:
        case ["launch", str(kernel), arguments, str(group)]:
            return Launch(kernel, _numbers(arguments), group)
        case ["pack", str(kernel), arguments, bool(cacheable)]:
            return Pack(kernel, _numbers(arguments), cacheable)
        case ["call", [target, text, types, reason, *more], arguments, results, location]:
            made = tuple(type_from_json(t, symbols) for t in types)
            strided, orders, standing = map(_numbers, [*more, [], [], []][:3])
            named = (str(target), str(text), made, str(reason))
            record = ExternAttributes(*named, strided, orders, positions=standing)
            return Call(record, _numbers(arguments), _numbers(results), _location_from(location, locations))
    raise ArtifactError(f"there is no step such as {str(data)[:80]}")


def _report_to(report: KernelReport, numbers: dict[Location, int]) -> Json:
    return {
        "kernel": report.kernel,
        "kind": report.kind,
        "fused": [[str(o), _location_to(o.location, numbers)] for o in report.fused],
        "schedule": [[name, value] for name, value in report.schedule],
        "flops": report.flops,
        "bytes": report.bytes,
        "predicted": report.predicted,
        "limit": report.limit,
        "bound": report.bound,
        "parts": [[name, seconds] for name, seconds in report.parts],
    }


def _choice_from(data: Json) -> Choice:
    group, chosen, measured = data
    found = tuple((str(t), None if s is None else float(s), str(why)) for t, s, why in measured)
    return Choice(str(group), str(chosen), found)


def _fused_from(text: str, location: Location | None) -> FusedOp:
    """As ``str`` writes it: ``op %value``."""
    op, _, value = text.partition(" %")
    return FusedOp(op, value, location)


def _report_from(data: Json, locations: Sequence[Location]) -> KernelReport:
    return KernelReport(
        str(data["kernel"]),
        str(data["kind"]),
        tuple(_fused_from(str(text), _location_from(place, locations)) for text, place in data["fused"]),
        tuple((str(name), value if type(value) is int else str(value)) for name, value in data["schedule"]),
        _number(data["flops"]),
        _number(data["bytes"]),
        float(data["predicted"]),
        float(data["limit"]),
        str(data["bound"]),
        tuple((str(name), float(seconds)) for name, seconds in data.get("parts", ())),
    )
