# SPDX-License-Identifier: Apache-2.0
"""The structure of a call and of a result as JSON, so that a file can hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.errors import ArtifactError
from fusec.frontend import raw
from fusec.frontend.capture import Library, Rebuild
from fusec.frontend.numpy_views import view
from fusec.frontend.structures import (
    TENSOR,
    Again,
    Attributes,
    CallSpec,
    Node,
    Static,
    Structure,
    own_attributes,
    rebuild,
    structure_of,
)
from fusec.runtime.records import base_of, find_class
from fusec.runtime.serial import Json, scalar_from_json, scalar_to_json

_CONTAINERS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict}

_SAVED = {
    "an argument": "tuples, lists and dicts",
    "a result": "tuples, lists, dicts, named tuples and dataclasses",
}


def call_to_json(spec: CallSpec) -> Json:
    """ArtifactError for an argument that a file can't hold."""
    named = [[name, _to_json(p, "an argument")] for name, p in spec.kwargs]
    return {"args": [_to_json(p, "an argument") for p in spec.args], "kwargs": named}


def call_from_json(data: Json) -> CallSpec:
    try:
        named = tuple((str(name), _from_json(part)) for name, part in data["kwargs"])
        return CallSpec(tuple(_from_json(part) for part in data["args"]), named)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"the record of the call is damaged: {error}") from None


def _to_json(part: Structure, what: str) -> Json:
    """``what``: an argument or a result. ArtifactError where a file can't hold it."""
    if isinstance(part, Static):
        value = part.value
        if type(value) is str:
            return {"str": value}
        if value is None or type(value) in (bool, int, float, complex):
            return {"value": scalar_to_json(value)}
        raise ArtifactError(
            f"{what} has a value of type {type(value).__name__}, which can't be saved; numbers, strings and None can"
        )
    if isinstance(part, Node):
        return _node_to_json(part, what)
    if isinstance(part, Again):
        return {"again": part.number, "leaf": part.is_leaf}
    if part is not TENSOR:
        raise ArtifactError(f"{what} has a part that can't be saved: {part!r:.100}")
    return "array"


def _node_to_json(node: Node, what: str) -> Json:
    parts: dict[str, Json] = {"keys": [_to_json(Static(key), what) for key in node.keys]} if node.keys else {}
    parts |= {"number": node.number} if node.number >= 0 else {}
    inner = [_to_json(part, what) for part in node.parts]
    for name, kind in _CONTAINERS.items():
        if node.kind is kind:
            return {name: inner, **parts}
    if node.kind is Attributes:
        return {"attributes": inner, **parts}
    base = base_of(node.kind) if what == "a result" else None
    if base is None:
        raise ArtifactError(f"{what} is a {node.kind.__name__}, which can't be saved; {_SAVED[what]} can")
    fields = list(getattr(node.kind, "_fields", ())) if base == "tuple" else [str(key) for key in node.keys]
    named = {"module": node.kind.__module__, "name": node.kind.__qualname__, "base": base, "fields": fields}
    return {"class": named, "parts": inner, **parts}


def _from_json(data: Json) -> Structure:
    if data == "array":
        return TENSOR
    if "str" in data:
        return Static(str(data["str"]))
    if "value" in data:
        return Static(scalar_from_json(data["value"]))
    if "again" in data:
        return Again(int(data["again"]), bool(data["leaf"]))
    keys, number = tuple(_plain(key) for key in data.get("keys", ())), int(data.get("number", -1))
    for name, kind in _CONTAINERS.items():
        if name in data:
            return Node(kind, keys, tuple(_from_json(part) for part in data[name]), number)
    if "attributes" in data:
        return Node(Attributes, keys, tuple(_from_json(part) for part in data["attributes"]), number)
    if "class" in data:
        named = data["class"]
        kind = find_class(str(named["module"]), str(named["name"]), named["base"], list(map(str, named["fields"])))
        return Node(kind, keys, tuple(_from_json(part) for part in data["parts"]), number)
    raise ArtifactError(f"there is no structure such as {str(data)[:80]}")


def _plain(data: Json) -> Any:
    part = _from_json(data)
    if not isinstance(part, Static):
        raise ArtifactError("a key of a dict is not a plain value")
    return part.value


@dataclass(frozen=True)
class Leaf:
    """One array of a result: output ``output`` itself, or (NumPy) its one element, or a view of it.

    A view has a shape, strides and an offset in bytes, and may be read-only. ``constant`` is an array that no output
    holds.
    """

    output: int = -1
    is_scalar: bool = False
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    offset: int = 0
    constant: str = ""
    read_only: bool = False


