# SPDX-License-Identifier: Apache-2.0
"""What makes the backwards of jitted functions, without PyTorch's compilers until the first gradient is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusec.build import Options
from fusec.frontend.capture import Recorded
from fusec.runtime.plan import Differentiate, GradientProgram


def differentiate_with(options: Options, *, warn: bool = True) -> Differentiate:
    """What makes forward and backward of recorded functions with these options."""

    def differentiate(recorded: Recorded, inputs: Sequence[Any], name: str) -> GradientProgram:
        from fusec.torch_gradients import GradientFunction
        from fusec.torch_graphs import Chosen

        return GradientFunction(recorded, inputs, name, Chosen(options, warn))

    return differentiate
