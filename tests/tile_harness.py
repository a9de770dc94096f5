"""Hand-written kernels for tests: short constructors, and a comparison of compiled code with the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusec.ir.index import Symbol, symbol
from fusec.ir.types import DType, contiguous_strides
from fusec.target.cpu import CpuTarget, cpu_target
from fusec.tile.interpret import run
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Block, Iter
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, Space

Array = npt.NDArray[Any]
GUARD = 64
"""Elements on each side of a parameter that no kernel may touch."""


def sym(name: str, extent: int) -> Symbol:
    return symbol(name, 0, max(extent - 1, 0))


def buffer(
    name: str, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, space: Space = "parameter"
) -> Buffer:
    return Buffer(name, dtype, shape, strides or contiguous_strides(shape), space)


def tile(name: str, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Buffer:
    return buffer(name, dtype, shape, strides, "tile")


def iters(*symbols_and_extents: tuple[Symbol, int]) -> tuple[Iter, ...]:
    return tuple(Iter(s, n) for s, n in symbols_and_extents)


def op(name: str, *args: ScalarExpr, dtype: DType | None = None) -> Apply:
    return Apply(name, args, dtype or args[-1].dtype)


def const(value: bool | int | float, dtype: DType) -> Const:
    return Const(value, dtype)


def load(b: Buffer, *index: Any) -> Load:
    return Load(b, index)


def kernel(name: str, parameters: Sequence[Buffer], body: Block, outputs: int = 1, kind: str = "map") -> Kernel:
    return Kernel(name, kind, tuple(parameters), outputs, body)


def guarded(b: Buffer, values: Array | None, seed: int = 0) -> tuple[Array, Array]:
    """Memory with guard elements on both sides, and the buffer's view of it, filled with ``values`` (or rubbish)."""
    rng = np.random.default_rng(seed)
    low = sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True) if s < 0 and n > 0)
    size = b.extent - low
    memory = rng.integers(0, 255, (size + 2 * GUARD) * b.dtype.itemsize, np.uint8).view(b.dtype.numpy)
    origin = memory[GUARD - low :]
    strides = tuple(s * b.dtype.itemsize for s in b.strides)
    view = np.lib.stride_tricks.as_strided(origin, b.shape, strides)
    if b.dtype.kind == "bool":
        memory.view(np.uint8)[:] &= 1
    if values is not None:
        view[...] = values
    return memory, view


def random_values(b: Buffer, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    dtype = b.dtype.numpy
    if b.dtype.kind == "bool":
        return rng.integers(0, 2, b.shape).astype(bool)
    if b.dtype.is_float:
        return rng.normal(size=b.shape).astype(np.float32).astype(dtype)
    return rng.integers(-100 if b.dtype.kind == "int" else 0, 100, b.shape).astype(dtype)


def compare(
    k: Kernel,
    inputs: Sequence[Array | None] = (),
    *,
    target: CpuTarget | None = None,
    rtol: float = 2e-6,
    atol: float = 1e-6,
) -> list[Array]:
    """Runs the compiled kernel and the interpreter on the same inputs, compares all of memory, gives the outputs."""
    from fusec.codegen.tvm.build import compile_kernels

    compiled = compile_kernels([k], target or cpu_target())
    return compare_compiled(compiled, k, inputs, rtol=rtol, atol=atol)


def compare_compiled(
    compiled: Any, k: Kernel, inputs: Sequence[Array | None] = (), *, rtol: float = 2e-6, atol: float = 1e-6
) -> list[Array]:
    count = len(k.parameters) - k.outputs
    values = [
        (inputs[i] if i < len(inputs) else random_values(b, i)) if i < count else None
        for i, b in enumerate(k.parameters)
    ]
    ours = [guarded(b, v, i) for i, (b, v) in enumerate(zip(k.parameters, values, strict=True))]
    reference = [guarded(b, v, i) for i, (b, v) in enumerate(zip(k.parameters, values, strict=True))]
    run(k, [view for _, view in reference])
    function = compiled.function(k.name)
    function(*(view.ctypes.data for _, view in ours))
    for b, (memory, _), (expected, _) in zip(k.parameters, ours, reference, strict=True):
        assert_close(b, memory, expected, rtol, atol)
    return [view for _, view in ours[count:]]


def assert_close(b: Buffer, actual: Array, expected: Array, rtol: float, atol: float) -> None:
    if not b.dtype.is_float:
        np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8), err_msg=b.name)
        return
    guard = [slice(0, GUARD), slice(len(actual) - GUARD, None)]
    for side in guard:
        assert actual[side].tobytes() == expected[side].tobytes(), f"{b.name}: memory outside the buffer was changed"
    with np.errstate(invalid="ignore"):
        wide, wanted = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(wide, wanted, rtol=rtol, atol=atol, err_msg=b.name)
