# SPDX-License-Identifier: Apache-2.0
"""Operators of our own that PyTorch knows, which captures see whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMESPACE = "_fusec"


def define(*operators: tuple[str, Callable[..., Any], Callable[..., Any]]) -> tuple[Any, Any]:
    """Makes operators known: of each the schema, what runs, and what is said of fake tensors.

    What is given back has them as attributes, and what they end with: it is to be kept.
    """
    new: Any = torch.library.Library
    library = new(_NAMESPACE, "FRAGMENT")
    for schema, run, fake in operators:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, run, "CompositeExplicitAutograd")
        library._register_fake(name, fake)
    return getattr(torch.ops, _NAMESPACE), library
