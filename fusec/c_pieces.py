# SPDX-License-Identifier: Apache-2.0
"""What the C code of a variant is made of, for CPUs and GPUs alike: its weights, its memory, its steps in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusec.compiled import CompiledFunction, Variant
from fusec.errors import ArtifactError
from fusec.ir.index import Expr, Index, Sum, Symbol
from fusec.ir.index_text import IndexSpeller
from fusec.ir.indexing import most
from fusec.ir.types import contiguous_strides, fixed
from fusec.runtime.arrays import bytes_spanned, span
from fusec.runtime.library import CHECK_INDEX
from fusec.runtime.lifetimes import reads_and_writes
from fusec.runtime.program import Call, Launch, Pack, Slot, root_of

C_TYPES = {
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

ALIGNMENT = 64


@dataclass
class Weights:
    """The bytes of a weights file."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: bytes) -> int:
        """The offset of some bytes, which are there once."""
        if data not in self.known:
            self.known[data] = self.size
            padding = bytes(-len(data) % ALIGNMENT)
            self.parts += [data, padding]
            self.size += len(data) + len(padding)
        return self.known[data]

    @property
    def data(self) -> bytes:
        """All of them."""
        return b"".join(self.parts)


class Piece:
    """The C code of one variant. A subclass says where scratch comes from, how a kernel runs, and what is loaded."""

    alignment = ALIGNMENT
    """Of scratch, in bytes."""

    checks_indices = True
    """Whether the host reads indices to see that they are in range; kernels for GPUs leave out what is not."""

    stream = ""
    """The name of the parameter that follows the dimensions; empty where there is none."""

    def __init__(self, compiled: CompiledFunction, variant: Variant, name: str, number: int, weights: Weights) -> None:
        self.number = number
        self.variant = variant
        self.program = variant.executable.program
        self.name = name
        self.compiled = compiled
        self._weights = weights
        self._pointers: dict[int, str] = {}
        self.kernels = list(dict.fromkeys(s.kernel for s in self.program.steps if not isinstance(s, Call)))
        self._refuse_calls()
        self.prepare()
        self.lines = [*self._memory(), *self._steps()]

    def prepare(self) -> None:
        """Finds the machine code. ArtifactError where there is none."""
        raise NotImplementedError

    def take_scratch(self) -> Iterator[str]:
        """Lines that make ``scratch`` point to ``scratch_bytes`` bytes, or return."""
        raise NotImplementedError

    def give_scratch(self) -> str:
        """The line that lets go of it."""
        raise NotImplementedError

    def launch(self, step: Launch | Pack, addresses: Sequence[str], sizes: Sequence[Symbol]) -> Iterator[str]:
        """Lines that run a kernel on addresses, and on sizes after them; they set ``status`` where it fails."""
        raise NotImplementedError

    def more_scratch(self) -> Iterator[str]:
        """Lines that add to ``scratch_bytes``."""
        yield from ()

    def refuse(self, why: str) -> ArtifactError:
        return ArtifactError(f"{self.compiled.name} can't be called from C: {why}")

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
            yield self.rounded_up(size)
        yield from self.more_scratch()
        yield from self.take_scratch()

    def rounded_up(self, size: str) -> str:
        """The line that adds so many bytes to ``scratch_bytes``."""
        return f"scratch_bytes += ({size} + {self.alignment - 1}) / {self.alignment} * {self.alignment};"

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
                    yield from self.launch(step, [*map(self._address, step.arguments)], sizes[step.kernel])
                    yield "if (status != FUSEC_OK) goto done;"
                case Call():
                    yield from self._check(step)
        yield "done:"
        yield self.give_scratch()
        yield "return status;"

    def _refuse_calls(self) -> None:
        for step in self.program.steps:
            is_check = isinstance(step, Call) and self.checks_indices and step.attributes.target == CHECK_INDEX
            if isinstance(step, Call) and not is_check:
                where = f" at {step.location.short}" if step.location else ""
                raise self.refuse(f"it calls the library's {step.attributes.target}{where}")

    def _check(self, step: Call) -> Iterator[str]:
        (slot,) = step.arguments
        record = self.program.slots[slot]
        (_, low, high), _ = ast.literal_eval(step.attributes.arguments.replace("$0", "0"))
        kind = C_TYPES[record.type.dtype.name]
        moving = [(n, step) for n, step in zip(record.type.shape, record.strides, strict=True) if step != 0]
        if 0 in record.type.shape:
            return
        yield f"{{ const {kind} *at = (const {kind} *){self._address(slot)};"
        for k, (extent, _) in enumerate(moving):
            yield f"for (int64_t i{k} = 0; i{k} < {spell_c(extent)} && status == FUSEC_OK; i{k}++)"
        where = " + ".join(f"i{k} * {spell_c(stride)}" for k, (_, stride) in enumerate(moving)) or "0"
        yield f"  if (at[{where}] < {low} || at[{where}] > {high}) status = FUSEC_BAD_INDEX;"
        yield "if (status != FUSEC_OK) goto done; }"

    def function(self, dims: Sequence[str]) -> str:
        """The piece's function in C."""
        given = "".join(f", int64_t {variable(d)}" for d in dims)
        given += f", void *{self.stream}" if self.stream else ""
        unused = "".join(f"  (void){variable(d)};\n" for d in dims)
        body = "".join(f"  {line}\n" for line in self.lines)
        return (
            f"static int {self.name}_piece_{self.number}(const {self.name}_model *model, const void *const *inputs, "
            f"void *const *outputs{given}) {{\n  int status = FUSEC_OK;\n"
            f"  (void)inputs;\n  (void)outputs;\n{unused}{body}}}\n"
        )


def sums(data: bytes) -> str:
    """A file's size, the sum of its 64-bit words and that weighted by their places, as arguments in C."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    weighted = (words * np.arange(1, len(words) + 1, dtype=np.uint64)).sum(dtype=np.uint64)
    return f"{len(data)}, UINT64_C({int(words.sum(dtype=np.uint64))}), UINT64_C({int(weighted)})"


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


def variable(name: str) -> str:
    return f"dim_{name}"


def name_of(s: Symbol) -> str:
    return variable(s.name)


class _InC(IndexSpeller):
    def integer(self, value: int) -> str:
        return f"INT64_C({value})" if abs(value) >= 1 << 31 else str(value)

    def symbol(self, s: Symbol) -> str:
        return name_of(s)

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


class Code:
    """What a header has besides the pieces' functions: for one kind of device.

    weights: of all pieces. files: what is written beside the header, by name.
    """

    def __init__(self, compiled: CompiledFunction, name: str) -> None:
        self.compiled, self.name = compiled, name
        self.weights = Weights()

    @property
    def pieces(self) -> Sequence[Piece]:
        """One for each variant."""
        raise NotImplementedError

    def common(self) -> Iterator[str]:
        """Texts that are the same in every header of this kind."""
        raise NotImplementedError

    def fields(self) -> str:
        """Of the struct that is a loaded model; ``weights`` is one."""
        raise NotImplementedError

    def opening(self) -> str:
        """The functions that open and close a model."""
        raise NotImplementedError

    def files(self) -> dict[str, bytes]:
        """What is written beside the header, by name."""
        return {f"{self.name}.weights": self.weights.data}
