# SPDX-License-Identifier: Apache-2.0
"""A compiled function for C programs: its machine code, its weights, and a header that strings them together.

The header needs nothing but a C99 compiler and ``dlopen``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fusec.c_cpu import CpuCode
from fusec.c_gpu import GpuCode
from fusec.c_pieces import C_TYPES, Code, Piece, variable
from fusec.c_text import COMMON
from fusec.compiled import CompiledFunction
from fusec.errors import ArtifactError
from fusec.ir.index import Index, symbol
from fusec.ir.types import TensorType
from fusec.os_errors import told
from fusec.runtime.program import Program, Slot, with_widest_outputs
from fusec.target.gpu import is_gpu


def export_c(compiled: CompiledFunction, folder: Path) -> Path:
    """Writes ``NAME.h``, ``NAME.weights`` and the shared objects ``NAME_0.so``, ... into a folder; gives the header.

    Of a function for a GPU the kernels are in ``NAME.cubins``; arrays are then in the GPU's memory.

    ArtifactError for a function that C can't call: one with named dimensions without ranges, that calls the library,
    changes its arguments or returns a part of them, and where the folder can't be written.
    """
    name = re.sub(r"\W", "_", compiled.name)
    name = name if name[:1].isalpha() else f"f{name}"
    on_gpu = is_gpu(compiled.complete[0].executable.program.target)
    code: Code = GpuCode(compiled, name) if on_gpu else CpuCode(compiled, name)
    text = _header(compiled, code)
    header = folder / f"{name}.h"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in code.files().items():
            (folder / file).write_bytes(data)
        header.write_text(text)
    except OSError as error:
        raise ArtifactError(f"can't write into {folder}: {told(error)}") from None
    return header


def _header(compiled: CompiledFunction, code: Code) -> str:
    name, pieces = code.name, code.pieces
    dims = list(compiled.ranges)
    inputs = [spec.type(_symbols(compiled)) for spec in compiled.specs]
    program = with_widest_outputs([piece.program for piece in pieces])
    outputs = [program.slots[slot] for slot in program.outputs]
    guard = f"FUSEC_{name.upper()}_H"
    functions = [piece.function(dims) for piece in pieces]
    parts = [
        _comment(compiled, inputs, outputs, program),
        f"#ifndef {guard}\n#define {guard}\n{COMMON}",
        *code.common(),
        f"typedef struct {{\n  char *weights;\n{code.fields()}}} {name}_model;\n",
        *functions,
        code.opening(),
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


def _run(
    compiled: CompiledFunction,
    name: str,
    pieces: Sequence[Piece],
    inputs: Sequence[TensorType],
    outputs: Sequence[Slot],
) -> str:
    dims = list(compiled.ranges)
    given = [f"const {C_TYPES[t.dtype.name]} *input{k}" for k, t in enumerate(inputs)]
    given += [f"{C_TYPES[s.type.dtype.name]} *output{k}" for k, s in enumerate(outputs)]
    given += [f"int64_t {variable(d)}" for d in dims]
    stream = pieces[0].stream
    given += [f"void *{stream}"] if stream else []
    passed = "".join(f", {word}" for word in [*map(variable, dims), *([stream] if stream else [])])
    lines = []
    for p in pieces:
        tests = [f"{low} <= {variable(d)} && {variable(d)} <= {high}" for d, (low, high) in p.variant.ranges.items()]
        if p.variant.upto is not None:
            tests.append(f"{' * '.join(map(variable, p.variant.ranges))} <= {p.variant.upto}")
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
