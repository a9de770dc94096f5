# SPDX-License-Identifier: Apache-2.0
"""Runs a group's alternatives on a GPU, on random data in memory of its own: each is checked, then timed.

A result is right where it agrees with the oracle, or for large groups with more of the other alternatives than
disagree. An alternative that does not compile, does not fit the device or gives a wrong result is counted out; only a
kernel that makes the GPU unusable ends the search, with an error.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusec import tracing
from fusec.errors import DeviceError, FusecError
from fusec.ir.attributes import DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.nodes import Port
from fusec.ir.types import DType, TensorType
from fusec.passes.lower.context import LoweredGroup, LoweringContext, Strides, group_flops
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.lower.program import assemble
from fusec.passes.select_gpu import GpuSelector
from fusec.passes.tune import Done, Measured, Stopped
from fusec.runtime.arrays import span
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable, Module
from fusec.runtime.program import Program
from fusec.runtime.torch_arrays import TorchArrays, torch_dtype
from fusec.target.gpu import GpuTarget
from fusec.tuning.measure import ORACLE_ELEMENTS, ORACLE_FLOPS

Tensors = list[torch.Tensor]
WARM, REPEATS = 2, 11


class Poisoned(TorchArrays):
    """PyTorch tensors whose fresh memory holds NaN, or 1 where there is none."""

    def allocate(self, scope: Scope, type: TensorType, strides: Sequence[Any]) -> str:
        return f"{scope.bind(poison, 'poison')}({super().allocate(scope, type, strides)})"


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of ones are NaN in every float type, and scratch is bytes."""
    if tensor.dtype == torch.uint8:
        return tensor.fill_(255)
    return tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


@dataclass
class _Agreement:
    """Results that agree with each other, and whose they are (numbers of alternatives)."""

    results: Tensors
    members: list[int]


