# SPDX-License-Identifier: Apache-2.0
"""The ATen calls that fusec knows, by name without overload.

VALUES compute something new: ``lowering(emitter, *args, **kwargs)`` as in the ATen schema, tensors as IR values;
it gives the result or results, or raises :class:`~fusec.frontend.torch_emit.Declined`. VIEWS show memory of their
first operand: they get its shape instead and give, for each result, the view ops that lead to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusec.frontend.torch_activations import ACTIVATIONS
from fusec.frontend.torch_contract import CONTRACTIONS
from fusec.frontend.torch_convolution import CONVOLUTIONS
from fusec.frontend.torch_create import CREATIONS
from fusec.frontend.torch_data import DATA
from fusec.frontend.torch_elementwise import ELEMENTWISE
from fusec.frontend.torch_nn import NETWORK
from fusec.frontend.torch_reduce import REDUCTIONS
from fusec.frontend.torch_resampling import RESAMPLING
from fusec.frontend.torch_views import VIEWS
from fusec.frontend.torch_windows import WINDOWS
from fusec.ir.nodes import Value

Lowering = Callable[..., Value | Sequence[Value]]

VALUES: dict[str, Lowering] = {
    **ELEMENTWISE,
    **ACTIVATIONS,
    **REDUCTIONS,
    **CONTRACTIONS,
    **CONVOLUTIONS,
    **CREATIONS,
    **DATA,
    **NETWORK,
    **WINDOWS,
    **RESAMPLING,
}

FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})

MOVES = frozenset({"clone", "to", "_to_copy", "contiguous", "lift_fresh_copy", "type_as", "copy", "cat"})
"""VALUES that take and give numbers of 8 bits, with which nothing is computed."""

MULTIPLIES = frozenset({"_scaled_mm"})
"""VALUES that multiply numbers of 8 bits."""

__all__ = ["FLOAT8", "MOVES", "MULTIPLIES", "VALUES", "VIEWS"]
