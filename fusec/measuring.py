# SPDX-License-Identifier: Apache-2.0
"""Times of a compiled function's kernels on this machine, on random arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.compiled import CompiledFunction, Variant
from fusec.frontend.capture import Library
from fusec.ir.types import DType, dtype_of
from fusec.runtime.adapters import load_arrays
from fusec.runtime.code import Scope
from fusec.specs import TensorSpec, example


@dataclass(frozen=True)
class Spread:
    """Seconds of some calls: the least, the one in the middle, the most."""

    least: float
    median: float
    most: float


@dataclass(frozen=True)
class Times:
    """Seconds of each step of each piece of a file, and of whole calls; or why there are none."""

    pieces: Sequence[Sequence[float]] = ()
    reason: str = ""
    wholes: Sequence[Spread] = ()


def measure_steps(compiled: CompiledFunction) -> list[list[float]]:
    """The median seconds of each step of each of its programs, extents being the largest that a program serves.

    Raises what calls raise, and ArtifactError where a named dimension has no range.
    """
    return [_measure(compiled, variant) for variant in compiled.complete]


def _measure(compiled: CompiledFunction, variant: Variant) -> list[float]:
    return variant.executable.profile(_inputs(compiled, variant))


def _inputs(compiled: CompiledFunction, variant: Variant) -> list[Any]:
    extents = {name: high for name, (_, high) in variant.ranges.items()}
    random = np.random.default_rng(0)
    leaves = [random_array(random, spec, extents, compiled.library) for spec in compiled.specs]
    return [leaves[a] if isinstance(a, int) else a() for a in variant.arguments]


_CALLS = 15


def measure_calls(compiled: CompiledFunction) -> list[Spread]:
    """Whole calls of each of its programs, as :func:`measure_steps` measures their steps; without the checks of
    arguments."""
    return [_measure_calls(compiled, variant) for variant in compiled.complete]


def _measure_calls(compiled: CompiledFunction, variant: Variant) -> Spread:
    inputs = _inputs(compiled, variant)
    watch = variant.executable.arrays.stopwatch(variant.executable.device)
    variant.executable(*inputs)  # which packs
    seconds = []
    for _ in range(_CALLS):
        watch.ready()
        start = watch.mark()
        variant.executable(*inputs)
        seconds += watch.seconds([start, watch.mark()])
    ordered = sorted(seconds)
    return Spread(ordered[0], ordered[_CALLS // 2], ordered[-1])


def random_array(random: np.random.Generator, spec: TensorSpec, extents: Mapping[str, int], library: Library) -> Any:
    """Normal numbers; integers of 0 and 1, which are valid indices wherever there are two elements."""
    arrays = load_arrays(library)
    made = example(spec, extents, library)
    dtype = dtype_of(spec.dtype)
    source = arrays.from_numpy(_numbers(random, dtype, arrays.layout(made).type.static_shape), dtype)
    if arrays.layout(made).type.device != "cpu":
        source = arrays.place(source, spec.device)
    scope = Scope()
    copy = arrays.copy_into(scope, "made", "source")
    eval(copy, {**scope.objects, "made": made, "source": source})
    return made


def _numbers(random: np.random.Generator, dtype: DType, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    if dtype.kind in ("float", "complex"):
        return random.standard_normal(shape).astype(dtype.numpy)
    return random.integers(0, 2, shape).astype(dtype.numpy)
