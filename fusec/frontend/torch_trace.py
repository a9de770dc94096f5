# SPDX-License-Identifier: Apache-2.0
"""Runs a torch function on fake tensors and writes down, call by call, what it computes.

The trace sits below autograd, where each ATen call arrives whole: ``linear``, ``matmul``, ``layer_norm`` and the
like before they are broken up. PyTorch's fake tensors give shapes, dtypes, strides and the user's own errors.
A call is lowered by the tables of :mod:`fusec.frontend.torch_ops`; one that they do not know is decomposed by
PyTorch, and what remains is kept as a library call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from inspect import Signature, signature
from types import FrameType
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from fusec.errors import DeviceError, TypeRuleError, UnsupportedOpError
from fusec.frontend.capture import ReferenceSource, format_arguments
from fusec.frontend.counters import COUNTING
from fusec.frontend.environment import Unwatched
from fusec.frontend.steps import Step
from fusec.frontend.torch_backwards import BACKWARDS
from fusec.frontend.torch_collectives import is_waiting, waited, wrapping
from fusec.frontend.torch_emit import Declined, memory_order, tensor_type
from fusec.frontend.torch_fake import decompositions, map_tensors, same_layout, strided_steps, tensors_in
from fusec.frontend.torch_fake_calls import Arguments, Keywords
from fusec.frontend.torch_foreach import element_by_element
from fusec.frontend.torch_host_values import known_on
from fusec.frontend.torch_in_place import InPlaceCalls
from fusec.frontend.torch_memory import Handle, apply_steps
from fusec.frontend.torch_names import Namer, caller_frame
from fusec.frontend.torch_networks import OPENED, as_called, stays_whole, widened
from fusec.frontend.torch_ops import FLOAT8, MOVES, MULTIPLIES, VALUES, VIEWS
from fusec.frontend.torch_quiet import quiet_fake_tensors
from fusec.frontend.torch_random import drawn_apart
from fusec.frontend.torch_recording import mark_views
from fusec.frontend.torch_references import References
from fusec.frontend.torch_row_sets import RowSets
from fusec.frontend.torch_scans import scans_as_ops
from fusec.frontend.torch_scripts import scripts_as_written
from fusec.frontend.torch_tensors import holding
from fusec.ir.attributes import ExternAttributes
from fusec.ir.chosen_calls import RESAMPLING
from fusec.ir.nodes import Value

_LIBRARY_ONLY = frozenset(
    {
        *("convolution", "grid_sampler_2d", "col2im"),
        "binary_cross_entropy",  # decomposed, it takes what is no probability
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
        "max_pool2d_with_indices_backward",  # decomposed, it scatters into zeros, an element at a time
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("index_copy", "index_add", "index_fill"),  # decomposed, other indices than theirs are errors
    }
)
"""Calls whose decomposition is worse than the library's kernel."""

_OF_TYPES = frozenset({"_assert_tensor_metadata"})
"""Calls without a result that look at shapes and dtypes alone."""

_WATCHED = nullcontext()
"""For calls other than PyTorch's own: what they run may be the user's code."""


@cache
def _signature(lowering: Callable[..., Any]) -> Signature:
    """Of a function of the tables: read at each call it is a sixth of a capture."""
    return signature(lowering)


