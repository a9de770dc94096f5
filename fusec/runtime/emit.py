# SPDX-License-Identifier: Apache-2.0
"""A program as straight-line Python: addresses read, results allocated, kernels called, nothing decided per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from fusec.errors import LoweringError
from fusec.ir.index import Symbol, symbol
from fusec.ir.indexing import most
from fusec.ir.types import Dim, TensorType, contiguous_strides, fixed, u8
from fusec.runtime.addresses import Address
from fusec.runtime.arrays import Arrays, bytes_spanned
from fusec.runtime.calls import first_checked
from fusec.runtime.code import Scope, spell, spell_tuple, variable_of
from fusec.runtime.in_place import calls_in_place
from fusec.runtime.lifetimes import Lifetimes, reads_and_writes
from fusec.runtime.memory import ALIGNMENT, DEVICE_ALIGNMENT, POOL, POOLED_BYTES, ArenaPlan, plan_arena, size_class
from fusec.runtime.program import Call, Launch, Pack, Program, Step, root_of

KernelLookup = Callable[[str], Callable[..., Any]]
PackMaker = Callable[[Sequence[Pack]], Callable[..., tuple[Any, ...]]]
"""From Pack steps to the function of their root inputs that gives what keeps the packed memory, and its addresses."""
CallMaker = Callable[[Call], Callable[..., Sequence[Any]]]
Mark = Callable[[int, list[str]], list[str]]
"""From a step's number and its lines to the lines that take their place."""
Chain = Sequence[tuple[str, Sequence[tuple[int, int, int]]]]
"""Launches: a kernel, and for each argument which of the call's values it is, from 1 on, 0 for none, how many bytes
after the value the address lies in memory, 0 where it is the value, and what to add."""
ChainMaker = Callable[[Chain], tuple[Callable[..., None], int, object]]
"""From launches to a function of a table's address and the values, that address, and what must be kept for it."""
RowMaker = Callable[[Sequence[tuple[str, Sequence[int]]], int], Callable[..., None]]
"""From launches (a kernel, and which of the addresses are its own) and the number of addresses to one function of a
stream and the addresses."""


_OWN = ("numpy.", "fusec.")
"""How targets of calls begin whose operands and results are known."""


@dataclass(frozen=True)
class Parts:
    """What the code of a program calls.

    weights: input slots whose arrays are fixed. packed: packed slots whose memory is fixed (a byte array each).
    row: launches several kernels at once, where the device (number ``device``) can. chain: runs several kernels as
    one call, on a CPU. whole: rows are not cut.
    """

    kernel: KernelLookup
    pack: PackMaker
    call: CallMaker
    weights: Mapping[int, Any] = field(default_factory=dict)
    packed: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    row: RowMaker | None = None
    device: int = 0
    chain: ChainMaker | None = None
    whole: bool = False


