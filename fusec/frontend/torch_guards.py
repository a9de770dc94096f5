# SPDX-License-Identifier: Apache-2.0
"""Guards of a captured PyTorch function: what it read, the library's modes, and references that share a tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.modules.module as _all_modules

from fusec.frontend.capture import (
    Conditions,
    Environment,
)
from fusec.frontend.torch_references import Fetch

Ambient = tuple[object, ...]


def hooked_everywhere() -> bool:
    """Whether a backward hook is registered for all modules."""
    return bool(_all_modules._global_backward_hooks or _all_modules._global_backward_pre_hooks)


def watched_everywhere() -> bool:
    """Whether a forward hook is registered for all modules."""
    return bool(_all_modules._global_forward_hooks or _all_modules._global_forward_pre_hooks)


@dataclass(frozen=True, eq=False)
class TorchGuards:
    """The function's guards, PyTorch's own modes (grad, autocast, default dtype), and references that share a tensor.

    A tie's second fetch may be a weak reference to a tensor that is made of others: it must be that very one.
    ``bare``: attributes that the arguments did not have, which calls test. ``graded``: a backward is made of it.
    ``modular``: it has modules.
    """

    guards: Environment
    ambient: Ambient
    ties: tuple[tuple[Fetch, Fetch], ...]
    bare: tuple[tuple[int, str | None], ...]
    graded: bool = False
    modular: bool = False

    @cached_property
    def holds(self) -> Callable[[], bool]:
        """A plain function: True while all is as it was."""
        graded, dtype, *autocast = self.ambient
        is_graded, default_dtype, own = torch.is_grad_enabled, torch.get_default_dtype, self.guards.holds
        autocasts = torch._C._is_any_autocast_enabled
        if self.ties or any(autocast) or self.graded or self.modular:
            return self._holds

        def holds() -> bool:
            if autocasts():
                return self._holds()
            return is_graded() is graded and default_dtype() is dtype and own()

        return holds

    @property
    def conditions(self) -> Conditions:
        """The grad mode and autocast are left to :meth:`TorchArrays.check`, which sees both."""
        _, dtype, *autocast = self.ambient
        if self.ties or any(autocast):
            return Conditions((), self._holds, bare=self.bare, apart=self.guards.conditions.apart)
        own = self.guards.conditions
        values: list[tuple[Callable[[], object], object]] = [(torch.get_default_dtype, dtype)]
        values += [(hooked_everywhere, False)] if self.graded else []
        values += [(watched_everywhere, False)] if self.modular else []
        return Conditions(tuple(values), own.rest, own.guards, self.bare, own.apart)

    def _holds(self) -> bool:
        hooked = (self.graded and hooked_everywhere()) or (self.modular and watched_everywhere())
        return not hooked and ambient() == self.ambient and self.guards.holds() and self._tied()

    def _tied(self) -> bool:
        return all(map(_is_tied, self.ties))

    def why_changed(self) -> str:
        """The first thing found changed; empty when nothing is."""
        if ambient() != self.ambient:
            return f"torch's modes: were {self.ambient}, now {ambient()}"
        if self.graded and hooked_everywhere():
            return "every module has backward hooks"
        if self.modular and watched_everywhere():
            return "every module has forward hooks"
        untied = next((tie for tie in self.ties if not _is_tied(tie)), None)
        if untied is not None and isinstance(untied[1], weakref.ref):
            return "a tensor that is made of others is another one"
        if untied is not None:
            return "two attributes that held one tensor no longer do"
        explain = getattr(self.guards, "why_changed", None)
        return explain() if explain is not None else ""


def _is_tied(tie: tuple[Fetch, Fetch]) -> bool:
    one, other = tie
    try:
        return one() is other()
    except (AttributeError, LookupError, AssertionError, ValueError):
        return False


def ambient() -> Ambient:
    cpu, gpu = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cpu") if cpu else None,
        torch.get_autocast_dtype("cuda") if gpu else None,
    )
