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
class Times:
    """Seconds of each step of each piece of a file, or why there are none."""

    pieces: Sequence[Sequence[float]] = ()
    reason: str = ""


def measure_steps(compiled: CompiledFunction) -> list[list[float]]:
    """The median seconds of each step of each of its programs, extents being the largest that a program serves.

    Raises what calls raise, and ArtifactError where a named dimension has no range.
    """
    return [_measure(compiled, variant) for variant in compiled.complete]


def _measure(compiled: CompiledFunction, variant: Variant) -> list[float]:
    extents = {name: high for name, (_, high) in variant.ranges.items()}
    random = np.random.default_rng(0)
    leaves = [random_array(random, spec, extents, compiled.library) for spec in compiled.specs]
    return variant.executable.profile([leaves[a] if isinstance(a, int) else a() for a in variant.arguments])


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
