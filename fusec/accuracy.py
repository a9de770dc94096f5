# SPDX-License-Identifier: Apache-2.0
"""How far results are from the graph's own in float64: the compiled program's, and those of the code as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fusec.errors import CaptureError
from fusec.frontend.capture import Capture, IntegerSource, Library, inputs_of
from fusec.frontend.structures import CallSpec, flatten
from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import Extern, interpret
from fusec.ir.types import DType, dtype_of, i64
from fusec.report import render
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.calls import bind_call
from fusec.runtime.executable import Executable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Error:
    """Of one result: the largest difference from the exact value, that difference over the largest exact value, and the
    largest in units in the last place (each element's own, of the result's dtype).

    Of booleans and integers ``largest`` is the largest difference, and the others are None. ``misplaced``: elements
    that are finite in one and not in the other, or another infinity; they count in nothing else.
    """

    largest: float
    relative: float | None
    ulps: float | None
    misplaced: int = 0


@dataclass(frozen=True)
class OutputErrors:
    """The errors of one result, by its name in the graph; ``eager`` is None where the code gives no such result."""

    name: str
    type: str
    fused: Error
    eager: Error | None


def exact_outputs(graph: Graph, inputs: Sequence[Array], library: Library) -> list[Array]:
    """A graph's outputs in float64."""
    with np.errstate(all="ignore"):
        return interpret(graph, inputs, float64=True, extern=library_calls(library))


def library_calls(library: Library) -> Extern:
    """Runs a graph's library calls, in the dtypes that they were captured with where what they are given is not
    wider."""
    arrays = load_arrays(library)

    def call(attributes: ExternAttributes, operands: Sequence[Array]) -> list[Array]:
        given = [arrays.from_numpy(np.array(a, order="C"), dtype_of(a.dtype)) for a in operands]
        return [as_numpy(arrays, result) for result in bind_call(attributes, library)(*given)]

    return call


def as_numpy(arrays: Arrays, array: Any) -> Array:
    """A copy of an array of any library, in the computer's memory."""
    dtype, shape, data = arrays.to_bytes(array)
    return np.frombuffer(data, dtype.numpy).reshape(shape).copy()


def output_errors(
    capture: Capture, executable: Executable, function: Callable[..., Any], leaves: Sequence[Any], spec: CallSpec
) -> list[OutputErrors]:
    """The errors of each result of one call. The function is called once as written.

    Arguments and weights that the call changes are changed back. Random numbers are the same for all three where they
    come from PyTorch's own generators. CaptureError for a call that can't be held against float64.
    """
    if any(isinstance(source, IntegerSource) for source in capture.sources):
        raise CaptureError("a program for a range of integers is not held against float64")
    if capture.takes_given:
        raise CaptureError("a call that changes containers among its arguments is not held against float64")
    arrays = load_arrays(capture.library)
    inputs = inputs_of(capture.sources, leaves)
    changed = {port.mutates for port in capture.graph.output_ports if port.mutates is not None}
    before = {k: as_numpy(arrays, inputs[k]) for k in changed}
    given = [as_numpy(arrays, a) for a in inputs]
    with _same_draws(capture.library) as again:
        exact = exact_outputs(capture.graph, given, capture.library)
        again()
        try:
            ours = [as_numpy(arrays, a) for a in executable(*inputs)]
        finally:
            _put_back(arrays, inputs, before)
        again()
        try:
            result = function(*(call := spec.restore(list(leaves)))[0], **call[1])
            eager = _by_output(capture, arrays, result, inputs)
        finally:
            _put_back(arrays, inputs, before)
    found = []
    for number, value in enumerate(capture.graph.outputs):
        dtype = value.type.dtype
        theirs = eager.get(number)
        error = None if theirs is None else error_of(theirs, exact[number], dtype)
        fused = error_of(ours[number], exact[number], dtype)
        found.append(OutputErrors(value.name, str(value.type), fused, error))
    return found


def _put_back(arrays: Arrays, inputs: Sequence[Any], before: dict[int, Array]) -> None:
    for number, array in before.items():
        source = arrays.from_numpy(array, dtype_of(array.dtype))
        target = inputs[number]
        if arrays.library == "torch":
            _copy_into(target, source)
        else:
            target[...] = source


