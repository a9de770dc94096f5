# SPDX-License-Identifier: Apache-2.0
"""The libraries' adapters."""

from __future__ import annotations

from fusec.frontend.capture import Library
from fusec.runtime import dynamo
from fusec.runtime.arrays import Arrays


def load_arrays(library: Library) -> Arrays:
    """The adapter of a library, imported on first use."""
    if library == "torch":
        from fusec.runtime import torch_arrays

        dynamo.notice_torch()
        return torch_arrays.ARRAYS
    if library == "cupy":
        from fusec.runtime import cupy_arrays

        return cupy_arrays.ARRAYS
    from fusec.runtime import numpy_arrays

    return numpy_arrays.ARRAYS
