# SPDX-License-Identifier: Apache-2.0
"""Compiled functions from files. Imports neither compilers nor the capture: a loaded function starts at once."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Literal

import numpy as np

from fusec import tracing
from fusec.calibrated import QuantizationReport
from fusec.compiled import Variant
from fusec.errors import ArtifactError, FusecError, SignatureError
from fusec.exporting import Compiled
from fusec.frontend.capture import Library
from fusec.ir.index import symbol
from fusec.ir.types import Dim, DType, TensorType, dtype_of, fixed, u8
from fusec.modules import load_module
from fusec.options import check_choice, check_path
from fusec.os_errors import told
from fusec.parameters import Parameters
from fusec.runtime import artifact
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.artifact import piece_folder
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable
from fusec.runtime.library import CHECK_INDEX
from fusec.runtime.memory import Block, allocate
from fusec.runtime.program import Call, Program
from fusec.runtime.serial import Json, program_from_json, symbols_from_json, type_from_json
from fusec.runtime.structure import call_from_json, result_from_json
from fusec.specs import TensorSpec
from fusec.target.gpu import is_gpu
from fusec.tile.views import same_layout

MOST_PIECES = 1000
_MOST_LISTED = 8
"""Weights that one error names."""
_LONGEST_NAME = 100

Weights = Mapping[str, Any] | str | PathLike[str]
"""Arrays by name, such as a module's ``state_dict()``, or the path of a safetensors file."""

tracing.start_from_environment()


def load(
    path: str | PathLike[str], *, weights: Weights | None = None, library: Literal["numpy"] | None = None
) -> Compiled:
    """The function that :meth:`Compiled.save` wrote. It runs native code: load only files whose author you trust.

    All that is used of the file is checked before. Raises ArtifactError for a file that is damaged, of another format,
    or for another machine. Its weights are mapped: leave the file as it is while the function is in use.

    ``weights``: for a file that was saved without them, arrays by name (a ``state_dict()``) or the path of a
    safetensors file. They are copied or packed now. SignatureError that lists those which are missing, of another
    shape or dtype, or that the function's module does not have; ArtifactError where none are given.

    ``library="numpy"``: a function of PyTorch takes and gives NumPy arrays, and PyTorch need not be installed. So for a
    CPU's file whose program calls nothing of PyTorch; ArtifactError for another.
    """
    check_path("path", path)
    if weights is not None and not isinstance(weights, Mapping):
        check_path("weights", weights)
    check_choice("library", library, ("numpy", None))
    with tracing.span(f"load {fspath(path)}", "load"):
        return _checked(path, weights, library)


