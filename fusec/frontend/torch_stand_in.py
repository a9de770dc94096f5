# SPDX-License-Identifier: Apache-2.0
"""What stands for a tensor while a torch function is traced: a fake tensor that says which class it stands for."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fusec.errors import UnsupportedOpError
from fusec.frontend.kinds import StandIn
from fusec.frontend.raw import in_class
from fusec.frontend.source import user_location

_OF_FAKES = ("torch._", "torch.utils.", "fusec.")
"""Modules that ask tensors for what is no business of the function's."""

_NOTES = ("_is_", "_dynamo_")
"""How names begin that PyTorch gives to its own marks: parameters and buffers, hints for ``torch.compile``."""


GRADED: ContextVar[Callable[[torch.Tensor], bool] | None] = ContextVar("GRADED", default=None)
"""Whether a tensor that the function made requires a gradient; None where nothing does."""


class Asked:
    """Attributes that a function did not find in its arguments' own ``__dict__``: by number, None for any at all."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str | None], None] = {}


class TracedTensor(FakeTensor, StandIn):
    """A fake tensor that the function's own code sees.

    A tensor's own attributes (``x.scale = 2``) are no part of a graph. Code that finds some is refused; where it looks
    for one that is not there, calls are told apart by that. ``_origin``: of an argument its number, what to note in,
    and the argument itself; None for what the function made.
    """

    _origin: tuple[int, Asked, weakref.ref[torch.Tensor]] | None = None
    _kind: type = torch.Tensor
    _given: str = ""

    @property
    def __class__(self) -> type:
        return self._kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise _refused("gives a tensor another class")

    @property
    def grad(self) -> torch.Tensor | None:
        if self._origin is not None:
            raise _refused("reads the gradient of an argument")
        return super().grad

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        raise _refused("sets the gradient of a tensor")

    @property
    def requires_grad(self) -> bool:
        own = bool(super().requires_grad)
        graded = GRADED.get()
        return own if own or graded is None or self._origin is not None or _by_library(1) else graded(self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._check_switch(value)
        torch.Tensor.requires_grad.__set__(self, value)  # type: ignore[attr-defined]

    def requires_grad_(self, requires_grad: bool = True) -> torch.Tensor:
        self._check_switch(requires_grad)
        return super().requires_grad_(requires_grad)

    def _check_switch(self, to: bool) -> None:
        """A computed tensor that requires a gradient can't be made to need none: that is an error as written."""
        graded = GRADED.get()
        if not to and graded is not None and self._origin is None and graded(self):
            raise _refused("says that a computed tensor needs no gradient")

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        if GRADED.get() is not None and not _by_library(1):
            raise _refused("reads how a tensor was computed (grad_fn)")
        return super().grad_fn

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        if GRADED.get() is not None and not _by_library(1):
            raise _refused("asks whether a tensor was computed (is_leaf)")
        return bool(super().is_leaf)

    def register_hook(self, hook: Any) -> Any:
        raise _refused("registers a hook on a tensor")

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        raise _refused("registers a hook on a tensor")

    def retain_grad(self) -> None:
        raise _refused("keeps the gradient of a tensor")

    @property
    def _version(self) -> int:  # type: ignore[override]
        raise _refused("counts the writes to a tensor")

    @property
    def _base(self) -> torch.Tensor | None:  # type: ignore[override]
        if not _by_pytorch(1):
            raise _refused("asks which tensor another is a view of (_base)")
        return super()._base

    def _is_view(self) -> bool:
        if not _by_pytorch(1):
            raise _refused("asks whether a tensor is a view")
        return bool(super()._is_view())

    def storage_offset(self) -> Any:
        if not _by_pytorch(1):
            raise _refused("asks where in its storage a tensor begins (storage_offset)")
        return super().storage_offset()

    def untyped_storage(self) -> Any:
        if not _by_pytorch(1):
            raise _refused("takes the storage of a tensor")
        return super().untyped_storage()

    def is_shared(self) -> bool:
        raise _refused("asks whether a tensor is shared by processes")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        if self._given:
            raise _refused("reads all attributes of a tensor")
        self._look(None)
        return {}

    def __getattr__(self, name: str) -> Any:
        if not _by_library(1):
            self._look(name)
        raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")

    def _look(self, name: str | None) -> None:
        """Looks for an attribute that only this argument may have, or for any."""
        if self._origin is None:
            return
        number, asked, real = self._origin
        tensor = real()
        own = vars(tensor) if tensor is not None else {}
        if name in own or (own and name is None):
            raise _refused(f"reads the attribute {name or next(iter(own))} of a tensor; pass it as an argument")
        asked.found[number, name] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if in_class(type(self), name) is None and not name.startswith(_NOTES):
            if self._origin is not None:
                raise _refused(f"sets the attribute {name} of an argument, which outlives the call")
            object.__setattr__(self, "_given", name)
        object.__setattr__(self, name, value)
        if name == "_is_param":  # torch.nn.Parameter(x) marks its result
            object.__setattr__(self, "_kind", torch.nn.Parameter)

    def __delattr__(self, name: str) -> None:
        self._look(name)
        object.__delattr__(self, name)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<traced {self.dtype}{list(self.shape)}>"


def _by_library(depth: int) -> bool:
    """Whether code of PyTorch's own machinery asks, so many frames above the caller."""
    return str(sys._getframe(depth + 1).f_globals.get("__name__", "")).startswith(_OF_FAKES)


def _by_pytorch(depth: int) -> bool:
    """The same of any code of PyTorch's."""
    return str(sys._getframe(depth + 1).f_globals.get("__name__", "")).startswith(("torch.", "fusec."))


def standing_for(fake: torch.Tensor) -> None:
    """Makes a fake tensor one that the function's code may see."""
    if type(fake) is FakeTensor:
        fake.__class__ = TracedTensor


def as_argument(fake: torch.Tensor, real: torch.Tensor, number: int, asked: Asked) -> None:
    """Tells which argument a fake tensor stands for."""
    if type(fake) is TracedTensor:
        object.__setattr__(fake, "_kind", type(real))
        object.__setattr__(fake, "_origin", (number, asked, weakref.ref(real)))


def check_returned(tensor: torch.Tensor, is_made: bool) -> None:
    """UnsupportedOpError for a tensor that the function returns with more than its elements. ``is_made``: its memory,
    too, is the function's."""
    if type(tensor) is TracedTensor and tensor._origin is None:
        if tensor._kind is not torch.Tensor:
            raise _refused("returns a parameter that it makes")
        if tensor._given:
            raise _refused(f"sets the attribute {tensor._given} of a tensor that it returns")
        if is_made and tensor.requires_grad:
            raise _refused("returns a tensor that it makes require a gradient")


def check_argument(fake: torch.Tensor) -> None:
    """UnsupportedOpError where the function made an argument require a gradient, or no longer do so."""
    if type(fake) is TracedTensor and fake._origin is not None:
        real = fake._origin[2]()
        if real is not None and real.requires_grad != fake.requires_grad:
            raise _refused("changes whether an argument requires a gradient")


def _refused(what: str) -> UnsupportedOpError:
    return UnsupportedOpError(f"the function {what}", user_location())
