# SPDX-License-Identifier: Apache-2.0
"""A compiled function for C programs: its shared objects, its weights, and a header that strings them together.

The header needs nothing but a C99 compiler and ``dlopen``. A kernel in a shared object has TVM's calling convention, a
plain C one: an array of tagged 64-bit values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusec.c_text import COMMON, TILES
from fusec.compiled import CompiledFunction, Variant
from fusec.errors import ArtifactError
from fusec.ir.index import Expr, Index, Sum, Symbol, symbol
from fusec.ir.index_text import IndexSpeller
from fusec.ir.indexing import most
from fusec.ir.types import DType, TensorType, contiguous_strides, fixed
from fusec.runtime.arrays import bytes_spanned, span
from fusec.runtime.isa import required_features
from fusec.runtime.library import CHECK_INDEX
from fusec.runtime.lifetimes import reads_and_writes
from fusec.runtime.program import Call, Launch, Pack, Program, Slot, root_of
from fusec.target.cpu import cpu_target
from fusec.target.gpu import is_gpu
from fusec.tile.nodes import uses_tiles

_C_TYPES = {
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "f8e4m3": "uint8_t",
    "f8e5m2": "uint8_t",
    "f32": "float",
    "f64": "double",
    "bool": "uint8_t",
    "c64": "float",
    "c128": "double",
    **{f"{sign}{bits}": f"{'u' if sign == 'u' else ''}int{bits}_t" for sign in "iu" for bits in (8, 16, 32, 64)},
}
_ALIGNMENT = 64
_SHARED = b"fusec-so"


def export_c(compiled: CompiledFunction, folder: Path) -> Path:
    """Writes ``NAME.h``, ``NAME.weights`` and the shared objects ``NAME_0.so``, ... into a folder; gives the header.

    ArtifactError for a function that C can't call: one for a GPU, with named dimensions without ranges, that calls the
    library, changes its arguments or returns a part of them, and where the folder can't be written.
    """
    name = re.sub(r"\W", "_", compiled.name)
    name = name if name[:1].isalpha() else f"f{name}"
    variants = compiled.complete
    if is_gpu(variants[0].executable.program.target):
        raise ArtifactError(f"{compiled.name} is compiled for a GPU; C programs can call functions for CPUs")
    weights = _Weights()
    pieces = [_Piece(compiled, variant, name, number, weights) for number, variant in enumerate(variants)]
    text = _header(compiled, name, pieces, weights)
    header = folder / f"{name}.h"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for piece in pieces:
            (folder / f"{name}_{piece.number}.so").write_bytes(piece.code)
        (folder / f"{name}.weights").write_bytes(b"".join(weights.parts))
        header.write_text(text)
    except OSError as error:
        raise ArtifactError(f"can't write into {folder}: {error}") from None
    return header


@dataclass
class _Weights:
    """The bytes of a weights file."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: bytes) -> int:
        """The offset of some bytes, which are there once."""
        if data not in self.known:
            self.known[data] = self.size
            padding = bytes(-len(data) % _ALIGNMENT)
            self.parts += [data, padding]
            self.size += len(data) + len(padding)
        return self.known[data]


