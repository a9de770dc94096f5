"""Compiled functions to files and back: what a :class:`~fusec.compiled.Compiled` is in an artefact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any

import numpy as np

from fusec.build import Options, kernel_digests, kernel_source, load_module, run_passes
from fusec.compiled import Compiled, Variant
from fusec.errors import ArtifactError, FusecError
from fusec.frontend.capture import Library
from fusec.ir.graph import Location
from fusec.ir.index import Index, Symbol, substitute, symbol, symbols_of
from fusec.ir.parse import parse
from fusec.ir.types import Dim, DType, contiguous_strides, fixed, u8
from fusec.runtime import artifact, launch
from fusec.runtime.arrays import Arrays, load_arrays
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable, Module
from fusec.runtime.isa import host_architecture, required_features
from fusec.runtime.memory import Block, allocate
from fusec.runtime.program import Program
from fusec.runtime.serial import (
    Json,
    dims_to_json,
    program_from_json,
    program_to_json,
    symbols_from_json,
    type_from_json,
    type_to_json,
)
from fusec.runtime.structure import call_from_json, call_to_json, examine, result_from_json, result_to_json
from fusec.specs import TensorSpec
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_gpu
from fusec.tile.print import print_kernel

MOST_PIECES = 1000


@dataclass
class _Store:
    """Arrays of a file by name; those of the same contents are there once."""

    members: dict[str, tuple[DType, Sequence[int], bytes]] = field(default_factory=dict)
    names: dict[tuple[object, ...], str] = field(default_factory=dict)

    def add(self, dtype: DType, shape: Sequence[int], data: bytes) -> str:
        key = (dtype.name, *shape, hashlib.sha256(data).digest())
        if key not in self.names:
            self.names[key] = f"array_{len(self.names)}"
            self.members[self.names[key]] = (dtype, shape, data)
        return self.names[key]

    def encode(self) -> bytes:
        """The arrays, those first whose length keeps the next one aligned."""
        ordered = sorted(self.members.items(), key=lambda item: (len(item[1][2]) % 64 != 0, -item[1][0].itemsize))
        return artifact.encode_weights(dict(ordered))


def save(compiled: Compiled, path: str | PathLike[str]) -> None:
    """Writes a compiled function of fixed shapes or of ranges. ArtifactError where it can't be written."""
    variants = compiled.complete
    target = variants[0].executable.program.target
    store = _Store()
    members: dict[str, bytes] = {}
    records = []
    for number, variant in enumerate(variants):
        record, found = _piece(compiled, variant, store)
        records.append(record)
        members |= {_folder(number) + name: data for name, data in found.items()}
    manifest = {
        "fusec": _version(),
        "name": compiled.name,
        "library": compiled.library,
        "target": target,
        "requires": _requirements(variants[0].executable),
        "dims": {name: list(ends) for name, ends in compiled.ranges.items()},
        "inputs": [_spec_to(spec, compiled.ranges) for spec in compiled.specs],
        "outputs": [_output(variants[-1].executable.program, k) for k in range(records[-1]["result"]["outputs"])],
        "call": call_to_json(compiled.call_spec),
        "pieces": records,
    }
    members[artifact.WEIGHTS] = store.encode()
    build = launch.build_of_extension() if is_gpu(target) else None
    if build is not None:
        members[artifact.LAUNCHER] = build
        manifest["launcher"] = launch.build_key()
    artifact.write(path, manifest, members)


def _folder(number: int) -> str:
    return f"pieces/{number}/" if number else ""


def _piece(compiled: Compiled, variant: Variant, store: _Store) -> tuple[Json, dict[str, bytes]]:
    """The record of one variant, and its members."""
    executable = variant.executable
    arrays, program = executable.arrays, executable.program
    if any(not isinstance(argument, int) for argument in variant.arguments):
        raise ArtifactError(
            f"{compiled.name} reads tensors that are fetched at each call; compile it with freeze=True to save it "
            "(a function that changes its module's buffers can't be saved)"
        )
    result, constants = examine(variant.rebuild, _example_outputs(executable), compiled.library)
    if any(leaf.shape is not None for leaf in result.leaves) and variant.ranges:
        raise ArtifactError(f"{compiled.name} returns a view of a result, which a file for ranges can't hold; copy it")
    plain = load_arrays("numpy")
    record = {
        "ranges": {name: list(ends) for name, ends in variant.ranges.items()},
        "result": {**result_to_json(result), "outputs": len(program.outputs)},
        "arguments": list(variant.arguments),
        "fixed": sorted(executable.fixed),
        "digests": dict(executable.digests),
        "notes": list(variant.notes),
        "weights": {str(slot): store.add(*arrays.to_bytes(array)) for slot, array in executable.weights.items()},
        "packed": {
            str(slot): store.add(u8, (block.size,), block.tobytes()) for slot, block in executable.packed.items()
        },
        "constants": {name: store.add(*plain.to_bytes(array)) for name, array in constants.items()},
    }
    members = {artifact.GRAPH: (variant.graph_text + "\n").encode()}
    members |= _texts(variant, program, executable.digests)
    members[artifact.PROGRAM] = json.dumps(_with_short_paths(program_to_json(program)), indent=1).encode()
    members[artifact.CODE] = _code(executable.module)
    return record, members


