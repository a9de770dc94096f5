"""Compiled functions from files. Imports neither compilers nor the capture: a loaded function starts at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import numpy as np

from fusec import tracing
from fusec.compiled import Compiled, Variant
from fusec.errors import ArtifactError, FusecError
from fusec.frontend.capture import Library
from fusec.ir.index import symbol
from fusec.ir.types import Dim, DType, fixed, u8
from fusec.runtime import artifact
from fusec.runtime.arrays import Arrays, load_arrays
from fusec.runtime.artifact import piece_folder
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable
from fusec.runtime.memory import Block, allocate
from fusec.runtime.modules import load_module
from fusec.runtime.program import Program
from fusec.runtime.serial import Json, program_from_json, symbols_from_json, type_from_json
from fusec.runtime.structure import call_from_json, result_from_json
from fusec.specs import TensorSpec

MOST_PIECES = 1000

tracing.start_from_environment()


def load(path: str | PathLike[str]) -> Compiled:
    """The function that :meth:`Compiled.save` wrote. It runs native code: load only files whose author you trust.

    All that is used of the file is checked before. Raises ArtifactError for a file that is damaged, of another format,
    or for another machine. Its weights are mapped: leave the file as it is while the function is in use.
    """
    with tracing.span(f"load {fspath(path)}", "load"):
        return _checked(path)


def _checked(path: str | PathLike[str]) -> Compiled:
    contents = artifact.read(path)
    missing = contents.requirements.missing()
    if missing:
        raise ArtifactError(f"{contents.path}: {missing}")
    try:
        return _load(contents)
    except ArtifactError as error:
        text = str(error)
        raise ArtifactError(text if text.startswith(str(contents.path)) else f"{contents.path}: {text}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, FusecError) as error:
        raise ArtifactError(f"{contents.path}: its records do not fit together: {error!r:.300}") from None


def _load(contents: artifact.Contents) -> Compiled:
    manifest = contents.manifest
    library = _library(manifest["library"])
    records = manifest["pieces"]
    if not isinstance(records, list) or not 1 <= len(records) <= MOST_PIECES:
        raise ArtifactError("the manifest lists no pieces, or too many")
    ranges = {name: (s.lo or 1, int(str(s.hi))) for name, s in symbols_from_json(manifest["dims"]).items()}
    specs = [_spec_from(entry) for entry in manifest["inputs"]]
    if set().union(*(spec.names for spec in specs)) != set(ranges):
        raise ArtifactError("the named dimensions of the inputs are not those that have ranges")
    call = call_from_json(manifest["call"])
    needed = (artifact.PROGRAM, artifact.GRAPH, artifact.CODE)
    members = contents.read_all([piece_folder(k) + name for k in range(len(records)) for name in needed])
    stored = artifact.decode_weights(contents.map_weights())
    if artifact.LAUNCHER in contents.sizes:
        from fusec.runtime import launch  # for GPUs alone

        launch.offer_build(str(manifest.get("launcher")), contents.read(artifact.LAUNCHER))
    reader = _Reader(library, load_arrays(library), specs, stored, members)
    variants = [reader.variant(record, piece_folder(k), ranges) for k, record in enumerate(records)]
    name = str(manifest["name"])
    if ranges:
        return Compiled(name, library, specs, call, {}, None, variants)
    if len(variants) != 1:
        raise ArtifactError("several pieces and no ranges")
    return Compiled(name, library, specs, call, {(): variants[0]})


def _library(name: object) -> Library:
    if name == "torch" or name == "numpy" or name == "cupy":
        return name
    raise ArtifactError(f"there is no array library {name!r}")


Stored = Mapping[str, tuple[DType, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class _Reader:
    """What the pieces of a file have in common. Arrays that several of them use are made once."""

    library: Library
    arrays: Arrays
    specs: Sequence[TensorSpec]
    stored: Stored
    members: Mapping[str, bytes]
    made: dict[object, Any] = field(default_factory=dict)

    def variant(self, record: Json, folder: str, whole: Mapping[str, tuple[int, int]]) -> Variant:
        ranges = {name: (s.lo or 1, int(str(s.hi))) for name, s in symbols_from_json(record["ranges"]).items()}
        if ranges.keys() != whole.keys() or any(not _within(ranges[name], whole[name]) for name in ranges):
            raise ArtifactError("a piece is for other dimensions than the manifest's")
        program = program_from_json(json.loads(self.members[folder + artifact.PROGRAM]))
        result = result_from_json(record["result"], len(program.outputs))
        arguments = tuple(int(a) for a in record["arguments"])
        fixed_inputs = frozenset(int(k) for k in record["fixed"])
        digests = {str(k): str(v) for k, v in record["digests"].items()}
        weights = {int(slot): self.weight(program, int(slot), name) for slot, name in record["weights"].items()}
        packed = {int(slot): self.packed(program, int(slot), name) for slot, name in record["packed"].items()}
        constants = {str(key): self.stored[name][1] for key, name in record["constants"].items()}
        layouts = self.layouts(ranges)
        _check(program, arguments, fixed_inputs, layouts, weights)
        module = load_module(self.members[folder + artifact.CODE])
        executable = Executable(
            program, module, self.library, digests, fixed_inputs, weights, packed, bool(record["graph"])
        )
        graph = self.members[folder + artifact.GRAPH].decode()
        notes = tuple(map(str, record["notes"]))
        return Variant(executable, arguments, layouts, result.rebuild(constants), graph, notes, ranges)

    def layouts(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[Any, ...]:
        dims: dict[str, Dim] = {name: a if a == b else symbol(name, a, b) for name, (a, b) in ranges.items()}
        return tuple((spec.type(dims), spec.laid_out(dims)) for spec in self.specs)

    def weight(self, program: Program, number: int, name: str) -> Any:
        slot = program.slots[number]
        dtype, array = self.stored[name]
        if number not in program.inputs:
            raise ArtifactError("a weight is not an input of the program")
        if (dtype, array.shape) != (slot.type.dtype, slot.type.static_shape):
            raise ArtifactError(f"weight {slot.name} is {dtype}{list(array.shape)}, the program has {slot.type}")
        key = (name, slot.strides)
        if key not in self.made:
            self.made[key] = _laid_out(self.arrays, self.arrays.from_numpy(array, dtype), fixed(slot.strides))
        return self.made[key]

    def packed(self, program: Program, number: int, name: str) -> Block:
        slot = program.slots[number]
        dtype, array = self.stored[name]
        if dtype != u8 or array.ndim != 1 or slot.kind != "packed" or array.size < slot.type.nbytes:
            raise ArtifactError(f"packed weight {slot.name} does not fill its slot")
        if name not in self.made:
            aligned = array.ctypes.data % 64 == 0
            self.made[name] = array if aligned else _moved(array)
        block: Block = self.made[name]
        return block


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] <= inner[1] <= outer[1]


def _moved(array: np.ndarray[Any, Any]) -> Block:
    block = allocate(array.size)
    block[:] = array
    return block


def _laid_out(arrays: Arrays, array: Any, strides: tuple[int, ...]) -> Any:
    """The array in memory of these strides, which the kernels were made for."""
    layout = arrays.layout(array)
    if layout.strides == strides:
        return array
    scope = Scope()
    made = eval(arrays.allocate(scope, layout.type, strides), dict(scope.objects))
    copy = arrays.copy_into(scope, "made", "array")
    eval(copy, {**scope.objects, "made": made, "array": array})
    return made


def _check(
    program: Program,
    arguments: tuple[int, ...],
    fixed_inputs: frozenset[int],
    layouts: tuple[Any, ...],
    weights: Mapping[int, Any],
) -> None:
    """The inputs that kernels were made for are those that the manifest promises to check."""
    free = [k for k in range(len(program.inputs)) if k not in fixed_inputs]
    if len(free) != len(arguments):
        raise ArtifactError("the arguments do not match the program's inputs")
    for k, argument in zip(free, arguments, strict=True):
        slot = program.slots[program.inputs[k]]
        if not 0 <= argument < len(layouts) or (slot.type, slot.strides) != layouts[argument]:
            raise ArtifactError(f"input {slot.name} is {slot.type} in the program and not in the manifest")
    if any(slot not in program.inputs for slot in weights):
        raise ArtifactError("a weight is not an input of the program")


def _spec_from(entry: Json) -> TensorSpec:
    dtype, shape, device = entry["type"]
    if any(type(n) not in (int, str) for n in shape):
        raise ArtifactError(f"{shape!r:.100} is not a shape")
    strides = None if entry["contiguous"] else [int(s) for s in entry["strides"]]
    spec = TensorSpec(shape, str(dtype), strides, str(device))
    if not spec.names:
        type_from_json(entry["type"])
    return spec
