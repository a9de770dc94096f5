# SPDX-License-Identifier: Apache-2.0
"""Values on the CPU in a function on a GPU: ``torch.tensor(64).sqrt()``, ``torch.arange(n).to(x.device)``."""

from __future__ import annotations

from fusec.frontend.torch_emit import Emitter
from fusec.ir.attributes import ConstantAttributes, IotaAttributes
from fusec.ir.nodes import Value
from fusec.ir.place import placed_attributes


def known_on(emitter: Emitter, value: Value, device: str) -> Value:
    """The value as ops on ``device``, where it is on the CPU and no input and no library call has part in it.

    Else the value itself: PyTorch moves it, or reads it where it is.
    """
    if value.type.device == device or value.type.device != "cpu":
        return value
    return _Moved(emitter, device).find(value) or value


class _Moved:
    """What CPU values are on another device; None where an input or a library call has part in one."""

    def __init__(self, emitter: Emitter, device: str) -> None:
        self._emitter = emitter
        self._device = device
        self._made: dict[Value, Value] = {}

    def find(self, value: Value) -> Value | None:
        if not self._is_known(value, set()):
            return None
        return self._make(value)

    def _is_known(self, value: Value, seen: set[Value]) -> bool:
        if value in seen:
            return True
        seen.add(value)
        op = self._emitter.builder.producer(value)
        return op is not None and op.definition.kind != "extern" and all(self._is_known(v, seen) for v in op.operands)

    def _make(self, value: Value) -> Value:
        if value not in self._made:
            op = self._emitter.builder.producer(value)
            assert op is not None, "the value is known"
            operands = [self._make(v) for v in op.operands]
            match op.attributes:
                case ConstantAttributes(number, dtype):
                    results: tuple[Value, ...] = (self._emitter.constant(number, dtype, self._device),)
                case IotaAttributes(shape, axis, dtype):
                    results = (self._emitter.iota(shape, axis, dtype, self._device),)
                case attributes:
                    placed = placed_attributes(attributes, self._device)
                    results = self._emitter.op(op.name, *operands, attributes=placed)
            self._made.update(zip(op.results, results, strict=True))
        return self._made[value]
