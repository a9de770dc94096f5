"""What tests of jitted PyTorch functions share."""

from __future__ import annotations

from typing import Any

import torch

import fusec


def strict(function: Any) -> Any:
    return fusec.jit(fallback="error")(function)


def plans(jitted: Any) -> list[Any]:
    made = getattr(jitted, "_fusec", jitted)
    return list(made.dispatcher.plans)


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    assert found.requires_grad == wanted.requires_grad
    assert found.is_inference() == wanted.is_inference()