class _Piece:
    """The C code of one variant."""

    def __init__(self, compiled: CompiledFunction, variant: Variant, name: str, number: int, weights: _Weights) -> None:
        self.number = number
        self.variant = variant
        self.program = variant.executable.program
        self.name = name
        self._compiled = compiled
        self._weights = weights
        self._pointers: dict[int, str] = {}
        self.kernels = list(dict.fromkeys(s.kernel for s in self.program.steps if not isinstance(s, Call)))
        self._refuse_calls()
        self.code = _shared_object(compiled, variant)
        self.lines = [*self._memory(), *self._steps()]

    def refuse(self, why: str) -> ArtifactError:
        return ArtifactError(f"{self._compiled.name} can't be called from C: {why}")

    def _memory(self) -> Iterator[str]:
        program, executable = self.program, self.variant.executable
        for position, slot in enumerate(executable.free_inputs):
            argument = self.variant.arguments[position]
            if not isinstance(argument, int):
                raise self.refuse("it fetches tensors at each call; compile it with freeze=True")
            self._pointers[program.inputs[slot]] = f"(const char *)inputs[{argument}]"
        for slot, array in executable.weights.items():
            dtype, shape, data = executable.arrays.to_bytes(array)
            laid = _laid_out(np.frombuffer(data, dtype.numpy).reshape(shape), program.slots[slot])
            self._pointers[slot] = f"model->weights + {self._weights.add(laid)}"
        for slot, block in executable.packed.items():
            self._pointers[slot] = f"model->weights + {self._weights.add(block.tobytes())}"
        if any(port.mutates is not None for port in program.output_ports):
            raise self.refuse("it changes its arguments")
        for k, slot in enumerate(program.outputs):
            root, offset = root_of(program, slot)
            if program.slots[root].kind != "output" or root in self._pointers or offset != 0:
                raise self.refuse(f"result {k} lies in the memory of an argument or of another result; return a copy")
            self._pointers[root] = f"(char *)outputs[{k}]"
        yield from self._scratch()

    def _scratch(self) -> Iterator[str]:
        """One block; pieces of scratch whose lives don't meet share memory, as large as the largest of them."""
        program = self.program
        lives: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(program.steps):
            reads, writes = reads_and_writes(program, step)
            for slot in (*reads, *writes):
                root, _ = root_of(program, slot)
                if root not in self._pointers and program.slots[root].kind in ("workspace", "packed"):
                    lives[root] = (lives.get(root, (number, number))[0], number)
        shelves: list[list[int]] = []
        for root in sorted(lives, key=lambda r: -most(_bytes(program.slots[r]))):
            free = (s for s in shelves if all(lives[o][1] < lives[root][0] or lives[root][1] < lives[o][0] for o in s))
            shelf = next(free, None)
            if shelf is None:
                shelves.append([root])
            else:
                shelf.append(root)
        yield "int64_t scratch_bytes = 0;"
        for k, shelf in enumerate(shelves):
            size = "0"
            for root in shelf:
                size = f"fusec_max({size}, {spell_c(_bytes(program.slots[root]))})"
                self._pointers[root] = f"scratch + at{k}"
            yield f"const int64_t at{k} = scratch_bytes;"
            yield f"scratch_bytes += ({size} + {_ALIGNMENT - 1}) / {_ALIGNMENT} * {_ALIGNMENT};"
        yield f"char *scratch = (char *)aligned_alloc({_ALIGNMENT}, scratch_bytes + {_ALIGNMENT});"
        yield "if (scratch == NULL) return FUSEC_NO_MEMORY;"

    def _address(self, slot: int) -> str:
        root, offset = root_of(self.program, slot)
        record = self.program.slots[root]
        if record.kind == "constant" and root not in self._pointers:
            data = np.full(record.type.static_shape, record.value, record.type.dtype.numpy).tobytes()
            self._pointers[root] = f"model->weights + {self._weights.add(data)}"
        nbytes = offset * self.program.slots[slot].type.dtype.itemsize
        return f"(int64_t)({self._pointers[root]} + {spell_c(nbytes)})"

    def _steps(self) -> Iterator[str]:
        sizes = {kernel.name: kernel.sizes for kernel in self.program.kernels}
        fixed_packs = self.variant.executable.packed
        for step in self.program.steps:
            match step:
                case Pack() if step.arguments[-1] in fixed_packs:
                    continue
                case Launch() | Pack():
                    given = [*map(self._address, step.arguments), *(_name(s) for s in sizes[step.kernel])]
                    values = ", ".join(f"fusec_int({value})" for value in given)
                    yield f"{{ const fusec_any a[] = {{{values}}}; /* {step.kernel} */"
                    kernel = f"model->kernels_{self.number}[{self.kernels.index(step.kernel)}]"
                    yield f"  if ({kernel}(NULL, a, {len(given)}, &result) != 0) goto failed; }}"
                case Call():
                    yield from self._check(step)
        yield "free(scratch);"
        yield "return FUSEC_OK;"
        yield "failed:"
        yield "free(scratch);"
        yield "return FUSEC_FAILED;"

    def _refuse_calls(self) -> None:
        for step in self.program.steps:
            if isinstance(step, Call) and step.attributes.target != CHECK_INDEX:
                where = f" at {step.location.short}" if step.location else ""
                raise self.refuse(f"it calls the library's {step.attributes.target}{where}")

    def _check(self, step: Call) -> Iterator[str]:
        (slot,) = step.arguments
        record = self.program.slots[slot]
        (_, low, high), _ = ast.literal_eval(step.attributes.arguments.replace("$0", "0"))
        kind = _C_TYPES[record.type.dtype.name]
        moving = [(n, step) for n, step in zip(record.type.shape, record.strides, strict=True) if step != 0]
        if 0 in record.type.shape:
            return
        yield f"{{ const {kind} *at = (const {kind} *){self._address(slot)};"
        for k, (extent, _) in enumerate(moving):
            yield f"for (int64_t i{k} = 0; i{k} < {spell_c(extent)}; i{k}++)"
        where = " + ".join(f"i{k} * {spell_c(stride)}" for k, (_, stride) in enumerate(moving)) or "0"
        yield f"  if (at[{where}] < {low} || at[{where}] > {high}) {{ free(scratch); return FUSEC_BAD_INDEX; }} }}"

    def function(self, dims: Sequence[str]) -> str:
        given = "".join(f", int64_t {_variable(d)}" for d in dims)
        unused = "".join(f"  (void){_variable(d)};\n" for d in dims)
        body = "".join(f"  {line}\n" for line in self.lines)
        return (
            f"static int {self.name}_piece_{self.number}(const {self.name}_model *model, const void *const *inputs, "
            f"void *const *outputs{given}) {{\n  fusec_any result = {{0, 0, 0}};\n"
            f"  (void)inputs;\n  (void)outputs;\n  (void)result;\n{unused}{body}}}\n"
        )