def _copy_into(target: Any, source: Any) -> None:
    import torch

    with torch.no_grad():
        target.copy_(source)


def _by_output(capture: Capture, arrays: Arrays, result: Any, inputs: Sequence[Any]) -> dict[int, Array]:
    """What the function gave, by the number of the graph output that it corresponds to."""
    outputs = capture.graph.output_ports
    marks = [arrays.from_numpy(np.full((), k, np.int64), i64) for k in range(len(outputs))]
    wanted = flatten([capture.rebuild(marks)], {}, arrays.is_array)[0]
    given = flatten([result], {}, arrays.is_array)[0]
    found = {k: as_numpy(arrays, inputs[p.mutates]) for k, p in enumerate(outputs) if p.mutates is not None}
    if len(wanted) == len(given):
        for mark, array in zip(wanted, given, strict=True):
            if any(mark is m for m in marks):
                found[int(as_numpy(arrays, mark))] = as_numpy(arrays, array)
    return found


@contextmanager
def _same_draws(library: Library) -> Iterator[Callable[[], object]]:
    """Gives what makes random numbers be drawn again; afterwards they go on where they were."""
    if library != "torch":
        yield lambda: None
        return
    import torch

    with torch.random.fork_rng(range(torch.cuda.device_count())):
        seed = torch.random.initial_seed()
        torch.random.manual_seed(seed)
        yield lambda: torch.random.manual_seed(seed)


def error_of(found: Array, exact: Array, dtype: DType) -> Error:
    """The error of a result of this dtype."""
    if found.shape != exact.shape:
        return Error(np.inf, None, None, found.size)
    if not dtype.is_float and dtype.kind != "complex":
        differs = np.abs(found.astype(np.float64) - exact.astype(np.float64))
        return Error(float(differs.max(initial=0.0)), None, None)
    wide = np.complex128 if dtype.kind == "complex" else np.float64
    a, x = found.astype(wide), exact.astype(wide)
    finite = np.isfinite(a) & np.isfinite(x)
    same = finite | (np.isnan(a) & np.isnan(x)) | (a == x)
    difference, size = np.abs(a[finite] - x[finite]), np.abs(x[finite])
    largest, scale = float(difference.max(initial=0.0)), float(size.max(initial=0.0))
    return Error(
        largest,
        largest / scale if scale else largest,
        float((difference / _ulp(size, dtype)).max(initial=0.0)),
        int(np.count_nonzero(~same)),
    )


def _ulp(size: Array, dtype: DType) -> Array:
    """The distance of neighbouring numbers of the dtype at each size."""
    part = {"c64": np.float32, "c128": np.float64}.get(dtype.name, dtype.numpy)
    limits = ml_dtypes.finfo(part)
    exponents = np.frexp(np.maximum(size, float(limits.smallest_normal)))[1] - 1
    return np.asarray(np.ldexp(float(limits.eps), exponents))


def error_text(errors: Sequence[OutputErrors]) -> str:
    """A table with a row for each result, and what its columns do not say."""
    notes = [Text(f"    {note}") for note in _notes(errors)]
    return render(Group(Text("errors against float64"), _table(errors), *notes))


def _table(errors: Sequence[OutputErrors]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("result", "type", "largest error", "of the scale", "ulp", "eager's", "of the scale", "ulp"):
        table.add_column(column, justify="left" if column in ("result", "type") else "right")
    for e in errors:
        table.add_row(f"%{e.name}", e.type, *_cells(e.fused), *_cells(e.eager))
    return table


def _notes(errors: Sequence[OutputErrors]) -> Iterator[str]:
    for e in errors:
        for whose, error in (("fusec", e.fused), ("the code as written", e.eager)):
            if error is not None and error.misplaced:
                yield f"%{e.name}: of {whose}, NaN or an infinity stands elsewhere at {error.misplaced} elements"


def _cells(error: Error | None) -> tuple[str, str, str]:
    if error is None:
        return ("-", "-", "-")
    relative = "-" if error.relative is None else f"{error.relative:.2g}"
    return (f"{error.largest:.3g}", relative, "-" if error.ulps is None else f"{error.ulps:.3g}")