class ProgramWriter:
    """Writes the lines of one program into a scope.

    ``inputs[k]`` is the variable of graph input ``k``. After :meth:`write`, ``results`` are the variables of the
    graph's outputs, and the first ``before_writes`` lines those that leave every input as it is. ``mark`` puts more
    around the lines of each step; kernels are then launched one by one. owned: input slots that nothing but their
    variables holds.
    """

    def __init__(
        self,
        program: Program,
        arrays: Arrays,
        parts: Parts,
        scope: Scope,
        inputs: Sequence[str],
        mark: Mark | None = None,
        owned: frozenset[int] = frozenset(),
    ) -> None:
        self.lines: list[str] = []
        self.results: list[str] = []
        self.before_writes: int | None = None
        self._program = program
        self._arrays = arrays
        self._parts = parts
        self._scope = scope
        self._mark = mark
        self._variables: dict[int, str] = {}
        self._addresses: dict[int, Address] = {}
        for slot, variable in zip(program.inputs, inputs, strict=True):
            self._variables[slot] = variable
        for slot, weight in parts.weights.items():
            self._variables[slot] = scope.bind(weight, f"w_{program.slots[slot].name}")
        self._in_place = calls_in_place(program)
        self._sizes = {kernel.name: kernel.sizes for kernel in program.kernels}
        self._lifetimes = Lifetimes(program, owned)
        self._blocks: dict[int, str] = {}
        self._cuts = self._are_rows_cut()

    def write(self) -> ProgramWriter:
        self._read_sizes()
        self._note_writes()
        self._write_scratch()
        if self._mark is not None:
            self._write_marked(self._mark)
        else:
            steps = self._program.steps
            self._write_packings(
                [s for s in steps if isinstance(s, Pack) and self._is_cached(s)]
            )  # so they part no launches
            for together, row in self._rows():
                for part in self._lifetimes.cut(row) if self._cuts and together else [row]:
                    if together:
                        self._write_together([steps[number] for number in part])
                    else:
                        self._write_step(steps[part[0]])
                    self._release(part)
        self._write_results()
        if self.before_writes is None:
            self.before_writes = len(self.lines)
        return self

    def _rows(self) -> list[tuple[bool, list[int]]]:
        """The numbers of steps that are launched together, where the first is true, or of one that is not."""
        steps = self._program.steps
        others = [k for k, s in enumerate(steps) if not (isinstance(s, Pack) and self._is_cached(s))]
        found: list[tuple[bool, list[int]]] = []
        for together, members in groupby(others, lambda number: self._goes_with_others(steps[number])):
            row = list(members)
            found += [(True, row)] if together else [(False, [number]) for number in row]
        return found

    def _are_rows_cut(self) -> bool:
        if self._parts.row is None or self._parts.whole or self._mark is not None:
            return False
        return self._lifetimes.better_cut([row for _, row in self._rows()])

    def _release(self, row: Sequence[int]) -> None:
        """Lets go of what is not needed after these steps."""
        released = set(self._lifetimes.released(row))
        held = [v for slot, v in self._variables.items() if root_of(self._program, slot)[0] in released]
        held += [block for slot, block in self._blocks.items() if slot in released]
        held = [v for v in dict.fromkeys(held) if v.isidentifier() and v != "None"]
        if held:
            self.lines.append(" = ".join((*held, "None")))

    def _note_write(self) -> None:
        """From here on an input may be changed."""
        if self.before_writes is None:
            self.before_writes = len(self.lines)

    def _changes_input(self, step: Step) -> bool:
        if isinstance(step, Call):
            return step.results in self._in_place
        written = reads_and_writes(self._program, step)[1]
        return any(self._program.slots[root_of(self._program, slot)[0]].kind == "input" for slot in written)

    def _write_marked(self, mark: Mark) -> None:
        for number, step in enumerate(self._program.steps):
            start = len(self.lines)
            self._write_step(step)
            self.lines[start:] = mark(number, self.lines[start:])

    def _is_cached(self, step: Pack) -> bool:
        return step.cacheable or step.arguments[-1] in self._parts.packed

    def _goes_with_others(self, step: Step) -> bool:
        """Whether a step can be launched together with its neighbours: its blocks and addresses are all it needs."""
        if self._parts.row is not None:
            return isinstance(step, Launch)
        if self._parts.chain is None:
            return False
        return isinstance(step, Launch) or (isinstance(step, Pack) and not self._is_cached(step))

    def _write_together(self, steps: Sequence[Step]) -> None:
        if any(map(self._changes_input, steps)):
            self._note_write()
        launches = [step for step in steps if isinstance(step, Launch | Pack)]
        if self._parts.row is not None:
            self._write_row(launches)
        elif len(launches) == 1 and self._arrays.address_field is None:
            self._write_step(launches[0])
        else:
            self._write_chain(launches)

    def _read_sizes(self) -> None:
        """The symbolic extents, from the shapes of inputs, and integers."""
        program = self._program
        read: set[Symbol] = set()
        for slot, port in zip(program.inputs, program.input_ports, strict=True):
            for axis, extent in enumerate(program.slots[slot].type.shape):
                if isinstance(extent, Symbol) and extent not in read and self._variables[slot] != "None":
                    read.add(extent)
                    suffix = "" if port.role == "integer" else f".shape[{axis}]"
                    self.lines.append(f"{variable_of(extent)} = {self._variables[slot]}{suffix}")

    def _note_writes(self) -> None:
        """Before any kernel, so that what was packed from an array that one of them writes is packed anew."""
        for slot, port in zip(self._program.outputs, self._program.output_ports, strict=True):
            if port.mutates is not None and slot == self._program.inputs[port.mutates]:
                note = self._arrays.note_write(self._scope, self._variables[slot])
                self.lines += [note] if note else []

    # What needs an array object, what only memory

    def _write_scratch(self) -> None:
        """One block for all scratch that only kernels see; laid out at the call where sizes are known only then."""
        program = self._program
        inner, lives = self._lifetimes.inner, self._lifetimes.spans
        apart = self._lifetimes.apart(inner) if self._cuts else frozenset[int]()
        roots = [slot for slot in lives if slot in inner and slot not in apart]
        if not roots:
            return
        sizes = [bytes_spanned(s.type, s.strides) for s in (program.slots[root] for root in roots)]
        device = program.slots[roots[0]].type.device
        if not all(isinstance(size, int) for size in sizes):
            self._write_arena(roots, sizes, [lives[root] for root in roots], device)
            return
        alignment = ALIGNMENT if device == "cpu" else DEVICE_ALIGNMENT
        offsets, total = plan_arena(fixed(sizes), [lives[root] for root in roots], alignment)
        address = self._take(max(total, 1))[1] if device == "cpu" else self._take_on(device, max(total, 1))
        for root, offset in zip(roots, offsets, strict=True):
            self._addresses[root] = Address(address, offset)

    def _write_arena(
        self, roots: Sequence[int], sizes: Sequence[Dim], lives: Sequence[tuple[int, int]], device: str
    ) -> None:
        plan = self._scope.bind(ArenaPlan(lives, ALIGNMENT if device == "cpu" else DEVICE_ALIGNMENT), "plan")
        whole = symbol("0", 1)  # no user's dimension has this name
        self.lines.append(f"{variable_of(whole)}, offsets = {plan}({spell_tuple(sizes)})")
        if device == "cpu":
            take = self._scope.bind(POOL.take_size, "take")
            self.lines.append(f"scratch, scratch_at = {take}({variable_of(whole)})")
        else:
            self.lines.append(f"scratch_at = {self._take_on(device, whole)}")
        for position, root in enumerate(roots):
            name = self._name(root)
            self.lines.append(f"{name}_at = scratch_at + offsets[{position}]")
            self._addresses[root] = Address(f"{name}_at")

    def _take(self, nbytes: Dim) -> tuple[str, str]:
        """A block from the pool; of a size known at the call only, it has at least a byte."""
        block, address = self._fresh("block"), self._fresh("at")
        if isinstance(nbytes, int):
            take = self._scope.bind(POOL.take_size, "take")
            self.lines.append(f"{block}, {address} = {take}({size_class(max(nbytes, 1))})")
        else:
            self.lines.append(f"{block}, {address} = {self._scope.bind(POOL.take, 'take_bytes')}({spell(nbytes)})")
        return block, address

    def _take_on(self, device: str, nbytes: Dim) -> str:
        """Memory of a device's own allocator, for the time of the call; its address."""
        block, address = self._fresh("block"), self._fresh("at")
        made = self._arrays.allocate(self._scope, TensorType(u8, (nbytes,), device), (1,))
        self.lines += [f"{block} = {made}", f"{address} = {self._arrays.address(self._scope, block)}"]
        return address

    def _fresh(self, stem: str) -> str:
        return f"{stem}{len(self.lines)}"

    # Steps

    def _write_step(self, step: Step) -> None:
        if self._changes_input(step):
            self._note_write()
        match step:
            case Launch() if self._parts.row is not None:
                self._write_row([step])
            case Pack() if self._is_cached(step):
                self._write_packings([step])
            case Launch() | Pack():
                self._make_written(step)
                self._call_kernel(step.kernel, step.arguments)
            case Call():
                self._write_call(step)

    def _write_row(self, launches: Sequence[Launch | Pack]) -> None:
        """Launches one after another as one call; each address is given once, and after them each size."""
        assert self._parts.row is not None
        numbers: dict[str, int] = {}
        rows: list[tuple[str, list[int]]] = []
        for step in launches:
            self._make_written(step)
            addresses = [str(self._address(slot)) for slot in step.arguments]
            rows.append((step.kernel, [numbers.setdefault(address, len(numbers)) for address in addresses]))
        for kernel, own in rows:
            own += [numbers.setdefault(variable_of(s), len(numbers)) for s in self._sizes[kernel]]
        run = self._scope.bind(self._parts.row(rows, len(numbers)), f"run_{launches[0].kernel}")
        stream = self._arrays.stream(self._scope, self._parts.device)
        self.lines.append(f"{run}({stream}, {', '.join(numbers)})")

    def _write_chain(self, launches: Sequence[Launch | Pack]) -> None:
        """Launches one after another as one call; fixed addresses and offsets stand in its table."""
        assert self._parts.chain is not None
        numbers: dict[str, int] = {"": 0}
        chain: list[tuple[str, list[tuple[int, int, int]]]] = []
        for step in launches:
            self._make_written(step)
            addresses = [self._chain_address(slot) for slot in step.arguments]
            addresses += [Address(variable_of(s)) for s in self._sizes[step.kernel]]
            numbered = [(numbers.setdefault(p.base, len(numbers)), p.field, p.offset) for p in addresses]
            chain.append((step.kernel, numbered))
        run, table, alive = self._parts.chain(chain)
        self._scope.bind(alive, "table")
        given = [str(table), *(base for base in numbers if base)]
        self.lines.append(f"{self._scope.bind(run, 'run_chain')}({', '.join(given)})  # {len(launches)} kernels")

    def _make_written(self, step: Launch | Pack) -> None:
        if isinstance(step, Pack):
            packed = self._program.slots[step.arguments[-1]]
            block = self._take(bytes_spanned(packed.type, packed.strides))
            self._addresses[step.arguments[-1]] = Address(block[1])
            return
        for slot in reads_and_writes(self._program, step)[1]:
            self._make(slot)

    def _call_kernel(self, kernel: str, arguments: Sequence[int]) -> None:
        function = self._scope.bind(self._parts.kernel(kernel), kernel)
        given = [*map(str, map(self._address, arguments)), *map(variable_of, self._sizes[kernel])]
        self.lines.append(f"{function}({', '.join(given)})")

    def _write_packings(self, steps: Sequence[Pack]) -> None:
        """Packings of inputs that keep their address. What was packed before the call has fixed addresses."""
        made: list[Pack] = []
        for step in steps:
            fixed = self._parts.packed.get(step.arguments[-1])
            if fixed is None:
                made.append(step)
            else:
                self._scope.bind(fixed, f"packed_{self._program.slots[step.arguments[-1]].name}")
                self._addresses[step.arguments[-1]] = Address("", fixed.ctypes.data)
        if not made:
            return
        function = self._scope.bind(self._parts.pack(made), "packings" if len(made) > 1 else f"pack_{made[0].kernel}")
        names = [f"at{len(self.lines)}_{position}" for position in range(len(made))]
        sources = ", ".join(self._variables[root] for root in pack_sources(self._program, made))
        self.lines.append(f"{self._fresh('packed')}, {', '.join(names)} = {function}({sources})")
        self._addresses |= {step.arguments[-1]: Address(name) for step, name in zip(made, names, strict=True)}

    def _write_call(self, step: Call) -> None:
        step = self._in_place.get(step.results, step)
        function = self._call_of(step)
        arguments = ", ".join(self._operand(step, position) for position in range(len(step.arguments)))
        made = self._fresh("made")
        self.lines.append(f"{made} = {function}({arguments})")
        for position, slot in enumerate(step.results):
            variable = self._name(slot)
            self.lines.append(f"{variable} = {self._arrays.contiguous(self._scope, f'{made}[{position}]')}")
            self._variables[slot] = variable
        self.lines.append(f"{made} = None")

    def _call_of(self, step: Call) -> str:
        """The function of a call; what it gives at first is looked at where stand-ins told what it would be."""
        name, made = step.attributes.target.replace(".", "_"), self._parts.call(step)
        if step.attributes.target.startswith(_OWN):
            return self._scope.bind(made, name)
        read = {slot for later in self._program.steps for slot in reads_and_writes(self._program, later)[0]}
        read = {root_of(self._program, slot)[0] for slot in (*read, *self._program.outputs)}
        wanted = {k: self._program.slots[slot].type for k, slot in enumerate(step.results) if slot in read}
        anywhere = {k for k, slot in enumerate(step.results) if slot not in self._read_by_kernels}
        checked = first_checked(made, step.attributes.target, wanted, self._arrays, anywhere)
        return f"{self._scope.bind(checked, name)}[0]"

    @cached_property
    def _read_by_kernels(self) -> Set[int]:
        """The slots whose memory kernels read."""
        kernels = [step for step in self._program.steps if isinstance(step, Launch | Pack)]
        read = {slot for step in kernels for slot in reads_and_writes(self._program, step)[0]}
        return {root_of(self._program, slot)[0] for slot in read}

    def _operand(self, step: Call, position: int) -> str:
        """The array that a call is given: contiguous where the function gave it such a one."""
        slot = step.arguments[position]
        variable = self._variable(slot)
        record = self._program.slots[slot]
        as_it_lies = step.attributes.target.startswith(_OWN) or position in step.attributes.strided
        if as_it_lies or record.strides == contiguous_strides(record.type.shape):
            return variable
        return self._arrays.contiguous(self._scope, variable)

    # Slots

    def _name(self, slot: int) -> str:
        return f"s{slot}"

    def _make(self, slot: int) -> None:
        """Allocates a slot that a kernel is about to write, unless it has memory."""
        slot, _ = root_of(self._program, slot)
        if slot in self._addresses or slot in self._variables:
            return
        record = self._program.slots[slot]
        variable = self._name(slot)
        nbytes = bytes_spanned(record.type, record.strides)
        if record.kind not in ("output", "workspace"):
            raise LoweringError(f"a kernel writes slot {record.name}, which is of kind {record.kind}")
        if most(nbytes) >= POOLED_BYTES and record.type.device == "cpu":
            block, address = self._take(nbytes)
            self._addresses[slot] = Address(address)
            self._blocks[slot] = block
            made = self._arrays.over_block(self._scope, record.type, record.strides, block)
        else:
            made = self._arrays.allocate(self._scope, record.type, record.strides)
        self.lines.append(f"{variable} = {made}")
        self._variables[slot] = variable

    def _address(self, slot: int) -> Address:
        root, offset = root_of(self._program, slot)
        address = self._addresses.get(root)
        if address is None:
            address = self._addresses[root] = self._root_address(root)
        return address.after(offset * self._program.slots[slot].type.dtype.itemsize)

    def _chain_address(self, slot: int) -> Address:
        """The address for a chain, which finds by itself where an array's object says that its elements are."""
        root, offset = root_of(self._program, slot)
        field = self._arrays.address_field
        is_array = self._program.slots[root].kind != "constant" and root not in self._parts.weights
        if field is None or root in self._addresses or not is_array or not isinstance(offset, int):
            return self._address(slot)
        variable = self._variables[root]
        return Address(f"id({variable})", offset * self._program.slots[slot].type.dtype.itemsize, field)

    def _root_address(self, root: int) -> Address:
        record = self._program.slots[root]
        if record.kind == "constant" and record.type.device != "cpu":
            return Address(self._arrays.address(self._scope, self._variable(root)))
        if record.kind == "constant":
            memory = np.full(max(1, prod(record.type.static_shape)), record.value, record.type.dtype.numpy)
            self._scope.bind(memory, f"constant_{root}")
            return Address("", memory.ctypes.data)
        variable = self._variables.get(root)
        if variable is None:
            raise LoweringError(f"slot {record.name} ({record.kind}) is read before anything fills it")
        expression = self._arrays.address(self._scope, variable)
        if root in self._parts.weights:
            return Address("", self._arrays.address_of(self._parts.weights[root]))
        name = f"p{root}"
        self.lines.append(f"{name} = {expression}")
        return Address(name)

    def _variable(self, slot: int) -> str:
        """The variable that holds a slot as an array; views are taken here."""
        known = self._variables.get(slot)
        if known is not None:
            return known
        record = self._program.slots[slot]
        variable = self._name(slot)
        if record.kind == "view":
            root, offset = root_of(self._program, slot)
            base = self._variable(root)
            made = self._arrays.view(self._scope, record.type, record.strides, base, offset)
        elif record.kind == "constant":
            made = self._arrays.scalar(self._scope, record.type, record.value)
        else:
            self._make(slot)
            return self._variables[slot]
        self.lines.append(f"{variable} = {made}")
        self._variables[slot] = variable
        return variable

    # Results

    def _write_results(self) -> None:
        program = self._program
        ports = program.output_ports
        changed = {k: program.inputs[port.mutates] for k, port in enumerate(ports) if port.mutates is not None}
        changed = {k: slot for k, slot in changed.items() if slot != program.outputs[k]}  # others hold theirs by now
        self.results = [self._variable(slot) for slot in program.outputs]
        if len(changed) > 1 or any(map(self._lies_in_input, changed)):
            for k in changed:
                if self._lies_in_input(k):  # its source may be overwritten before it is read
                    saved = f"saved{k}"
                    self.lines.append(f"{saved} = {self._arrays.copy(self._scope, self.results[k])}")
                    self.results[k] = saved
        if changed:
            self._note_write()
        for k, slot in changed.items():
            into = self._variables[slot]
            if (program.outputs[k],) not in self._in_place:
                self.lines.append(self._arrays.copy_into(self._scope, into, self.results[k]))
            self.results[k] = into

    def _lies_in_input(self, output: int) -> bool:
        root, _ = root_of(self._program, self._program.outputs[output])
        return self._program.slots[root].kind == "input"


def pack_sources(program: Program, steps: Sequence[Pack]) -> list[int]:
    """The input slots that packings read, each once."""
    return list(dict.fromkeys(root_of(program, slot)[0] for step in steps for slot in step.arguments[:-1]))