class Trace(InPlaceCalls):  # type: ignore[no-untyped-call]
    """One capture in progress: a context in which the user's function runs once.

    ``fallback`` is 'eager' to keep unknown calls as library calls, 'error' to refuse them. ``namer``: names what a
    graph's nodes make, where it is a graph that runs. ``for_gpu``: tensors on the CPU stand for such on a GPU.
    ``rows``: rows that data chooses are followed; else they are a ChosenRowsError.
    """

    def __init__(
        self,
        name: str,
        references: References,
        fallback: Literal["eager", "error"],
        namer: Namer | None = None,
        *,
        for_gpu: bool = False,
        rows: bool = False,
    ) -> None:
        super().__init__(name, references, for_code=namer is None, for_gpu=for_gpu)
        self.namer = namer or Namer()
        self.notes = self.emitter.notes
        self.abandoned: list[range] = []
        self.row_sets = RowSets(self) if rows else None
        self._fallback = fallback
        self.emitter.calls = fallback != "error"
        self._depth = 0
        self._random_calls = 0
        self._random_state = torch.get_rng_state()

    @property
    def draws_random(self) -> bool:
        """Whether a call that draws random numbers was captured."""
        return self._random_calls > 0

    # Calls

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        if any(map(_is_made_of_others, types)):
            return self._by_their_class(func, args, kwargs or {})
        self._depth += 1
        try:
            if self._depth == 1:
                frame = caller_frame()
                with Unwatched() if func.namespace == "aten" else _WATCHED:
                    result = self._outermost(func, args, kwargs or {}, frame)
                    if self.recording is not None:
                        self.recording.call(func, args, kwargs or {}, result, self._as_fake)
                    return result
            return self._dispatch(func, args, kwargs or {})
        finally:
            self._depth -= 1

    def _by_their_class(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> Any:
        """A call on tensors made of others: their class says what it is, of the parts that it is opened into."""
        if not func._can_decompose():
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _outermost(self, func: OpOverload, args: Arguments, kwargs: Keywords, frame: FrameType) -> Any:
        self.emitter.location = self.namer.enter(frame)
        if (counting := COUNTING.get()) is not None:
            counting.before_call(len(self.builder))
        try:
            result = self._dispatch(func, args, kwargs)
        except RuntimeError as error:
            if re.search("two (different )?devices", str(error)):
                raise self._apart((*args, *kwargs.values())) from None
            raise
        tensors = [t for t in tensors_in(result) if id(t) in self._handles]
        if tensors:
            values = [self.value(t) for t in tensors]
            self.namer.give([v for v in values if v not in self._inputs])
        return result

    def _apart(self, values: Iterable[Any]) -> DeviceError:
        found = dict.fromkeys(str(t.device) for value in values for t in tensors_in(value))
        return DeviceError(
            f"{self.emitter.call}: operands on {' and '.join(found)}; move them to one device", self.emitter.location
        )

    def _dispatch(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> Any:
        name = func.overloadpacket.__name__
        self.emitter.call = f"{func.namespace}.{name}"
        if name == "is_set_to":
            raise UnsupportedOpError("which tensors share memory is asked while tracing", self.emitter.location)
        if name in ("lift_fresh", "lift") and not isinstance(args[0], FakeTensor):
            return self._fresh_constant(func, args[0])
        if (wrap := wrapping(func)) is not None:
            return wrap(args[0])
        args = map_tensors(self._as_fake, args)
        kwargs = {key: map_tensors(self._as_fake, value) for key, value in kwargs.items()}
        if self.row_sets is not None:
            result = self.row_sets.call(func, name, args, kwargs, lambda: self._call(func, name, args, kwargs))
        else:
            result = self._call(func, name, args, kwargs)
        if self._depth == 1 and not torch.is_grad_enabled():
            mark_views(func, tensors_in((args, list(kwargs.values()))), tensors_in(result))
        return result

    def _call(self, func: OpOverload, name: str, args: Arguments, kwargs: Keywords) -> Any:
        """A call on fake tensors."""
        if name == "batch_norm" and len(args) > 7 and args[5] and args[2] is None and self.emitter.is_on_cpu(args[0]):
            with self:  # the library adds 0, after which -0.0 is 0.0
                args = (*args[:2], args[0].new_zeros(args[0].shape[1]), *args[3:])
        if name == "batch_norm" and len(args) > 7 and args[5] and args[3] is not None:  # its schema hides the writes
            with self:
                return torch.ops.aten._native_batch_norm_legit.default(*args[:8])[0]
        if name == "nansum":
            args = _all_dimensions(args)
        if name == "dropout" and (args[1] == 0 or not args[2] or not args[0].numel()):
            return args[0]  # as PyTorch's does: the tensor itself, and no copy
        drawn = drawn_apart(name, args, kwargs, self.emitter.is_on_cpu)
        if drawn is not None:
            with self:
                return drawn()
        each = element_by_element(func, args, kwargs, self.emitter.is_on_cpu)
        if each is not None:
            self._check_dtypes(func, args, kwargs)
            with self:
                return each()
        wide = widened(func, args, kwargs)
        if wide is not None:
            self._check_dtypes(func, args, kwargs)
            with self:
                return wide()
        if func._schema.is_mutable:
            return self._mutate(func, name, args, kwargs)
        whole = self._is_whole(func, args, kwargs, tensors_in(args))
        known = name in VALUES or name in VIEWS or whole
        if not known and func.namespace == "aten" and func._can_decompose():
            if self._depth == 1:
                self._check_dtypes(func, args, kwargs)
            with self:
                return as_called(func, args, kwargs, func.decompose(*args, **kwargs))
        result = as_called(func, args, kwargs, self._run_fake(func, args, kwargs))
        outs = tensors_in(result)
        self._check_strided(outs)
        if outs:
            self._lower(func, name, args, kwargs, outs, _positions(result))
        elif not func._schema.returns and name not in _OF_TYPES and tensors_in((args, list(kwargs.values()))):
            self._extern(func, args, kwargs, [], "it looks at what a tensor holds", None)
        return result

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_waiting(tensor) and id(tensor) not in self._lifted:
            with self:
                self._lifted[id(tensor)] = (tensor, waited(tensor))
        return super()._as_fake(tensor)

    def _fresh_constant(self, func: OpOverload, real: torch.Tensor) -> torch.Tensor:
        """``torch.tensor(...)`` in the user's function: a constant, or an input where it has more than one value."""
        with self._fake_mode:
            fake: torch.Tensor = func(real)
        self.emitter.results = (tensor_type(real),)
        first = real.reshape(-1)[0].item() if real.numel() else 0
        if real.device.type == "cpu" and bool((real == first).all()):
            number = self.emitter.constant(first, self.emitter.out.dtype)
            self._bind(fake, self.emitter.broadcast(number, self.emitter.out.shape))
        else:
            constant = self._input(real, ReferenceSource("constant", holding(real)), "constant", "state", "constant")
            self._bind(fake, self.value(constant))
        return fake

    # Results

    def _lower(
        self,
        func: OpOverload,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        outs: list[torch.Tensor],
        positions: tuple[int, ...],
    ) -> None:
        """Finds a value or an address for each result. ``positions``: see :class:`ExternAttributes`."""
        if func.namespace == "prims" and self._depth > 1:
            raise Declined("it is made of a primitive of PyTorch's own")  # the call that it is part of goes whole
        if any(out.is_conj() or out.is_neg() for out in outs):
            reason = f"{self.emitter.call} is computed where its result is read, in no kernel"
            raise UnsupportedOpError(reason, self.emitter.location)
        started = len(self.builder)
        shared = self._shared_memory(args, kwargs, outs)
        if shared is not None and self._alias(name, args, kwargs, outs, shared):
            return
        self.emitter.results = tuple(tensor_type(out) for out in outs)
        if not self._decomposing:
            self._check_dtypes(func, args, kwargs, outs)
        reason, final = "no lowering for it", False
        if shared is None:
            try:
                values = self._lowered(name, args, kwargs, outs)
                if values is not None:
                    for out, value in zip(outs, values, strict=True):
                        self._bind(out, value)
                    return
            except Declined as declined:
                reason, final = str(declined), declined.final
            except TypeRuleError as error:
                reason = f"its operands do not fit ({error})"
        self.abandoned.append(range(started, len(self.builder)))
        random = "random numbers" in reason
        if random or torch.Tag.nondeterministic_seeded in func.tags:
            if not torch.equal(torch.get_rng_state(), self._random_state):
                raise UnsupportedOpError("the function seeds the generator itself", self.emitter.location)
            self._random_calls += 1  # in the reason, so that no pass takes two calls for one
            reason = f"{reason if random else 'it draws random numbers'} (call {self._random_calls})"
        elif shared is None and not final and self._decomposed(func, name, args, kwargs, outs):
            return
        self._extern(func, args, kwargs, outs, reason, shared, positions)

    def _is_whole(self, func: OpOverload, args: Arguments, kwargs: Keywords, tensors: list[torch.Tensor]) -> bool:
        """Whether a call goes to the library although PyTorch has a decomposition of it. On a CPU resampling does; it
        is decomposed where the library may not run. On a GPU an embedding's gradient does: decomposed, it is a write
        through indices, whose library kernel adds up the rows of one index one after the other."""
        name, is_on_cpu = func.overloadpacket.__name__, self.emitter.is_on_cpu
        if name == "embedding_dense_backward":
            return self._fallback != "error" and not any(map(is_on_cpu, tensors))
        if name in RESAMPLING:
            return self._fallback != "error" and all(map(is_on_cpu, tensors))
        return name in _LIBRARY_ONLY or stays_whole(func, args, kwargs, is_on_cpu)

    def _lowered(self, name: str, args: Arguments, kwargs: Keywords, outs: list[torch.Tensor]) -> list[Value] | None:
        if any(t.is_complex() for t in (*tensors_in((args, list(kwargs.values()))), *outs)):
            raise Declined("no kernel computes complex numbers", final=True)
        stored = {t.dtype for t in (*tensors_in((args, list(kwargs.values()))), *outs)} & FLOAT8
        if stored and name not in VIEWS and name not in MOVES | MULTIPLIES:
            raise Declined("numbers of 8 bits are stored, moved, cast and multiplied by kernels, no more", final=True)
        if name in VIEWS:  # a view that had to copy, such as a reshape of transposed memory
            first, *rest = args
            (steps,) = VIEWS[name](self.emitter, tuple(first.shape), *rest, **kwargs)
            return [apply_steps(self.emitter, self.emitter.emit("copy", self.value(first)), steps)]
        lowering = VALUES.get(name)
        if lowering is None:
            return None
        listed = map_tensors(self._value_there, args)
        named = {key: map_tensors(self._value_there, value) for key, value in kwargs.items()}
        try:
            _signature(lowering).bind(self.emitter, *listed, **named)
        except TypeError:
            raise Declined("no lowering for this form of it") from None
        result = lowering(self.emitter, *listed, **named)
        return [result] if isinstance(result, Value) else list(result)

    def _value_there(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor, on the device of the call's result where it is known without its inputs."""
        return known_on(self.emitter, self.value(tensor), self.emitter.out.device)

    def _decomposed(
        self, func: OpOverload, name: str, args: Arguments, kwargs: Keywords, outs: list[torch.Tensor]
    ) -> bool:
        """Lowers the call through PyTorch's decomposition, if there is one; the results keep eager's strides."""
        if self._is_whole(func, args, kwargs, outs):
            return False
        own = (OPENED.get(name) or BACKWARDS.get(name)) if func.namespace == "aten" else None
        decomposition = own or (func.decompose if func._can_decompose() else decompositions().get(func))
        if decomposition is None:
            return False
        before, started = len(self.memories), len(self.builder)
        self._decomposing += 1
        try:
            with self:
                made = tensors_in(decomposition(*args, **kwargs))
        except (NotImplementedError, Declined):
            made = []
        finally:
            self._decomposing -= 1
        if [tensor_type(tensor) for tensor in made] != [tensor_type(out) for out in outs]:
            self.abandoned.append(range(started, len(self.builder)))
            return False
        for out, tensor in zip(outs, made, strict=True):
            self._bind(out, self._taken(tensor, before))
        return True

    def _extern(
        self,
        func: OpOverload,
        args: Arguments,
        kwargs: Keywords,
        outs: list[torch.Tensor],
        reason: str,
        shared: Handle | None,
        positions: tuple[int, ...] = (),
    ) -> None:
        """Keeps the call as a library call."""
        target = f"{func.namespace}.{func.overloadpacket.__name__}.{func._overloadname}"
        if self._fallback == "error":
            raise UnsupportedOpError(f"{target} can't be compiled: {reason}", self.emitter.location)
        tensors = tensors_in((args, list(kwargs.values())))
        values = [self.value(t) for t in tensors]
        operands = list(dict.fromkeys(values))
        strided = {operands.index(value) for value, t in zip(values, tensors, strict=True) if not t.is_contiguous()}
        listed = map_tensors(self.value, args)
        named = {key: map_tensors(self.value, value) for key, value in kwargs.items()}
        try:
            arguments = format_arguments(listed, named, operands)
        except TypeError as error:
            raise UnsupportedOpError(
                f"{target} can't be kept as a library call: {error}", self.emitter.location
            ) from None
        orders = [memory_order(out) if shared is None else tuple(range(out.dim())) for out in outs]
        types = tuple(t.with_shape(tuple(t.shape[a] for a in o)) for t, o in zip(map(tensor_type, outs), orders))
        moved = any(list(order) != sorted(order) for order in orders)
        results = self.builder.op(
            "extern",
            *operands,
            attributes=ExternAttributes(
                *(target, arguments, types, reason, tuple(sorted(strided))),
                orders=tuple(a for order in orders for a in order) if moved else (),
                shows=shared is not None,
                positions=positions,
            ),
            names=["."] * len(types),
            location=self.emitter.location,
        )
        results = tuple(self.emitter.permute(v, [o.index(a) for a in sorted(o)]) for v, o in zip(results, orders))
        sealed = f"the library call {target} may share" if shared is not None else ""
        if shared is not None:
            shared.memory.sealed = sealed
        for out, value in zip(outs, results, strict=True):
            self._bind(out, value, sealed)
        self.emitter.note(target, reason)

    # Views

    def _shared_memory(self, args: Arguments, kwargs: Keywords, outs: list[torch.Tensor]) -> Handle | None:
        """The handle of the operand whose storage the results use, or None."""
        storage = outs[0].untyped_storage()._cdata
        for tensor in tensors_in((args, list(kwargs.values()))):
            if tensor.untyped_storage()._cdata == storage:
                return self.handle(tensor)
        return None

    def _alias(self, name: str, args: Arguments, kwargs: Keywords, outs: list[torch.Tensor], shared: Handle) -> bool:
        """Makes the results views of an operand. False when no view of IR says what they are."""
        operand = next(t for t in tensors_in((args, list(kwargs.values()))) if self.handle(t) is shared)
        self.emitter.results = tuple(tensor_type(out) for out in outs)
        paths: Sequence[tuple[Step, ...]]
        try:
            if name in VIEWS and operand is args[0]:
                paths = VIEWS[name](self.emitter, tuple(operand.shape), *args[1:], **kwargs)
                handles = [Handle(shared.memory, shared.steps + steps) for steps in paths]
            elif all(same_layout(operand, out) for out in outs):
                handles = [Handle(shared.memory, shared.steps) for _ in outs]
            else:
                handles = [Handle(shared.memory, strided_steps(shared.memory, out)) for out in outs]
            for out, handle in zip(outs, handles, strict=True):
                if out is not operand:
                    if handle.read(self.emitter).type != tensor_type(out):
                        return False
                    self._hold(out, handle)
        except (Declined, TypeRuleError):
            return False
        return True


def _is_made_of_others(kind: type) -> bool:
    return hasattr(kind, "__tensor_flatten__") and not issubclass(kind, FakeTensor)


def _all_dimensions(args: Arguments) -> Arguments:
    """The arguments of a reduction with None for an empty list of dimensions: both mean all of them.

    PyTorch's fake tensors take the list for no dimensions where ``nansum`` is called.
    """
    return (args[0], None, *args[2:]) if len(args) > 1 and args[1] in ([], ()) else args


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Runs the body under the trace, below autograd, and keeps autocast from remembering fake tensors."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    scans = scans_as_ops(recurrences=trace.recording is None)
    try:
        with torch._C._AutoDispatchBelowAutograd(), quiet_fake_tensors(), scripts_as_written(), scans, trace:
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def _positions(result: Any) -> tuple[int, ...]:
    """Where tensors stand in a tuple that holds something else too, as None or a number; else none."""
    if not isinstance(result, tuple) or any(isinstance(part, tuple | list) for part in result):
        return ()
    found = tuple(k for k, part in enumerate(result) if isinstance(part, torch.Tensor))
    return found if len(found) < len(result) else ()
