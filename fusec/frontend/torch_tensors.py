# SPDX-License-Identifier: Apache-2.0
"""The tensors of a capture: which value each holds, and where the inputs come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.capture import ArgumentSource, ReferenceSource, Source
from fusec.frontend.torch_emit import Emitter, tensor_type
from fusec.frontend.torch_fake import check_plain, fake_like, fake_mode, is_held, value_name
from fusec.frontend.torch_memory import Handle, Memory
from fusec.frontend.torch_memos import tie_to_memo
from fusec.frontend.torch_references import Fetch, References
from fusec.frontend.torch_stand_in import Asked, as_argument, check_argument, standing_for
from fusec.ir.builder import Builder
from fusec.ir.nodes import InputRole, Port, Value
from fusec.ir.types import contiguous_strides

Fake = Callable[[torch.Tensor], torch.Tensor]
Layout = tuple[torch.dtype, torch.Size, tuple[int, ...], Any]


class Recorder(Protocol):
    """What keeps the calls of a run for autograd."""

    def input(self, fake: torch.Tensor, real: torch.Tensor, source: Source, name: str) -> None:
        """A tensor that comes from outside."""

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, fake: Fake) -> None:
        """A call of the library's, and what it gave. ``fake``: what stands for a tensor."""


class TracedTensors:
    """Fake tensors by identity, each a view of memory that holds a value; real ones become inputs by reference.

    ``ties`` are pairs of fetches that give one tensor. A value that one memory holds another gets as a copy.
    ``for_code``: a function's own code sees the fakes, and may ask what they are. ``takes_fakes``: an argument may be a
    fake tensor, of a graph that is looked at and not called.
    """

    def __init__(self, name: str, references: References, *, for_code: bool, for_gpu: bool = False) -> None:
        self.builder = Builder(name)
        self.emitter = Emitter(self.builder, for_gpu=for_gpu)
        self.sources: list[Source] = []
        self.memories: list[Memory] = []
        self.ties: list[tuple[Fetch, Fetch]] = []
        self.recording: Recorder | None = None
        self.takes_fakes = False
        self._references = references
        self._for_code = for_code
        self.asked = Asked()
        self.relabelled: dict[int, tuple[torch.Tensor, torch.Size, tuple[int, ...]]] = {}
        self._fake_mode = fake_mode()
        self._handles: dict[int, tuple[torch.Tensor, Handle]] = {}
        self._layouts: dict[int, Layout] = {}
        self._lifted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._owned: set[Value] = set()
        self._inputs: set[Value] = set()

    # Inputs

    def argument(self, real: torch.Tensor, index: int, path: str, role: InputRole = "argument") -> torch.Tensor:
        """The fake tensor of an argument, which becomes a graph input."""
        return self._input(real, ArgumentSource(index), path, role, path)

    def _reference(self, real: torch.Tensor) -> torch.Tensor:
        """The fake tensor of a parameter or another tensor that the function found."""
        found = self._references.find(real)
        if found is None:
            tie = tie_to_memo(real)
            if tie is not None:
                self.ties.append(tie)
            elif is_held(real):
                raise UnsupportedOpError(
                    f"{self.emitter.call} reads a tensor of shape {list(real.shape)} that is kept where it can't be "
                    "fetched anew; pass it as an argument, or keep it in a module, a variable or an attribute",
                    self.emitter.location,
                )
            elif real.dim() == 0 and any(fake.device.type != "cpu" for fake, _ in self._handles.values()):
                # It ran with stand-ins, by which it would choose kernels of its own for the calls that follow.
                raise UnsupportedOpError(
                    f"{self.emitter.call} reads a number that TorchScript made; on a GPU call the function as Python",
                    self.emitter.location,
                )
            return self._input(real, ReferenceSource("constant", holding(real)), "constant", "state", "constant")
        self.ties += [(found.fetch, other) for other in found.others]
        self.ties += [tie for tie in found.within if tie not in self.ties]
        role: InputRole = "parameter" if found.is_parameter else "state"
        name = found.path.removeprefix("self.")
        return self._input(real, ReferenceSource(found.path, found.fetch), found.path, role, name)

    def _input(self, real: torch.Tensor, source: Source, path: str, role: InputRole, name: str) -> torch.Tensor:
        if not (self.takes_fakes and type(real) is FakeTensor):
            check_plain(real, path)
        strides = tuple(real.stride())
        port = Port(
            strides=None if strides == contiguous_strides(real.shape) else strides,
            offset=int(real.storage_offset()),
            role=role,
            path=path,
        )
        value = self.builder.input(tensor_type(real), value_name(name), port)
        fake = fake_like(self._fake_mode, real)
        memory = Memory(value, fake, source=len(self.sources))
        self.sources.append(source)
        self.memories.append(memory)
        self._owned.add(value)
        self._inputs.add(value)
        self._hold(fake, Handle(memory))
        if self.recording is not None:
            self.recording.input(fake, real, source, value.name)
        if isinstance(source, ArgumentSource):
            as_argument(fake, real, source.index, self.asked)
        return fake

    def _hold(self, fake: torch.Tensor, handle: Handle) -> None:
        """Notes what a fake tensor shows; from here on the function may see it."""
        if self._for_code:
            standing_for(fake)
        self._handles[id(fake)] = (fake, handle)
        self._layouts[id(fake)] = layout_of(fake)

    def handle(self, tensor: torch.Tensor) -> Handle:
        """What the trace knows of a tensor; one that it has not met is lifted to an input by reference."""
        tensor, handle = self._handles[id(self._as_fake(tensor))]
        self._check_memory(tensor, handle)
        return handle

    def check_memories(self) -> None:
        """UnsupportedOpError where a tensor was given other memory, whether or not it was read since."""
        for tensor, handle in self._handles.values():
            self._check_memory(tensor, handle)
            check_argument(tensor)

    def _check_memory(self, tensor: torch.Tensor, handle: Handle) -> None:
        if not handle.memory.holds(tensor) or layout_of(tensor) != self._layouts[id(tensor)]:
            raise UnsupportedOpError(
                "a tensor is given other memory in place (x.data = y, x.set_(y))", self.emitter.location
            )

    def found_inputs(self, sources: Sequence[Source]) -> set[int]:
        """The ids of tensors that the function found and that these inputs of the graph fetch."""
        given = set(map(id, sources))
        numbers = {key: self._handles[id(fake)][1].memory.source for key, (_, fake) in self._lifted.items()}
        return {key for key, number in numbers.items() if number is not None and id(self.sources[number]) in given}

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that stands for one in this trace: itself, unless it is real."""
        return self._as_fake(tensor)

    def made_strides(self, memory: Memory) -> tuple[int, ...]:
        """The strides of the tensor that covers a memory, as it was made."""
        tensor = memory.tensor
        _, _, strides = self.relabelled.get(id(tensor), (tensor, tensor.shape, tensor.stride()))
        return tuple(strides)

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._handles:
            return tensor
        known = self._lifted.get(id(tensor))
        if known is None:
            if isinstance(tensor, FakeTensor):
                raise CaptureError("a tensor of another trace was used", self.emitter.location)
            known = self._lifted[id(tensor)] = (tensor, self._reference(tensor))
        return known[1]

    def value(self, tensor: torch.Tensor) -> Value:
        """The present value of a tensor."""
        return self.handle(tensor).read(self.emitter)

    # Results

    def _bind(self, tensor: torch.Tensor, value: Value, sealed: str = "") -> None:
        """Gives a tensor memory of its own that holds the value."""
        wanted = tensor_type(tensor)
        if value.type != wanted:
            raise CaptureError(
                f"{self.emitter.call} was lowered to {value.type}, PyTorch gives {wanted}", self.emitter.location
            )
        if self.emitter.root(value) in self._owned:
            value = self.emitter.emit("copy", value)
        memory = Memory(value, tensor, sealed=sealed)
        self.memories.append(memory)
        self._own(value)
        self._hold(tensor, Handle(memory))

    def _taken(self, tensor: torch.Tensor, since: int) -> Value:
        """The value of a tensor that nobody else has seen, free for another tensor to hold."""
        value = self.value(tensor)
        memory = self.handle(tensor).memory
        if any(memory is made for made in self.memories[since:]):
            self._owned.discard(memory.value)
        return value

    def _store(self, target: torch.Tensor, value: Value) -> None:
        """Writes a value into a tensor, in its dtype and shape."""
        wanted = tensor_type(target)
        if value.type.device != wanted.device:
            raise UnsupportedOpError(
                f"{self.emitter.call} copies from {value.type.device} to {wanted.device} in place",
                self.emitter.location,
            )
        self.emitter.results = (wanted,)
        value = self.emitter.broadcast(self.emitter.cast(value, wanted.dtype), wanted.shape)
        handle = self.handle(target)
        handle.write(self.emitter, value)
        memory = handle.memory
        if self.emitter.root(memory.value) in self._owned:
            memory.value = self.emitter.emit("copy", memory.value)
            memory.version += 1
        self._own(memory.value)

    def _own(self, value: Value) -> None:
        """Notes that a tensor's memory holds the value. A constant has no memory to share."""
        if not self.emitter.is_constant(value):
            self._owned.add(value)


def layout_of(tensor: torch.Tensor) -> Layout:
    """Where a tensor lies in its memory."""
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def holding(tensor: torch.Tensor) -> Callable[[], object]:
    return lambda: tensor
