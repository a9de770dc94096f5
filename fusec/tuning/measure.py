# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's candidates on random data: each is checked against the oracle, then timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fusec import tracing
from fusec.errors import FusecError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.nodes import Op, Value
from fusec.ir.types import fixed
from fusec.passes.lower.context import LoweredGroup
from fusec.passes.tune import Done, Measured, Stopped
from fusec.target.cpu import CpuTarget
from fusec.tile.scalar import Buffer

Array = npt.NDArray[Any]
REPEATS = 15
ORACLE_FLOPS, ORACLE_ELEMENTS = 2e9, 2**21
"""Groups of more flops or results are checked against their first candidate: the oracle would take seconds."""


class CpuMeasure:
    """Measures candidates of one fused op on this machine. The user's arrays are never touched."""

    def __init__(self, target: CpuTarget) -> None:
        self.target = target

    def __call__(self, op: Op, candidates: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        attributes = op.expect(FusedAttributes)
        stop = time.monotonic() + budget
        data = _random_inputs(attributes.body)
        wanted = _expected(attributes.body, data, candidates[0].kernel.flops)
        results: list[Measured] = []
        for candidate in candidates:
            if results and time.monotonic() > stop:
                break
            try:
                with tracing.span(f"measure {candidate.kernel.name}", "tune") as span:
                    result, run = self._measure(attributes.body, candidate, data, wanted, stop)
                    span.note(seconds=result.seconds, reason=result.reason)
            except KeyboardInterrupt:
                raise Stopped(results) from None
            results.append(result)
            if wanted is None and run is not None:
                wanted = [o.astype(np.float64) for o in run.outputs]
            done()
        return results

    def _measure(
        self,
        body: Graph,
        candidate: LoweredGroup,
        data: dict[Value, Array],
        wanted: list[Array] | None,
        stop: float,
    ) -> tuple[Measured, Run | None]:
        from fusec.codegen.tvm.build import compile_kernels

        kernels = [replace(candidate.kernel, name="candidate")]
        kernels += [replace(p.kernel, name=f"pack{k}") for k, p in enumerate(candidate.packs)]
        try:
            run = Run(compile_kernels(kernels, self.target), candidate, body, data)
        except FusecError as error:
            return Measured(None, str(error)), None
        wrong = run.check(wanted)
        if wrong:
            return Measured(None, wrong), None
        return Measured(run.time(stop)), run


def _random_inputs(body: Graph) -> dict[Value, Array]:
    rng = np.random.default_rng(0)
    data: dict[Value, Array] = {}
    for value in body.inputs:
        shape, dtype = value.type.static_shape, value.type.dtype
        if dtype.is_float:
            data[value] = rng.standard_normal(shape, dtype=np.float32).astype(dtype.numpy)
        else:
            data[value] = rng.integers(0, 2, shape).astype(dtype.numpy)
    return data


def _expected(body: Graph, data: dict[Value, Array], flops: int) -> list[Array] | None:
    if flops > ORACLE_FLOPS or sum(v.type.size for v in body.outputs) > ORACLE_ELEMENTS:
        return None
    return interpret(body, [data[v] for v in body.inputs], float64=True)


class Run:
    """A candidate on data of its own, run once: what it packs, its outputs, and the addresses of a call."""

    def __init__(self, module: Any, candidate: LoweredGroup, body: Graph, data: dict[Value, Array]) -> None:
        self.function = module.function("candidate")
        packed: dict[int, Array] = {}
        self.memory: list[Array] = []
        self.packings: list[tuple[Any, list[int]]] = []
        for k, plan in enumerate(candidate.packs):
            packed[id(plan.packed)] = np.empty(fixed(plan.packed.shape), plan.packed.dtype.numpy)
            self.memory.append(packed[id(plan.packed)])  # the runs to come write there, by address
            sources = [self._laid_out(b, data[v]) for b, v in zip(plan.kernel.parameters, plan.sources)]
            addresses = [a.ctypes.data for a in (*sources, packed[id(plan.packed)])]
            module.function(f"pack{k}")(*addresses)
            if not plan.cached:
                self.packings.append((module.function(f"pack{k}"), addresses))
        made: dict[Value, Array] = {}
        arrays: list[Array] = []
        for buffer, argument in zip(candidate.kernel.parameters, candidate.arguments, strict=True):
            if isinstance(argument, Buffer):
                arrays.append(packed[id(argument)])
            elif argument in data:
                arrays.append(self._laid_out(buffer, data[argument]))
            else:
                made[argument] = self._laid_out(
                    buffer, np.full(fixed(buffer.shape), _sentinel(buffer), buffer.dtype.numpy)
                )
                arrays.append(made[argument])
        self.outputs = [made[v] for v in body.outputs]
        self.addresses = [a.ctypes.data for a in arrays]
        self.function(*self.addresses)

    def _laid_out(self, buffer: Buffer, array: Array) -> Array:
        """The array in memory with the buffer's strides."""
        memory = np.zeros(max(buffer.extent, 1), buffer.dtype.numpy)
        self.memory.append(memory)
        strides = [s * memory.itemsize for s in fixed(buffer.strides)]
        view = np.lib.stride_tricks.as_strided(memory, fixed(buffer.shape), strides)
        view[...] = array
        return view

    def check(self, wanted: list[Array] | None) -> str:
        """Why the outputs are wrong, or nothing. Outputs were filled with NaN before the run."""
        if wanted is None:
            bad = any(o.dtype.kind == "f" and bool(np.isnan(o).any()) for o in self.outputs)
            return "an output has NaN where the inputs have none" if bad else ""
        for got, want in zip(self.outputs, wanted, strict=True):
            scale = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
            relative = 1e-2 if got.dtype.itemsize == 2 else 1e-4
            if not np.allclose(got.astype(np.float64), want, rtol=relative, atol=relative * scale, equal_nan=True):
                return "its result differs from the oracle's"
        return ""

    def time(self, stop: float) -> float:
        """Median seconds of a few runs, what is packed at each call included; cut short at ``stop``."""
        times: list[float] = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            for pack, addresses in self.packings:
                pack(*addresses)
            self.function(*self.addresses)
            times.append(time.perf_counter() - start)
            if len(times) >= 3 and time.monotonic() > stop:
                break
        return statistics.median(times)


def _sentinel(buffer: Buffer) -> float:
    return float("nan") if buffer.dtype.is_float else 1
