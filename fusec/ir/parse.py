# SPDX-License-Identifier: Apache-2.0
"""Reads IR text back into a graph. Nothing in the text is executed, so text from anyone is safe to read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING
from difflib import get_close_matches
from functools import partial
from typing import cast, get_args

from fusec.errors import OptionError, ParseError, TypeRuleError
from fusec.ir.attributes import Attributes, ConstantAttributes, FusedKind, Scalar
from fusec.ir.builder import unused_name
from fusec.ir.graph import ROLES, AttentionGroup, FusedAttributes, Graph, ScoresGroup
from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.index_text import parse_index
from fusec.ir.nodes import InputRole, Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.scanner import Scanner
from fusec.ir.text import FROM_RESULT, FUSED_KINDS, PAIRS, plain_fields
from fusec.ir.types import DTYPES, Dim, DType, TensorType

_DEVICE = re.compile(r"@[A-Za-z_]\w*(?::\d+)?")
_VALUE_NAME = re.compile(r'%(?:([A-Za-z_][A-Za-z0-9_.]*)|"((?:[^"\\\n]|\\.)*)")')
_ROLES: tuple[str, ...] = get_args(InputRole)

_VERSION = "IR text is read by the version of fusec that wrote it"
"""What is said of names that are not known."""


def parse(text: str) -> Graph:
    """The graph of a text that ``str`` of a graph writes; ``str(parse(str(g))) == str(g)``.

    Types are inferred again and must be the written ones. A ``// file:line`` comment at the end of an op's
    line is its location. ParseError, with line and column, when the text is not well formed.
    """
    if not isinstance(text, str):
        raise OptionError(f"IR text is a str, not {type(text).__name__}")
    scanner = Scanner(text)
    try:
        return _Parser(scanner).whole()
    except RecursionError:
        raise ParseError("the text is nested too deeply") from None


class _Parser:
    """Reads one text; symbols are shared by a graph and the bodies in it, value names are not."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.symbols: dict[str, Symbol] = {}
        self.names = {a or b for a, b in _VALUE_NAME.findall(scanner.text)}

    def whole(self) -> Graph:
        self.scanner.expect("graph")
        graph = self.graph()
        if not self.scanner.at_end:
            raise self.scanner.error(f"expected the end of the text after the graph, found {self.scanner.next_piece()}")
        return graph

    def ranges(self) -> None:
        """``<B in [1, 64], N in [2, inf]>``: the symbols whose range is not ``[0, inf]``."""
        scanner = self.scanner
        while True:
            name = scanner.word("a symbol")
            scanner.expect("in")
            ends = scanner.bracketed()
            if len(ends) != 2:
                raise scanner.error("a range is two bounds, as [0, inf]")
            lo, hi = (self._bound(text, at) for text, at in ends)
            self.symbols[name] = symbol(name, lo, hi)
            if not scanner.accept(","):
                break
        scanner.expect(">")

    def _bound(self, text: str, position: int) -> int | None:
        if text.strip() in ("inf", "-inf"):
            return None
        if not re.fullmatch(r"\s*-?\d{1,40}\s*", text):
            raise self.scanner.error(f"'{text.strip()}' is not a bound: an integer, inf or -inf", position)
        return int(text)

    def graph(self) -> Graph:
        """A graph from its ``@name`` to its closing brace."""
        return self.region()[0]

    def region(self) -> tuple[Graph, _Body]:
        """A graph, and what reads names of its values."""
        scanner = self.scanner
        name = scanner.name("@", "the graph")
        if scanner.accept("<"):
            self.ranges()
        body = _Body(self)
        scanner.expect("(")
        while not scanner.accept(")"):
            body.input()
            if not scanner.accept(","):
                scanner.expect(")")
                break
        scanner.expect("{")
        while not scanner.accept("return"):
            body.op()
        body.outputs()
        scanner.expect("}")
        ports = tuple(body.input_ports), tuple(body.output_ports)
        return Graph(name, tuple(body.inputs), tuple(body.returned), tuple(body.ops), *ports), body

    def index(self, text: str, position: int) -> Index:
        plain = text.strip()
        if plain.isascii() and plain.isdigit() and len(plain) < 19:
            return int(plain)

        def lookup(name: str) -> Symbol:
            return self.symbols.setdefault(name, symbol(name))

        try:
            return parse_index(text, lookup)
        except (ParseError, ZeroDivisionError) as error:
            raise self.scanner.error(f"{error}", position) from None

    def dtype(self) -> DType:
        self.scanner.skip()
        start = self.scanner.position
        name = self.scanner.word("a dtype")
        if name not in DTYPES:
            raise self.scanner.error(f"no dtype '{name}'; known: {', '.join(DTYPES)}", start)
        return DTYPES[name]

    def device(self) -> str:
        if not self.scanner.text.startswith("@", self.scanner.position):
            return "cpu"
        found = self.scanner.read(_DEVICE)
        if found is None:
            raise self.scanner.error("expected a device such as @cuda:0")
        return found[1:]

    def type(self) -> TensorType:
        dtype = self.dtype()
        shape = self.dims()
        return TensorType(dtype, shape, self.device())

    def dims(self) -> tuple[Dim, ...]:
        return tuple(self.index(text, at) for text, at in self.scanner.bracketed())

    def ints(self) -> tuple[int, ...]:
        self.scanner.skip()
        start = self.scanner.position
        values = self.dims()
        if any(not isinstance(v, int) for v in values):
            raise self.scanner.error("expected plain integers in this list", start)
        return tuple(v for v in values if isinstance(v, int))


