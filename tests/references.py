"""Runs the NumPy references of ops, and compares them with PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from op_samples import t
from oracle import as_numpy

from fusec.ir.attributes import NO_ATTRIBUTES, Attributes
from fusec.ir.definition import Array
from fusec.ir.ops import OPS
from fusec.ir.types import bf16, dtype_of, f16, f32, f64

Torch = Callable[..., torch.Tensor]


def run(name: str, *arrays: Array, attributes: Attributes = NO_ATTRIBUTES) -> Array:
    """The reference's result, and a check that it has the type that the rule tells."""
    operands = tuple(t(dtype_of(a.dtype), *a.shape) for a in arrays)
    (wanted,) = OPS[name].infer(operands, attributes)
    (result,) = OPS[name].reference(arrays, attributes)
    assert result.dtype == wanted.dtype.numpy
    assert result.shape == wanted.shape
    return result


def tensor(array: Array) -> torch.Tensor:
    if array.dtype == bf16.numpy:
        return torch.tensor(array.astype(np.float32)).bfloat16()
    return torch.tensor(np.ascontiguousarray(array).reshape(array.shape))


def same(actual: Array, expected: torch.Tensor, ulps: float = 4, absolute: float = 0.0) -> None:
    """Equal dtype and shape, NaN and infinity in the same places, the rest within some ulp."""
    wanted = as_numpy(expected)
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    if actual.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, wanted)
        return
    epsilon = {f16.numpy: 2**-10, bf16.numpy: 2**-7, f32.numpy: 2**-23, f64.numpy: 2**-52}[actual.dtype]
    np.testing.assert_allclose(
        actual.astype(np.float64), wanted.astype(np.float64), rtol=ulps * epsilon, atol=absolute, equal_nan=True
    )