@dataclass(frozen=True)
class Result:
    """What a function returns: containers, plain values, and where its arrays come from."""

    structure: Structure
    leaves: tuple[Leaf, ...]

    def rebuild(self, constants: dict[str, Any]) -> Rebuild:
        """The function from outputs to the result."""
        makers = [_maker(leaf, constants) for leaf in self.leaves]
        structure = self.structure
        return lambda outputs: rebuild(structure, iter([make(outputs) for make in makers]))


def _maker(leaf: Leaf, constants: dict[str, Any]) -> Callable[[Sequence[Any]], Any]:
    if leaf.constant:
        constant = constants[leaf.constant]
        return lambda outputs: constant.copy()
    k = leaf.output
    if leaf.is_scalar:
        return lambda outputs: outputs[k][()]
    shape, strides, offset = leaf.shape, leaf.strides, leaf.offset
    if shape is not None:
        if leaf.read_only:
            return lambda outputs: _read_only(view(outputs[k], outputs[k].dtype, shape, strides, offset))
        return lambda outputs: view(outputs[k], outputs[k].dtype, shape, strides, offset)
    return lambda outputs: outputs[k]


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


class _Probe(np.ndarray[Any, Any]):
    """Stands for an output; taking its one element out is noticed."""

    def __getitem__(self, key: Any) -> Any:
        return _Element(self) if isinstance(key, tuple) and key == () else super().__getitem__(key)


@dataclass(frozen=True, eq=False)
class _Element:
    source: np.ndarray[Any, Any]


def examine(make: Rebuild, examples: Sequence[Any], library: Library) -> tuple[Result, dict[str, Any]]:
    """:func:`result_of`. ArtifactError for a result that a file can't hold."""
    result, constants = result_of(make, examples, library)
    _to_json(result.structure, "a result")
    return result, constants


def result_of(make: Rebuild, examples: Sequence[Any], library: Library) -> tuple[Result, dict[str, Any]]:
    """What a capture's ``rebuild`` does, found by running it on ``examples``, one array for each output.

    The dict holds constant arrays by name.
    """
    probes = [e.view(_Probe) for e in examples] if library == "numpy" else list(examples)
    made: list[Any] = []
    kinds = (_Element, np.ndarray) if library == "numpy" else (type(examples[0]) if examples else _Element,)
    result, other = make(probes), make(probes)
    anew = made_anew(result, other)
    structure = structure_of(result, lambda v: isinstance(v, kinds), made, lambda v, inside: id(v) in anew)
    constants: dict[str, Any] = {}
    return Result(structure, tuple(_leaf(value, probes, constants) for value in made)), constants


def made_anew(one: Any, other: Any) -> set[int]:
    """The ids of the objects in one of two results of a ``rebuild`` that each call makes: those that are not shared."""
    found: set[int] = set()
    waiting = [(one, other)]
    while waiting:
        a, b = waiting.pop()
        if a is b or type(a) is not type(b) or id(a) in found:
            continue
        if isinstance(a, list | tuple | dict):
            waiting += zip(raw.values_of(a), raw.values_of(b))
        if raw.is_object(a):
            found.add(id(a))
        waiting += zip((part for _, part in own_attributes(a)), (part for _, part in own_attributes(b)))
    return found


def _leaf(value: Any, probes: Sequence[Any], constants: dict[str, Any]) -> Leaf:
    if isinstance(value, _Element):
        found = _leaf(value.source, probes, constants)
        return Leaf(found.output, is_scalar=True)
    for k, probe in enumerate(probes):
        if value is probe:
            return Leaf(k)
    for k, probe in enumerate(probes):
        if isinstance(value, np.ndarray) and np.may_share_memory(value, probe):
            offset = value.ctypes.data - probe.ctypes.data
            return Leaf(k, False, value.shape, value.strides, offset, read_only=not value.flags.writeable)
    name = f"constant_{len(constants)}"
    constants[name] = np.asarray(value)
    return Leaf(constant=name)


def result_to_json(result: Result) -> Json:
    leaves = [
        [e.output, e.is_scalar, e.shape, list(e.strides), e.offset, e.constant, e.read_only] for e in result.leaves
    ]
    return {"structure": _to_json(result.structure, "a result"), "leaves": leaves}


def result_from_json(data: Json, outputs: int) -> Result:
    """ArtifactError where it names an output that is not there."""
    try:
        leaves = []
        for output, is_scalar, shape, strides, offset, constant, *read_only in data["leaves"]:
            laid = tuple(int(n) for n in shape) if shape is not None else None
            numbers = (int(output), bool(is_scalar), laid, tuple(map(int, strides)), int(offset))
            leaves.append(Leaf(*numbers, str(constant), bool(read_only and read_only[0])))
        result = Result(_from_json(data["structure"]), tuple(leaves))
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"the record of the result is damaged: {error}") from None
    if any(not leaf.constant and not 0 <= leaf.output < outputs for leaf in result.leaves):
        raise ArtifactError("the result names an output that is not there")
    return result