def _shared_object(compiled: CompiledFunction, variant: Variant) -> bytes:
    data = variant.executable.module.to_bytes()
    if not data.startswith(_SHARED):
        raise ArtifactError(f"{compiled.name} has no shared object: it launches nothing, or no linker is installed")
    return data[len(_SHARED) + 32 :]


def _laid_out(array: np.ndarray[Any, Any], slot: Slot) -> bytes:
    """The array's memory with the slot's strides."""
    strides = fixed(slot.strides)
    if strides == contiguous_strides(array.shape):
        return array.tobytes()
    memory = np.zeros(most(span(slot.type, strides)), array.dtype)
    in_bytes = [s * array.itemsize for s in strides]
    np.lib.stride_tricks.as_strided(memory, array.shape, in_bytes)[...] = array
    return memory.tobytes()


def _bytes(slot: Slot) -> Index:
    return bytes_spanned(slot.type, slot.strides)


# Text


def _variable(name: str) -> str:
    return f"dim_{name}"


def _name(s: Symbol) -> str:
    return _variable(s.name)


class _InC(IndexSpeller):
    def integer(self, value: int) -> str:
        return f"INT64_C({value})" if abs(value) >= 1 << 31 else str(value)

    def symbol(self, s: Symbol) -> str:
        return _name(s)

    def sum(self, e: Sum) -> str:
        terms = [f"{self.integer(k)} * {self.index(atom)}" for atom, k in e.terms]
        return f"({' + '.join([*terms, self.integer(e.constant)])})"

    def quotient(self, value: Expr, divisor: Index) -> str:
        return f"fusec_div({self.index(value)}, {self.index(divisor)})"

    def remainder(self, value: Expr, divisor: Index) -> str:
        return f"({self.index(value)} - {self.quotient(value, divisor)} * {self.index(divisor)})"

    def extremum(self, a: str, b: str, *, largest: bool) -> str:
        return f"fusec_{'max' if largest else 'min'}({a}, {b})"


def spell_c(e: Index) -> str:
    """An index expression in C, its symbols as int64 variables."""
    return _InC().index(e)


def _header(compiled: CompiledFunction, name: str, pieces: Sequence[_Piece], weights: _Weights) -> str:
    dims = list(compiled.ranges)
    inputs = [spec.type(_symbols(compiled)) for spec in compiled.specs]
    last = pieces[-1].program
    outputs = [last.slots[slot] for slot in last.outputs]
    guard = f"FUSEC_{name.upper()}_H"
    parts = [
        _comment(compiled, inputs, outputs, last),
        f"#ifndef {guard}\n#define {guard}\n{COMMON}",
        *([TILES] if _uses_tiles(pieces) else []),
        _model(name, pieces),
        *(piece.function(dims) for piece in pieces),
        _open(name, pieces, weights),
        _run(compiled, name, pieces, inputs, outputs),
        "#endif\n",
    ]
    return "\n".join(parts)


def _symbols(compiled: CompiledFunction) -> Mapping[str, Index]:
    return {name: symbol(name, *ends) for name, ends in compiled.ranges.items()}


def _comment(
    compiled: CompiledFunction, inputs: Sequence[TensorType], outputs: Sequence[Slot], program: Program
) -> str:
    lines = [f"{compiled.name}, compiled by fusec for {program.target}. Written by a program: don't edit."]
    lines += [f"{name}: {low} to {high}" for name, (low, high) in compiled.ranges.items()]
    lines += [f"input{k}: {t}, row-major" for k, t in enumerate(inputs)]
    for k, slot in enumerate(outputs):
        strides = ", ".join(map(str, slot.strides))
        lines.append(f"output{k}: {slot.type}, strides ({strides}) in elements")
    return "/* " + "\n * ".join(line.replace("*/", "") for line in lines) + "\n */"


def _model(name: str, pieces: Sequence[_Piece]) -> str:
    fields = "".join(
        f"  void *module_{p.number};\n  fusec_kernel kernels_{p.number}[{max(len(p.kernels), 1)}];\n" for p in pieces
    )
    return f"typedef struct {{\n  char *weights;\n{fields}}} {name}_model;\n"


