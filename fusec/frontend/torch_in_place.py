# SPDX-License-Identifier: Apache-2.0
"""Calls that write: into their first operand, or into what ``out=`` names."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fusec.errors import UnsupportedOpError
from fusec.frontend.torch_emit import memory_order, tensor_type
from fusec.frontend.torch_fake import decompositions, tensors_in
from fusec.frontend.torch_fake_calls import Arguments, FakeCalls, Keywords
from fusec.frontend.torch_random import DRAWN, drawn_as_it_lies
from fusec.frontend.torch_references import References
from fusec.frontend.torch_rehearsal import check_overlap, takes_outs

_RELABELS = frozenset({"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"})
"""In-place calls that change how a tensor looks at its memory, not the memory."""

_FUNCTIONAL_NAMES = {"normal_": "normal_functional", "requires_grad_": "alias", "detach_": "alias"}


class InPlaceCalls(FakeCalls, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A call that writes is its functional form, whose result is stored in the tensor's memory.

    Inside the context each call is a call of the capture.
    """

    def __init__(self, name: str, references: References, *, for_code: bool, for_gpu: bool = False) -> None:
        FakeCalls.__init__(self, name, references, for_code=for_code, for_gpu=for_gpu)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._decomposing = 0

    def _mutate(self, func: OpOverload, name: str, args: Arguments, kwargs: Keywords) -> Any:
        if not self._decomposing:
            check_overlap(func, args, kwargs)
            if name.endswith("_"):
                self._check_dtypes(func, args, kwargs)
        packet = self._functional(name)
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if name.endswith("_") and args and isinstance(args[0], torch.Tensor) and packet is not None:
            return self._in_place(func, name, packet, args, kwargs)
        if packet is not None and written and all(w in kwargs for w in written):
            return self._into_outs(func, packet, written, args, dict(kwargs))
        decomposition = decompositions().get(func)
        if decomposition is not None:
            with self:
                return decomposition(*args, **kwargs)
        raise UnsupportedOpError(
            f"{self.emitter.call} changes its operands in a way that is not known", self.emitter.location
        )

    def _functional(self, name: str) -> Any:
        base = _FUNCTIONAL_NAMES.get(name, name.removesuffix("_"))
        return getattr(torch.ops.aten, base, None)

    def _in_place(self, func: OpOverload, name: str, packet: Any, args: Arguments, kwargs: Keywords) -> Any:
        target: torch.Tensor = args[0]
        if name in ("detach_", "requires_grad_"):
            return target
        if name in _RELABELS:
            self.relabelled.setdefault(id(target), (target, target.shape, target.stride()))
            with self:
                view = packet(*args, **kwargs)
            self._run_fake(func, args, kwargs)
            self._hold(target, self.handle(view))
            return target
        if name == "bernoulli_" and len(args) == 1 and not kwargs:  # without p the other form draws from its operand
            args = (target, 0.5)
        shape = tuple(target.shape)
        self._run_fake(func, args, kwargs)  # raises what eager would
        if tuple(target.shape) != shape:
            raise UnsupportedOpError(f"{self.emitter.call} resizes a tensor", self.emitter.location)
        call = self.emitter.call
        if name == "copy_":
            value = self.value(args[1])
        elif name in ("zero_", "fill_"):
            filler = args[1] if name == "fill_" else 0
            self.emitter.results = (tensor_type(target),)
            if isinstance(filler, torch.Tensor):
                value = self.value(filler)
            else:
                value = self.emitter.constant(filler, self.emitter.out.dtype)
        else:
            before = len(self.memories)
            with self:
                made = self._drawn_as_it_lies(name, packet, args, kwargs)
                made = packet(*args, **kwargs) if made is None else made
            value = self._taken(made, before)
        self.emitter.call = call
        self._store(target, value)
        return target

    def _drawn_as_it_lies(self, name: str, packet: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Random numbers for a tensor whose axes lie in another order, in which PyTorch draws them on a CPU; None for
        other calls."""
        target: torch.Tensor = args[0]
        if name not in DRAWN or not self.emitter.is_on_cpu(target) or isinstance((*args, None)[1], torch.Tensor):
            return None
        order = memory_order(target)
        if order == tuple(range(target.dim())):
            return None
        if name == "normal_":
            raise UnsupportedOpError(
                "normal numbers are drawn in an order of their own for memory that is not row-major",
                self.emitter.location,
            )
        return drawn_as_it_lies(packet, order, *args, **kwargs)

    def _into_outs(
        self, func: OpOverload, packet: Any, written: list[str], args: Arguments, kwargs: dict[str, Any]
    ) -> Any:
        given = dict(kwargs)
        targets = [kwargs.pop(name) for name in written]
        call = self.emitter.call
        before = len(self.memories)
        with self:
            made = tensors_in(packet(*args, **kwargs))
        self.emitter.call = call
        for target, tensor in zip(targets, made, strict=True):
            if target.shape != tensor.shape:
                raise UnsupportedOpError(
                    f"{call} resizes its out= tensor from {list(target.shape)} to {list(tensor.shape)}",
                    self.emitter.location,
                )
            casts = torch.Tag.pointwise in func.tags
            if target.dtype != tensor.dtype and not (casts and takes_outs(func, args, given)):
                raise UnsupportedOpError(
                    f"{call} gives {tensor.dtype}, and its out= tensor has {target.dtype}", self.emitter.location
                )
            self._store(target, self._taken(tensor, before))
        return targets[0] if len(targets) == 1 else tuple(targets)