class _Body:
    """One graph while it is read: its values by name, and what has been read so far."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser
        self.scanner = parser.scanner
        self.values: dict[str, Value] = {}
        self.inputs: list[Value] = []
        self.input_ports: list[Port] = []
        self.returned: list[Value] = []
        self.output_ports: list[Port] = []
        self.ops: list[Op] = []
        self.constants: dict[tuple[str, DType, str], Value] = {}
        self.reserved = set(parser.names)

    def define(self, name: str, type: TensorType, position: int) -> Value:
        if name in self.values:
            raise self.scanner.error(f"%{name} is defined twice", position)
        self.values[name] = Value(type, name)
        return self.values[name]

    def input(self) -> None:
        self.scanner.skip()
        start = self.scanner.position
        name = self.scanner.name("%", "an input")
        self.scanner.expect(":")
        self.inputs.append(self.define(name, self.parser.type(), start))
        self.input_ports.append(self.port())

    def port(self) -> Port:
        scanner = self.scanner
        role, path = "argument", ""
        for word in _ROLES:
            if scanner.accept(word):
                role, path = word, scanner.string()
        strides = self.parser.dims() if self.key("strides") else None
        offset = scanner.integer() if self.key("offset") else 0
        mutates = scanner.integer() if self.key("mutates") else None
        return Port(strides, offset, cast(InputRole, role), path, mutates)

    def key(self, name: str) -> bool:
        if not self.scanner.accept(name):
            return False
        self.scanner.expect("=")
        return True

    def outputs(self) -> None:
        self.scanner.skip()
        while not self.scanner.text.startswith("}", self.scanner.position):
            self.returned.append(self.operand())
            self.output_ports.append(self.port())
            if not self.scanner.accept(","):
                break

    def operand(self) -> Value:
        self.scanner.skip()
        start = self.scanner.position
        if not self.scanner.text.startswith("%", start):
            return self.constant()
        name = self.scanner.name("%", "a value")
        if name not in self.values:
            raise self.scanner.error(f"%{name} is used before it is defined", start)
        return self.values[name]

    def constant(self) -> Value:
        scanner = self.scanner
        scanner.skip()
        start = scanner.position
        dtype = self.parser.dtype()
        scanner.expect("(")
        value = self.scalar(dtype)
        scanner.expect(")")
        device = self.parser.device()
        key = (repr(value), dtype, device)
        if key not in self.constants:
            attributes = ConstantAttributes(value, dtype, device)
            types = self.infer("constant", (), attributes, start)
            self.constants[key] = Value(types[0], self.fresh("const"))
            self.ops.append(Op(OPS["constant"], (), attributes, (self.constants[key],)))
        return self.constants[key]

    def scalar(self, dtype: DType) -> Scalar:
        if dtype.kind == "bool":
            return self.flag()
        value = self.scanner.number()
        if dtype.kind == "complex" and self.scanner.accept(","):
            return complex(value, self.scanner.number())
        return value

    def flag(self) -> bool:
        if self.scanner.accept("true"):
            return True
        if not self.scanner.accept("false"):
            raise self.scanner.error(f"expected true or false, found {self.scanner.next_piece()}")
        return False

    def fresh(self, base: str) -> str:
        """A name that the text does not use."""
        return unused_name(base, self.reserved)

    def op(self) -> None:
        scanner = self.scanner
        names = self.result_names()
        scanner.skip()
        start = scanner.position
        name = scanner.word("an op, or 'return'")
        if name not in OPS:
            near = get_close_matches(name, OPS, 1)
            raise scanner.error(f"no op '{name}'; " + (f"did you mean '{near[0]}'?" if near else _VERSION), start)
        operands = self.operands()
        definition = OPS[name]
        if definition.attributes is FusedAttributes:
            attributes: Attributes = self.fused()
            types = self.types(len(names))
        else:
            read = self.fields(definition.attributes)
            types = self.types(len(names))
            attributes = self.record(definition.attributes, read, types, start)
        inferred = self.infer(name, tuple(v.type for v in operands), attributes, start)
        if inferred != types:
            told, found = ", ".join(map(str, types)), ", ".join(map(str, inferred))
            raise scanner.error(f"{name} gives {found}, but {told} is written", start)
        results = tuple(self.define(n, t, at) for (n, at), t in zip(names, types))
        self.ops.append(Op(definition, operands, attributes, results, scanner.location()))

    def infer(
        self, name: str, types: tuple[TensorType, ...], attributes: Attributes, position: int
    ) -> tuple[TensorType, ...]:
        try:
            return OPS[name].infer(types, attributes)
        except TypeRuleError as error:
            raise self.scanner.error(f"{name}: {error}", position) from None

    def result_names(self) -> list[tuple[str, int]]:
        names: list[tuple[str, int]] = []
        self.scanner.skip()
        while self.scanner.text.startswith("%", self.scanner.position):
            start = self.scanner.position
            names.append((self.scanner.name("%", "a result"), start))
            if not self.scanner.accept(","):
                self.scanner.expect("=")
                break
            self.scanner.skip()
        return names

    def operands(self) -> tuple[Value, ...]:
        found: list[Value] = []
        self.scanner.expect("(")
        while not self.scanner.accept(")"):
            found.append(self.operand())
            if not self.scanner.accept(","):
                self.scanner.expect(")")
                break
        return tuple(found)

    def value_list(self) -> tuple[Value, ...]:
        """Names between square brackets."""
        found: list[Value] = []
        self.scanner.expect("[")
        while not self.scanner.accept("]"):
            found.append(self.operand())
            if not self.scanner.accept(","):
                self.scanner.expect("]")
                break
        return tuple(found)

    def types(self, count: int) -> tuple[TensorType, ...]:
        if count == 0:
            return ()
        self.scanner.expect(":")
        found = [self.parser.type()]
        while self.scanner.accept(","):
            found.append(self.parser.type())
        if len(found) != count:
            raise self.scanner.error(f"{count} results have {len(found)} types")
        return tuple(found)

    def fused(self) -> FusedAttributes:
        kind = self.scanner.word("the kind of fused op")
        if kind not in FUSED_KINDS:
            raise self.scanner.error(f"'{kind}' is not a kind of fused op: {', '.join(FUSED_KINDS)}")
        graph, body = self.parser.region()
        start = self.scanner.position
        record = ROLES.get(cast(FusedKind, kind))
        if record is None:
            return FusedAttributes(cast(FusedKind, kind), graph)
        roles = self.record(record, body.fields(record), (), start)
        assert isinstance(roles, AttentionGroup | ScoresGroup)
        return FusedAttributes(cast(FusedKind, kind), graph, roles)

    def fields(self, record: type[Attributes]) -> dict[str, object]:
        """The fields between braces, those of a pair under their own names."""
        readers: dict[str, Callable[[], object]] = {
            f.name: partial(self.field, str(f.type)) for f in plain_fields(record)
        }
        pairs = PAIRS.get(record, {})
        read: dict[str, object] = {}
        seen: set[str] = set()
        if not self.scanner.accept("{"):
            return read
        while not self.scanner.accept("}"):
            self.scanner.skip()
            start = self.scanner.position
            key = self.scanner.word("an attribute")
            if key in seen or (key not in readers and key not in pairs):
                known = ", ".join([*pairs, *readers]) or "none"
                what = "is given twice" if key in seen else f"is not known here; known: {known}; {_VERSION}"
                raise self.scanner.error(f"attribute '{key}' {what}", start)
            seen.add(key)
            self.scanner.expect("=")
            if key in pairs:
                read[pairs[key][0]] = self.parser.ints()
                self.scanner.expect("x")
                read[pairs[key][1]] = self.parser.ints()
            else:
                read[key] = readers[key]()
            if not self.scanner.accept(","):
                self.scanner.expect("}")
                break
        return read

    def field(self, annotation: str) -> object:
        scanner = self.scanner
        if annotation.endswith("| None") and scanner.accept("none"):
            return None
        match annotation.removesuffix(" | None"):
            case "Value":
                return self.operand()
            case "tuple[Value, ...]":
                return self.value_list()
            case "int":
                return scanner.integer()
            case "float":
                return float(scanner.number())
            case "bool":
                return self.flag()
            case "str":
                return scanner.string()
            case "DType":
                return self.parser.dtype()
            case "tuple[int, ...]":
                return self.parser.ints()
            case "tuple[Dim, ...]":
                return self.parser.dims()
            case other if other.startswith("Literal"):
                return scanner.word("a word")
            case other:
                raise scanner.error(f"IR text has no spelling for a field of type {other}")

    def record(
        self, record: type[Attributes], read: dict[str, object], types: tuple[TensorType, ...], position: int
    ) -> Attributes:
        given = FROM_RESULT.get(record, {})
        if given and not types and "types" not in given:
            raise self.scanner.error("this op has a result; write %name = before it", position)
        values = {**read, **{name: get(types) for name, get in given.items()}}
        for field in plain_fields(record):
            if field.name not in values and field.default is MISSING:
                raise self.scanner.error(f"attribute '{field.name}' is missing", position)
        for name, (left, _) in PAIRS.get(record, {}).items():
            if name == "contract" and left not in values:
                raise self.scanner.error(f"attribute '{name}' is missing", position)
        return record(**values)