def _checked(path: str | PathLike[str], weights: Weights | None, library: Library | None) -> Compiled:
    contents = artifact.read(path)
    missing = contents.requirements.missing()
    if missing:
        raise ArtifactError(f"{contents.path}: {missing}")
    try:
        return _load(contents, weights, library)
    except SignatureError as error:
        raise SignatureError(f"{contents.path}: {error}") from None
    except ArtifactError as error:
        text = str(error)
        raise ArtifactError(text if text.startswith(str(contents.path)) else f"{contents.path}: {text}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, FusecError) as error:
        raise ArtifactError(f"{contents.path}: its records do not fit together: {error!r:.300}") from None


def _load(contents: artifact.Contents, weights: Weights | None, instead: Library | None) -> Compiled:
    manifest = contents.manifest
    library = instead or _library(manifest["library"])
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
    given = _given(manifest, load_arrays(library), weights)
    reader = _Reader(
        library, load_arrays(library), specs, stored, members, given, is_foreign=library != manifest["library"]
    )
    variants = [reader.variant(record, piece_folder(k), ranges) for k, record in enumerate(records)]
    name, parameters = str(manifest["name"]), Parameters.from_json(manifest.get("parameters"))
    noise = QuantizationReport.from_json(manifest.get("quantization"))
    if ranges:
        return Compiled(name, library, specs, call, {}, None, variants, parameters, noise)
    if len(variants) != 1:
        raise ArtifactError("several pieces and no ranges")
    return Compiled(name, library, specs, call, {(): variants[0]}, parameters=parameters, quantization=noise)


def _library(name: object) -> Library:
    if name == "torch" or name == "numpy" or name == "cupy":
        return name
    raise ArtifactError(f"there is no array library {name!r}")


def _given(manifest: Json, arrays: Arrays, weights: Weights | None) -> dict[str, Any]:
    """The weights that the file was saved without, by its names for them. SignatureError for what does not fit."""
    needed = {str(name): (type_from_json(entry["type"]), entry["also"]) for name, entry in manifest["weights"].items()}
    if weights is None:
        if needed:
            raise ArtifactError(
                f"it was saved without its {len(needed)} weights ({_listed(needed)}); "
                "give them: fusec.load(..., weights=module.state_dict() or 'model.safetensors'), or fusec run --weights"
            )
        return {}
    if not needed:
        raise SignatureError("its weights are inside; load it without weights=")
    offered = weights if isinstance(weights, Mapping) else read_safetensors(weights, arrays)
    names = {name: next((n for n in (name, *also) if n in offered), None) for name, (_, also) in needed.items()}
    known = {n for name, (_, also) in needed.items() for n in (name, *also)} | set(map(str, manifest["others"]))
    problems: list[str] = []
    missing = [name for name, found in names.items() if found is None]
    if missing:
        problems.append(f"missing: {_listed(missing)}")
    found = {name: _as_array(arrays, offered[other], other) for name, other in names.items() if other is not None}
    wrong = []
    for name, array in found.items():
        type, here = needed[name][0], arrays.layout(array).type
        if (here.dtype, here.shape) != (type.dtype, type.shape):
            wrong.append(f"{name} is {here.dtype}{list(here.shape)}, needed is {type.dtype}{list(type.shape)}")
    if wrong:
        problems.append(f"of another kind: {_listed(wrong)}")
    unexpected = sorted(set(map(str, offered)) - known)
    if unexpected:
        problems.append(f"not the module's: {_listed(unexpected)}")
    if problems:
        raise SignatureError(f"the weights do not fit; {'; '.join(problems)}")
    return found


def _listed(names: Iterable[str]) -> str:
    listed = [name if name.isprintable() else ascii(name) for name in names]
    more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    return ", ".join(name[:_LONGEST_NAME] for name in listed[:_MOST_LISTED]) + more


def _as_array(arrays: Arrays, value: Any, name: str) -> Any:
    """The weight as an array of the file's library."""
    if isinstance(value, np.ndarray) and not arrays.is_array(value):
        return arrays.from_numpy(np.ascontiguousarray(value), dtype_of(value.dtype))
    if not arrays.is_array(value):
        raise SignatureError(f"weight {name} is a {type(value).__name__}, and no array of {arrays.library} or NumPy")
    return value.detach() if arrays.library == "torch" else value


def read_safetensors(path: str | PathLike[str], arrays: Arrays) -> dict[str, Any]:
    """The arrays of a safetensors file, mapped. SignatureError for one that is damaged, or is no such file."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return {
            name: arrays.from_numpy(array, dtype)
            for name, (dtype, array) in artifact.decode_weights(memoryview(mapped)).items()
        }
    except (OSError, ValueError, ArtifactError) as error:
        raise SignatureError(f"the weights {path} can't be read as safetensors: {told(error, path)}") from None


Stored = Mapping[str, tuple[DType, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class _Reader:
    """What the pieces of a file have in common. Arrays that several of them use are made once."""

    library: Library
    arrays: Arrays
    specs: Sequence[TensorSpec]
    stored: Stored
    members: Mapping[str, bytes]
    given: Mapping[str, Any] = field(default_factory=dict)
    is_foreign: bool = False
    """The arrays are of another library than the function's."""
    made: dict[object, Any] = field(default_factory=dict)
    frozen: dict[tuple[object, ...], Any] = field(default_factory=dict)

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
        given = {int(k): str(name) for k, name in record["given"].items()}
        _check(program, arguments, fixed_inputs | given.keys(), layouts, weights)
        if self.is_foreign:
            _check_library(program)
        module = load_module(self.members[folder + artifact.CODE])
        executable = Executable(
            program, module, self.library, digests, fixed_inputs, weights, packed, bool(record["graph"])
        )
        if given:
            executable = executable.freeze({k: self.given_weight(program, k, given[k]) for k in given}, self.frozen)
        graph = self.members[folder + artifact.GRAPH].decode()
        notes = tuple(map(str, record["notes"]))
        upto = None if record["upto"] is None else int(record["upto"])
        return Variant(executable, arguments, layouts, result.rebuild(constants), graph, notes, ranges, upto=upto)

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

    def given_weight(self, program: Program, number: int, name: str) -> Any:
        slot = program.slots[program.inputs[number]]
        array = self.given[name]
        here = self.arrays.layout(array).type
        if (here.dtype, here.shape) != (slot.type.dtype, slot.type.shape):
            raise ArtifactError(f"weight {name} is {here}, the program has {slot.type}")
        key = ("given", name, slot.strides)
        if key not in self.made:
            self.made[key] = _laid_out(self.arrays, array, fixed(slot.strides))
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


def _check_library(program: Program) -> None:
    """ArtifactError where a program needs the library that its function was written for."""
    if is_gpu(program.target):
        raise ArtifactError("it runs on a GPU, and takes no NumPy arrays")
    calls = [s.attributes.target for s in program.steps if isinstance(s, Call) and s.attributes.target != CHECK_INDEX]
    if calls:
        raise ArtifactError(f"it calls {', '.join(dict.fromkeys(calls))}, which NumPy does not have")


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
        type, strides = layouts[argument] if 0 <= argument < len(layouts) else (None, ())
        if slot.type != type or not _is_laid_out(slot.type, slot.strides, strides):
            raise ArtifactError(f"input {slot.name} is {slot.type} in the program and not in the manifest")
    if any(slot not in program.inputs for slot in weights):
        raise ArtifactError("a weight is not an input of the program")


def _is_laid_out(type: TensorType, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether both strides, which a file may have of any number, lead to the same elements."""
    return len(type.shape) == len(a) == len(b) and same_layout(type.shape, tuple(a), tuple(b))


def _spec_from(entry: Json) -> TensorSpec:
    dtype, shape, device = entry["type"]
    if any(type(n) not in (int, str) for n in shape):
        raise ArtifactError(f"{shape!r:.100} is not a shape")
    strides = None if entry["contiguous"] else [int(s) for s in entry["strides"]]
    spec = TensorSpec(shape, str(dtype), strides, str(device))
    if not spec.names:
        type_from_json(entry["type"])
    return spec
