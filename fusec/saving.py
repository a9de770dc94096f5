# SPDX-License-Identifier: Apache-2.0
"""Compiled functions to files. What reads them is :mod:`fusec.loading`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from fusec import __version__
from fusec.ahead import usual_extents
from fusec.build import Options, kernel_digests, kernel_source, run_passes
from fusec.compiled import CompiledFunction, Variant
from fusec.errors import ArtifactError
from fusec.ir.index import Index, Symbol, symbol, symbols_of
from fusec.ir.indexing import substitute
from fusec.ir.parse import parse
from fusec.ir.types import Dim, DType, contiguous_strides, fixed, u8
from fusec.location import Location
from fusec.modules import is_unlinked
from fusec.notices import SettingWarning
from fusec.runtime import artifact, launch
from fusec.runtime.adapters import load_arrays
from fusec.runtime.artifact import piece_folder
from fusec.runtime.code import Scope
from fusec.runtime.emit import pack_sources
from fusec.runtime.executable import Executable, Module
from fusec.runtime.host import HostExecutable
from fusec.runtime.isa import required_features
from fusec.runtime.program import Pack, Program, with_widest_outputs
from fusec.runtime.serial import Json, dims_to_json, program_to_json, type_to_json
from fusec.runtime.structure import call_to_json, examine, result_to_json
from fusec.runtime.telling import warn_user
from fusec.specs import TensorSpec
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_gpu
from fusec.tile.print import print_kernel
from fusec.toolchain import TVM


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


def save(compiled: CompiledFunction, path: str | PathLike[str], *, weights: bool = True) -> None:
    """Writes a compiled function of fixed shapes or of ranges. ArtifactError where it can't be written.

    Without ``weights`` those that have names are left out.
    """
    variants = compiled.complete
    target = variants[0].executable.program.target
    store = _Store()
    members: dict[str, bytes] = {}
    records = []
    for number, variant in enumerate(variants):
        given = {} if weights else _given(compiled, variant)
        record, found = _piece(compiled, variant, store, given)
        records.append(record)
        members |= {piece_folder(number) + name: data for name, data in found.items()}
    outputs = with_widest_outputs([v.executable.program for v in variants])
    manifest = {
        "fusec": __version__,
        "name": compiled.name,
        "library": compiled.library,
        "target": target,
        "requires": _requirements(variants[0].executable, members.values()),
        "dims": {name: list(ends) for name, ends in compiled.ranges.items()},
        "inputs": [_spec_to(spec, compiled.ranges) for spec in compiled.specs],
        "outputs": [_output(outputs, k) for k in range(len(outputs.outputs))],
        "call": call_to_json(compiled.call_spec),
        "parameters": None if compiled.parameters is None else compiled.parameters.to_json(),
        "quantization": None if compiled.quantization is None else compiled.quantization.to_json(),
        "weights": {} if weights else _weights_needed(variants),
        "others": [] if weights else sorted(frozenset[str]().union(*(v.names.others for v in variants))),
        "pieces": records,
    }
    members[artifact.WEIGHTS] = store.encode()
    build = launch.build_of_extension() if is_gpu(target) else None
    if build is not None:
        members[artifact.LAUNCHER] = build
        manifest["launcher"] = launch.build_key()
    artifact.write(path, manifest, members)


def _given(compiled: CompiledFunction, variant: Variant) -> Mapping[int, str]:
    """The names of the weights that are left out, by graph input. ArtifactError where there is none."""
    fixed = variant.executable.fixed
    given = {k: names[0] for k, names in variant.names.of.items() if k in fixed}
    if not given:
        raise ArtifactError(
            f"{compiled.name} has no weights that could be given at load: it reads none, or was loaded from a file"
        )
    return given


def _weights_needed(variants: Sequence[Variant]) -> Json:
    """Each weight's type, and what else it is called, by its name."""
    found: dict[str, Json] = {}
    for variant in variants:
        program = variant.executable.program
        for k, (name, *others) in variant.names.of.items():
            if k in variant.executable.fixed:
                found[name] = {"type": type_to_json(program.slots[program.inputs[k]].type), "also": others}
    return found


