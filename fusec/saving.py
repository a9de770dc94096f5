"""A compiled function to an artefact file and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any

import numpy as np

from fusec.build import Options, kernel_digests, kernel_source, load_module, run_passes
from fusec.compiled import Compiled, Variant
from fusec.errors import ArtifactError, FusecError
from fusec.frontend.capture import Library
from fusec.ir.graph import Location
from fusec.ir.index import Index, Symbol, substitute, symbols_of
from fusec.ir.parse import parse
from fusec.ir.types import DType, TensorType, contiguous_strides, fixed, u8
from fusec.runtime import artifact, launch
from fusec.runtime.arrays import Arrays, load_arrays
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable, Module
from fusec.runtime.isa import host_architecture, required_features
from fusec.runtime.memory import Block, allocate
from fusec.runtime.program import Program
from fusec.runtime.serial import Json, program_from_json, program_to_json, type_from_json, type_to_json
from fusec.runtime.structure import call_from_json, call_to_json, examine, result_from_json, result_to_json
from fusec.specs import TensorSpec
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_gpu
from fusec.tile.print import print_kernel


def save(compiled: Compiled, path: str | PathLike[str]) -> None:
    """Writes a compiled function of fixed shapes. ArtifactError where it, or the file, can't be written."""
    variant = compiled.only
    executable = variant.executable
    if any(not isinstance(argument, int) for argument in variant.arguments):
        raise ArtifactError(
            f"{compiled.name} reads tensors that are fetched at each call; compile it with freeze=True to save it "
            "(a function that changes its module's buffers can't be saved)"
        )
    arrays = executable.arrays
    program = executable.program
    result, constants = examine(variant.rebuild, _example_outputs(executable), compiled.library)
    weights = {f"input_{slot}": arrays.to_bytes(array) for slot, array in executable.weights.items()}
    weights |= {f"packed_{slot}": (u8, (block.size,), block.tobytes()) for slot, block in executable.packed.items()}
    weights |= {name: load_arrays("numpy").to_bytes(array) for name, array in constants.items()}
    manifest = {
        "fusec": _version(),
        "name": compiled.name,
        "library": compiled.library,
        "target": program.target,
        "requires": _requirements(executable),
        "inputs": [_input(*layout) for layout in variant.layouts],
        "outputs": [_output(program, k) for k in range(len(program.outputs))],
        "call": call_to_json(compiled.call_spec),
        "result": result_to_json(result),
        "arguments": list(variant.arguments),
        "fixed": sorted(executable.fixed),
        "digests": dict(executable.digests),
        "notes": list(variant.notes),
    }
    members = {artifact.GRAPH: (variant.graph_text + "\n").encode()}
    members |= _texts(variant, program, executable.digests)
    members[artifact.PROGRAM] = json.dumps(_with_short_paths(program_to_json(program)), indent=1).encode()
    members[artifact.CODE] = _code(executable.module)
    members[artifact.WEIGHTS] = artifact.encode_weights(weights)
    build = launch.build_of_extension() if is_gpu(program.target) else None
    if build is not None:
        members[artifact.LAUNCHER] = build
        manifest["launcher"] = launch.build_key()
    artifact.write(path, manifest, members)


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
    """The function in a file. Loads its machine code, after everything in the file has been checked."""
    contents = artifact.read(path)
    missing = contents.requirements.missing()
    if missing:
        raise ArtifactError(f"{contents.path}: {missing}")
    try:
        return _load(contents)
    except ArtifactError as error:
        raise ArtifactError(f"{contents.path}: {error}") from None
    except (KeyError, TypeError, ValueError, FusecError) as error:
        raise ArtifactError(f"{contents.path}: its records do not fit together: {error}") from None