class GpuMeasure:
    """Measures alternatives of one fused op on a CUDA device. ``compile`` makes machine code of a program."""

    def __init__(self, target: GpuTarget, device: str, compile: Callable[[Program], Module], name: str) -> None:
        self._target = target
        self._device = torch.device(device)
        self._compile = compile
        self._name = name
        self._relative = 0.0

    def __call__(
        self, context: LoweringContext, alternatives: Sequence[Alternative], budget: float, done: Done
    ) -> list[Measured]:
        if torch.cuda.is_current_stream_capturing():
            return []
        stop = time.monotonic() + budget
        with torch.cuda.device(self._device), torch.no_grad():
            try:
                return self._measure(context, alternatives, stop, done)
            except torch.OutOfMemoryError:  # not even the operands fit beside what is there
                torch.cuda.empty_cache()
                return []

    def _measure(
        self, context: LoweringContext, alternatives: Sequence[Alternative], stop: float, done: Done
    ) -> list[Measured]:
        body = context.body
        inputs = [self._random(v.type, context.strides[v]) for v in body.inputs]
        oracle = self._oracle(body, inputs)
        self._relative = tolerance(body)
        agreements = [_Agreement(oracle, [])] if oracle is not None else []
        runs: list[Callable[..., Tensors] | None] = []
        reasons: list[str] = []
        stopped = False
        for number, alternative in enumerate(alternatives):
            if number and time.monotonic() > stop:
                break
            try:
                with tracing.span(f"try {alternative.text}", "tune", group=context.name) as span:
                    run, reason = self._built(context, alternative, inputs, number, agreements, oracle is not None)
                    span.note(reason=reason)
            except KeyboardInterrupt:  # what is built already is timed, which takes little
                stopped = True
                break
            runs.append(run)
            reasons.append(reason)
            done()
        right = max(agreements, key=lambda a: len(a.members)).members if agreements else []
        del agreements
        measured = []
        for number, (run, reason) in enumerate(zip(runs, reasons, strict=True)):
            if run is None or number not in right:
                measured.append(Measured(None, reason or "its result differs from the others'"))
                continue
            try:
                measured.append(Measured(self._time(run, inputs)))
            except torch.OutOfMemoryError as error:
                measured.append(Measured(None, _brief(error)))
                torch.cuda.empty_cache()
        if stopped:
            raise Stopped(measured)
        return measured

    def _built(
        self,
        context: LoweringContext,
        alternative: Alternative,
        inputs: Tensors,
        number: int,
        agreements: list[_Agreement],
        has_oracle: bool,
    ) -> tuple[Callable[..., Tensors] | None, str]:
        """The alternative ready to be timed, its results sorted in; or None, and why."""
        try:
            executable = self._executable(context, alternative)
            results = executable.runner(Poisoned())(*inputs)
            torch.cuda.synchronize()
        except (FusecError, RuntimeError) as error:  # PyTorch's errors, out of memory too, are RuntimeErrors
            self._require_device(context, alternative, error)
            return None, _brief(error)
        same = next((a for a in agreements if all(map(self._close, results, a.results))), None)
        if same is not None:
            same.members.append(number)
        elif has_oracle:
            return None, "its result differs from the oracle's"
        elif any(bool(r.isnan().any()) for r in results if r.is_floating_point()):
            return None, "its result has NaN where the operands have none"
        else:
            agreements.append(_Agreement(results, [number]))
        return executable.runner(), ""

    def _require_device(self, context: LoweringContext, alternative: Alternative, error: Exception) -> None:
        """DeviceError where the device can't be used any more."""
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            raise DeviceError(
                f"measuring {alternative.text} of {context.name} made the GPU unusable ({_brief(error)}); "
                "start the process again, without tune="
            ) from error

    def _executable(self, context: LoweringContext, alternative: Alternative) -> Executable:
        """The group alone as a program. What is left beside a library's call takes its usual schedule."""
        op, body = context.op, context.body
        usual = GpuSelector(self._target)

        def lower(piece: LoweringContext) -> LoweredGroup | Pieces:
            return alternative.lower(piece) if piece.op is op else usual.lower(piece)

        ports = [tuple(Port(strides=context.strides[v]) for v in values) for values in (body.inputs, body.outputs)]
        graph = Graph("alternative", body.inputs, body.outputs, (op,), ports[0], ports[1])
        program = assemble(graph, self._name, lower, usual.report)
        return Executable(program, self._compile(program), "torch")

    def _random(self, type: TensorType, strides: Strides) -> torch.Tensor:
        """Random elements; whole numbers are 0 or 1, so that they can index what is not empty."""
        dtype = torch_dtype(type.dtype)
        made = torch.float16 if type.dtype.kind == "float8" else dtype  # 8 bits are made from others alone
        flat = torch.empty(span(type, strides), dtype=made, device=self._device)  # type: ignore[arg-type]
        flat = flat.normal_().to(dtype) if dtype.is_floating_point else flat.random_(0, 2)
        return flat.as_strided(type.static_shape, strides)  # type: ignore[arg-type]

    def _oracle(self, body: Graph, inputs: Tensors) -> Tensors | None:
        """The results in float64, for a group that is not too large for NumPy."""
        if group_flops(body) > ORACLE_FLOPS or sum(v.type.size for v in body.outputs) > ORACLE_ELEMENTS:
            return None
        if sum(v.type.size for v in body.inputs) > 4 * ORACLE_ELEMENTS:
            return None
        arrays = [_to_numpy(v.type.dtype, t) for v, t in zip(body.inputs, inputs, strict=True)]
        found = interpret(body, arrays, float64=True)
        return [torch.from_numpy(np.ascontiguousarray(a)).to(self._device) for a in found]

    def _close(self, found: torch.Tensor, wanted: torch.Tensor) -> bool:
        if not found.is_floating_point():
            return torch.equal(found, wanted.to(found.dtype))
        got, want = found.float(), wanted.float()
        finite = want.abs().nan_to_num(0.0, 0.0, 0.0)
        scale = max(1.0, float(finite.max())) if want.numel() else 1.0
        return torch.allclose(got, want, rtol=self._relative, atol=self._relative * scale, equal_nan=True)

    def _time(self, run: Callable[..., Tensors], inputs: Tensors) -> float:
        """Median seconds on the device, what the caches held before each run overwritten."""
        sweep = torch.empty(max(2 * self._target.l2, 2**26), dtype=torch.uint8, device=self._device)
        times: list[float] = []
        for number in range(WARM + REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            sweep.zero_()
            start.record()
            run(*inputs)
            end.record()
            end.synchronize()
            if number >= WARM:
                times.append(start.elapsed_time(end) * 1e-3)
        return statistics.median(times)


def _to_numpy(dtype: DType, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    wide = tensor.double() if tensor.is_floating_point() else tensor
    return wide.cpu().numpy().astype(dtype.numpy)


def tolerance(body: Graph) -> float:
    """What results may differ by, of their scale: roundings to half types, or to TF32, may lie anywhere on the way."""
    values = [v for op in body.ops for v in op.results] + list(body.inputs)
    if any(v.type.dtype.is_half for v in values):
        return 1e-2
    tf32 = any(isinstance(op.attributes, DotAttributes) and op.attributes.tf32 for op in body.ops)
    return 5e-3 if tf32 else 1e-4


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