def _code(module: Module) -> bytes:
    complete = getattr(module, "complete", None)
    code: bytes = (module if complete is None else complete()).to_bytes()
    return code


def _requirements(executable: Executable) -> Json:
    target = executable.program.target
    if is_gpu(target):
        gpu = gpu_target(target)
        return {"gpu": {"backend": gpu.backend, "arch": gpu.arch, "device": executable.device or 0}}
    return {"architecture": host_architecture(), "features": list(required_features(cpu_target(target)))}


def load(path: str | PathLike[str]) -> Compiled:
    """The function in a file. Loads its machine code, after all that is used of the file has been checked."""
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
    names = [
        f"{_folder(k)}{name}" for k in range(len(records)) for name in (artifact.PROGRAM, artifact.GRAPH, artifact.CODE)
    ]
    members = contents.read_all(names)
    stored = artifact.decode_weights(contents.map_weights())
    if artifact.LAUNCHER in contents.sizes:
        launch.offer_build(str(manifest.get("launcher")), contents.read(artifact.LAUNCHER))
    reader = _Reader(library, load_arrays(library), specs, stored, members)
    variants = [reader.variant(record, _folder(k), ranges) for k, record in enumerate(records)]
    name = str(manifest["name"])
    if ranges:
        return Compiled(name, library, specs, call, {}, None, variants)
    if len(variants) != 1:
        raise ArtifactError("several pieces and no ranges")
    return Compiled(name, library, specs, call, {(): variants[0]})


def _library(name: object) -> Library:
    if name == "torch" or name == "numpy":
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
        executable = Executable(program, module, self.library, digests, fixed_inputs, weights, packed)
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


def _example_outputs(executable: Executable) -> list[Any]:
    """An array for each output, symbolic extents at their least."""
    scope = Scope()
    program = executable.program
    made = []
    for slot in program.outputs:
        record = program.slots[slot]
        symbols = {s for n in (*record.type.shape, *record.strides) for s in symbols_of(n)}
        least: dict[Symbol, Index] = {s: s.lo or 1 for s in symbols}
        type_ = record.type.with_shape([substitute(n, least) for n in record.type.shape])
        strides = fixed([substitute(s, least) for s in record.strides])
        if any(s < 0 for s in strides):
            strides = contiguous_strides(type_.static_shape)
        expression = executable.arrays.allocate(scope, replace(type_, device="cpu"), strides)
        made.append(eval(expression, dict(scope.objects)))
    return made


def _spec_to(spec: TensorSpec, ranges: Mapping[str, tuple[int, int]]) -> Json:
    symbols: dict[str, Dim] = {name: symbol(name, *ends) for name, ends in ranges.items()}
    return {
        "type": type_to_json(spec.type(symbols)),
        "strides": dims_to_json(spec.laid_out(symbols)),
        "contiguous": spec.strides is None,
    }


def _spec_from(entry: Json) -> TensorSpec:
    dtype, shape, device = entry["type"]
    if any(type(n) not in (int, str) for n in shape):
        raise ArtifactError(f"{shape!r:.100} is not a shape")
    strides = None if entry["contiguous"] else [int(s) for s in entry["strides"]]
    spec = TensorSpec(shape, str(dtype), strides, str(device))
    if not spec.names:
        type_from_json(entry["type"])
    return spec


def _output(program: Program, k: int) -> Json:
    """Type and strides of an output; ``aliases`` is the input whose memory it shares, ``changes`` one that it is."""
    slot = program.outputs[k]
    record = program.slots[slot]
    root = slot
    while program.slots[root].kind == "view":
        root = program.slots[root].source
    return {
        "type": type_to_json(record.type),
        "strides": dims_to_json(record.strides),
        "aliases": program.slots[root].source if program.slots[root].kind == "input" else None,
        "changes": program.output_ports[k].mutates,
    }


def _texts(variant: Variant, program: Program, digests: Mapping[str, str]) -> dict[str, bytes]:
    """IR after each pass, and the tile IR and source of each kernel whose text is that of its machine code."""
    lowered = run_passes(parse(variant.graph_text), program.target, Options(program.target))
    members = {f"stages/{n:02d}_{name}.ir": text.encode() for n, (name, text) in enumerate(lowered.stages.items())}
    remade = kernel_digests(lowered.program)
    for kernel in lowered.program.kernels:
        if remade[kernel.name] == digests.get(kernel.name):
            members[f"kernels/{kernel.name}.tile"] = print_kernel(kernel).encode()
            language, source = kernel_source(kernel, program.target)
            members[f"kernels/{kernel.name}.{language}"] = source.encode()
    return members


def _with_short_paths(program: Json) -> Json:
    """Folders of the author's machine stay there."""
    places = [Location(file, line) for file, line in program["locations"]]
    program["locations"] = [[place.short.rpartition(":")[0], place.line] for place in places]
    return program


def _version() -> str:
    try:
        return version("fusec")
    except PackageNotFoundError:
        return "unknown"