def _load(contents: artifact.Contents) -> Compiled:
    manifest = contents.manifest
    program = program_from_json(json.loads(contents.read(artifact.PROGRAM)))
    library = _library(manifest["library"])
    arrays = load_arrays(library)
    stored = artifact.decode_weights(contents.read(artifact.WEIGHTS))
    weights, packed, constants = _weights(stored, program, arrays)
    result = result_from_json(manifest["result"], len(program.outputs))
    call = call_from_json(manifest["call"])
    layouts = tuple((type_from_json(entry["type"]), tuple(map(int, entry["strides"]))) for entry in manifest["inputs"])
    specs = [TensorSpec(t.static_shape, t.dtype, strides, t.device) for t, strides in layouts]
    arguments = tuple(int(a) for a in manifest["arguments"])
    fixed = frozenset(int(k) for k in manifest["fixed"])
    digests = {str(k): str(v) for k, v in manifest["digests"].items()}
    _check(program, arguments, fixed, layouts, weights, packed)
    if artifact.LAUNCHER in contents.sizes:
        launch.offer_build(str(manifest.get("launcher")), contents.read(artifact.LAUNCHER))
    module = load_module(contents.read(artifact.CODE))
    executable = Executable(program, module, library, digests, fixed, weights, packed)
    variant = Variant(
        executable,
        arguments,
        layouts,
        result.rebuild(constants),
        contents.text(artifact.GRAPH),
        tuple(map(str, manifest["notes"])),
    )
    return Compiled(str(manifest["name"]), library, specs, call, {(): variant})


def _library(name: object) -> Library:
    if name == "torch" or name == "numpy":
        return name
    raise ArtifactError(f"there is no array library {name!r}")


def _weights(
    stored: Mapping[str, tuple[DType, np.ndarray[Any, Any]]], program: Program, arrays: Arrays
) -> tuple[dict[int, Any], dict[int, Block], dict[str, Any]]:
    """Arrays by input slot, packed memory by slot, and constants by name."""
    weights: dict[int, Any] = {}
    packed: dict[int, Block] = {}
    constants: dict[str, Any] = {}
    for name, (dtype, array) in stored.items():
        kind, _, number = name.partition("_")
        if kind == "constant":
            constants[name] = array
            continue
        slot = program.slots[int(number)]
        if kind == "packed":
            block = packed[int(number)] = allocate(array.size)
            block[:] = array
        elif (dtype, array.shape) != (slot.type.dtype, slot.type.static_shape):
            raise ArtifactError(f"weight {slot.name} is {dtype}{list(array.shape)}, the program has {slot.type}")
        else:
            weights[int(number)] = _laid_out(arrays, arrays.from_numpy(array, dtype), fixed(slot.strides))
    return weights, packed, constants


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
    fixed: frozenset[int],
    layouts: tuple[Any, ...],
    weights: Mapping[int, Any],
    packed: Mapping[int, Block],
) -> None:
    """The inputs that kernels were made for are those that the manifest promises to check."""
    free = [k for k in range(len(program.inputs)) if k not in fixed]
    if len(free) != len(arguments):
        raise ArtifactError("the arguments do not match the program's inputs")
    for k, argument in zip(free, arguments, strict=True):
        slot = program.slots[program.inputs[k]]
        if not 0 <= argument < len(layouts) or (slot.type, slot.strides) != layouts[argument]:
            raise ArtifactError(f"input {slot.name} is {slot.type} in the program and not in the manifest")
    for number, block in packed.items():
        slot = program.slots[number]
        if slot.kind != "packed" or block.size < slot.type.nbytes:
            raise ArtifactError(f"packed weight {slot.name} does not fill its slot")
    if any(slot not in program.inputs for slot in weights):
        raise ArtifactError("a weight is not an input of the program")


def _example_outputs(executable: Executable) -> list[Any]:
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


def _input(type: TensorType, strides: tuple[int, ...]) -> Json:
    return {"type": type_to_json(type), "strides": list(strides)}


def _output(program: Program, k: int) -> Json:
    """Type and strides of an output; ``aliases`` is the input whose memory it shares, ``changes`` one that it is."""
    slot = program.outputs[k]
    record = program.slots[slot]
    root = slot
    while program.slots[root].kind == "view":
        root = program.slots[root].source
    return {
        "type": type_to_json(record.type),
        "strides": list(record.strides),
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