def _piece(
    compiled: CompiledFunction, variant: Variant, store: _Store, given: Mapping[int, str]
) -> tuple[Json, dict[str, bytes]]:
    """The record of one variant, and its members. ``given``: the weights that are left out, by graph input."""
    executable = variant.executable
    arrays, program = executable.arrays, executable.program
    if isinstance(executable, HostExecutable):
        raise ArtifactError(
            f"{compiled.name} takes arrays in host memory to a GPU and can't be saved; write it with PyTorch"
        )
    if any(not isinstance(argument, int) for argument in variant.arguments):
        raise ArtifactError(
            f"{compiled.name} reads tensors that are fetched at each call; compile it with freeze=True to save it "
            "(a function that changes its module's buffers can't be saved)"
        )
    result, constants = examine(variant.rebuild, _example_outputs(executable), compiled.library)
    if any(leaf.shape is not None for leaf in result.leaves) and variant.ranges:
        raise ArtifactError(f"{compiled.name} returns a view of a result, which a file for ranges can't hold; copy it")
    plain = load_arrays("numpy")
    without = {program.inputs[k] for k in given}
    made_of = {s.arguments[-1]: pack_sources(program, [s]) for s in program.steps if isinstance(s, Pack)}
    weights = {slot: array for slot, array in executable.weights.items() if slot not in without}
    packed = {slot: block for slot, block in executable.packed.items() if without.isdisjoint(made_of.get(slot, ()))}
    record = {
        "ranges": {name: list(ends) for name, ends in variant.ranges.items()},
        "upto": variant.upto,
        "result": {**result_to_json(result), "outputs": len(program.outputs)},
        "arguments": list(variant.arguments),
        "fixed": sorted(executable.fixed - given.keys()),
        "given": {str(k): name for k, name in given.items()},
        "digests": dict(executable.digests),
        "notes": list(variant.notes),
        "graph": executable.graph,
        "weights": {str(slot): store.add(*arrays.to_bytes(array)) for slot, array in weights.items()},
        "packed": {str(slot): store.add(u8, (block.size,), block.tobytes()) for slot, block in packed.items()},
        "constants": {name: store.add(*plain.to_bytes(array)) for name, array in constants.items()},
    }
    members = {artifact.GRAPH: (variant.graph_text + "\n").encode()}
    members |= texts_of(variant, program, executable.digests)
    members[artifact.PROGRAM] = json.dumps(_with_short_paths(program_to_json(program)), indent=1).encode()
    members[artifact.CODE] = _code(executable.module)
    return record, members


def _code(module: Module) -> bytes:
    complete = getattr(module, "complete", None)
    code: bytes = (module if complete is None else complete()).to_bytes()
    return code


def _requirements(executable: Executable, members: Iterable[bytes]) -> Json:
    """What a machine needs. Warns where that is a compiler."""
    target = executable.program.target
    if is_gpu(target):
        gpu = gpu_target(target)
        return {"gpu": {"backend": gpu.backend, "arch": gpu.arch, "device": executable.device or 0}}
    machine = cpu_target(target)
    needs = {"architecture": machine.architecture, "features": list(required_features(machine))}
    if any(is_unlinked(code) for code in members):
        warn_user(
            "no linker (ld, ld.lld, gcc, cc or clang) is installed, so that the file holds LLVM IR: it can be loaded "
            "only where TVM is installed, and slowly; install one (Debian's binutils) and save again",
            SettingWarning,
        )
        needs["packages"] = [TVM.requirement]
    return needs


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


def texts_of(variant: Variant, program: Program, digests: Mapping[str, str]) -> dict[str, bytes]:
    """IR after each pass, and the tile IR and source of each kernel whose text is that of its machine code."""
    usual = () if variant.upto is None else tuple(usual_extents(variant.ranges, variant.upto).items())
    options = Options(program.target, precision=program.precision, usual=usual)
    lowered = run_passes(parse(variant.graph_text), program.target, options)
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
    locations = [Location(file, line) for file, line in program["locations"]]
    program["locations"] = [[location.short.rpartition(":")[0], location.line] for location in locations]
    return program