def _uses_tiles(pieces: Sequence[_Piece]) -> bool:
    return any(uses_tiles(kernel.body) for piece in pieces for kernel in piece.program.kernels)


def _features(piece: _Piece) -> str:
    """What the CPU must have; of AMX, Linux knows more than the list does."""
    found = required_features(cpu_target(piece.program.target))
    return " ".join(feature for feature in found if not feature.startswith("amx"))


def _open(name: str, pieces: Sequence[_Piece], weights: _Weights) -> str:
    lines = [f'  if (!fusec_has("{_features(pieces[0])}")) return FUSEC_WRONG_CPU;']
    if _uses_tiles(pieces):
        lines.append("  if (!fusec_allow_tiles()) return FUSEC_NO_TILES;")
    asked = "\n".join(lines)
    lines = []
    for p in pieces:
        listed = ", ".join(f'"__tvm_ffi_{kernel}"' for kernel in p.kernels)
        lines += [
            f'  status = fusec_check(folder, "{name}_{p.number}.so", {_sums(p.code)});',
            "  if (status != FUSEC_OK) return status;",
            f"  static const char *const names_{p.number}[] = {{{listed}}};",
            f'  model->module_{p.number} = fusec_open(folder, "{name}_{p.number}.so", names_{p.number}, '
            f"{len(p.kernels)}, model->kernels_{p.number});",
            f"  if (model->module_{p.number} == NULL) return FUSEC_NO_FILE;",
        ]
    body = "\n".join(lines)
    closing = "".join(f"  if (model->module_{p.number} != NULL) dlclose(model->module_{p.number});\n" for p in pieces)
    return (
        f"/* Loads the files beside this header: FUSEC_OK; FUSEC_NO_FILE where one is missing;\n"
        f" * FUSEC_DAMAGED where one is another; FUSEC_WRONG_CPU or FUSEC_NO_TILES where this machine can't run them.\n"
        f" * fusec_strerror says it in words. */\n"
        f"static inline int {name}_open({name}_model *model, const char *folder) {{\n"
        f"  *model = ({name}_model){{0}};\n{asked}\n"
        f'  int status = fusec_read(folder, "{name}.weights", {_sums(b"".join(weights.parts))}, &model->weights);\n'
        f"  if (status != FUSEC_OK) return status;\n{body}\n  return FUSEC_OK;\n}}\n\n"
        f"static inline void {name}_close({name}_model *model) {{\n  free(model->weights);\n{closing}"
        f"  *model = ({name}_model){{0}};\n}}\n"
    )


def _sums(data: bytes) -> str:
    """A file's size, the sum of its 64-bit words and that weighted by their places, as arguments in C."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    weighted = (words * np.arange(1, len(words) + 1, dtype=np.uint64)).sum(dtype=np.uint64)
    return f"{len(data)}, UINT64_C({int(words.sum(dtype=np.uint64))}), UINT64_C({int(weighted)})"


def _run(
    compiled: CompiledFunction,
    name: str,
    pieces: Sequence[_Piece],
    inputs: Sequence[TensorType],
    outputs: Sequence[Slot],
) -> str:
    dims = list(compiled.ranges)
    given = [f"const {_c_type(t.dtype)} *input{k}" for k, t in enumerate(inputs)]
    given += [f"{_c_type(s.type.dtype)} *output{k}" for k, s in enumerate(outputs)]
    given += [f"int64_t {_variable(d)}" for d in dims]
    passed = "".join(f", {_variable(d)}" for d in dims)
    lines = []
    for p in pieces:
        tests = [f"{low} <= {_variable(d)} && {_variable(d)} <= {high}" for d, (low, high) in p.variant.ranges.items()]
        call = f"return {name}_piece_{p.number}(model, inputs, outputs{passed});"
        lines.append(f"  if ({' && '.join(tests) or '1'}) {call}")
    body = "\n".join(lines)
    ins = ", ".join(f"input{k}" for k in range(len(inputs))) or "NULL"
    outs = ", ".join(f"output{k}" for k in range(len(outputs))) or "NULL"
    return (
        f"/* FUSEC_OK, FUSEC_OUT_OF_RANGE for dimensions out of range, or FUSEC_BAD_INDEX. From any thread. */\n"
        f"static inline int {name}_run(const {name}_model *model, {', '.join(given)}) {{\n"
        f"  const void *inputs[] = {{{ins}}};\n  void *outputs[] = {{{outs}}};\n{body}\n"
        f"  return FUSEC_OUT_OF_RANGE;\n}}\n"
    )


def _c_type(dtype: DType) -> str:
    return _C_TYPES[dtype.name]
