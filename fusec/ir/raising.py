# SPDX-License-Identifier: Apache-2.0
"""Which ops may raise for what is in their operands: library calls and indices.

What eager raises, a program raises as well, so no pass takes such an op for dead. Library calls are also kept for what
else they do, such as drawing random numbers.
"""

from __future__ import annotations

import re

from fusec.ir.attributes import ExternAttributes
from fusec.ir.nodes import Op

_INTERPRETED = "fusec.interpret"

_RAISING = re.compile(
    r"index|scatter|gather|take|put|embedding|linalg|cholesky|inverse|lu_|multinomial|bernoulli|normal|binomial|poisson"
    r"|nll_loss|cross_entropy|ctc_loss|one_hot|bincount|histogram|histc|div|remainder|fmod|pow|assert|unpool"
    r"|searchsorted|quantile|repeat_interleave|segment"
)
"""Names of PyTorch's functions that refuse some contents of a tensor: indices, singular matrices, probabilities, 0."""


def is_effect(op: Op) -> bool:
    """True for a library call: to be made whether its results are read or not."""
    return isinstance(op.attributes, ExternAttributes) and op.attributes.target != _INTERPRETED


def may_raise(op: Op) -> bool:
    """True for a library call that may raise for what its operands hold."""
    if not isinstance(op.attributes, ExternAttributes) or op.attributes.target == _INTERPRETED:
        return False
    namespace, _, name = op.attributes.target.partition(".")
    return namespace != "aten" or _RAISING.search(name) is not None


def is_lookup(op: Op) -> bool:
    """True for an op that reads, or adds, where an index says, and whose index may be out of range."""
    return op.name in ("gather", "gather_elements", "scatter_add")
