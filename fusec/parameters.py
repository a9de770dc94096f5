# SPDX-License-Identifier: Apache-2.0
"""The parameters of a compiled function: their names and defaults, so that it is called as the function is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fusec.errors import ArtifactError
from fusec.frontend.structures import CallSpec
from fusec.runtime.serial import Json, scalar_from_json, scalar_to_json

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = (bool, int, float, complex, str, type(None))


class _Other:
    """Stands for a default that is no plain value: who leaves the argument out gets what was compiled."""

    def __repr__(self) -> str:
        return "..."


OTHER = _Other()


@dataclass(frozen=True)
class Parameters:
    """A function's signature, its defaults reduced to plain values."""

    signature: inspect.Signature

    @staticmethod
    def of(function: Callable[..., Any]) -> Parameters | None:
        """Those of a function, or of an ``nn.Module``'s ``forward``; None where Python does not know them."""
        try:
            found = inspect.signature(getattr(function, "forward", function))
        except (TypeError, ValueError):
            return None
        return Parameters(inspect.Signature([_reduced(p) for p in found.parameters.values()]))

    def arranged(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], spec: CallSpec
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A call as the compiled one was spelled: positional or by name, without what is left at its default.

        None where the function takes no such call, or an argument is given that was not compiled.
        """
        try:
            bound = self.signature.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        given = dict(bound)
        if any(self.signature.parameters[name].kind in _VARIADIC for name in given):
            return None
        defaults = {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}
        wanted = [*list(self.signature.parameters)[: len(spec.args)], *(name for name, _ in spec.kwargs)]
        values = {}
        for name in wanted:
            if name not in given and (name not in defaults or defaults[name] is OTHER):
                return None
            values[name] = given.pop(name) if name in given else defaults[name]
        if any(not _is_default(value, defaults.get(name, OTHER)) for name, value in given.items()):
            return None
        count = len(spec.args)
        return tuple(values[n] for n in wanted[:count]), {n: values[n] for n in wanted[count:]}

    def to_json(self) -> Json:
        """Of defaults, those that are plain values."""
        return [
            [p.name, p.kind.name, *([] if p.default is p.empty else [_default_to(p.default)])]
            for p in self.signature.parameters.values()
        ]

    @staticmethod
    def from_json(data: Json) -> Parameters | None:
        """ArtifactError for what is no signature."""
        if data is None:
            return None
        try:
            made = []
            for name, kind, *default in data:
                value = _default_from(default[0]) if default else inspect.Parameter.empty
                made.append(inspect.Parameter(str(name), _KINDS[kind], default=value))
            return Parameters(inspect.Signature(made))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"the record of the parameters is damaged: {error!s:.200}") from None


def _reduced(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not parameter.empty and type(default) not in _PLAIN:
        default = OTHER
    return inspect.Parameter(parameter.name, parameter.kind, default=default)


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and type(value) in _PLAIN and bool(value == default)


def _default_to(value: Any) -> Json:
    if value is OTHER:
        return {"other": True}
    return {"str": value} if type(value) is str else {"value": scalar_to_json(value)}


def _default_from(data: Json) -> Any:
    if "str" in data:
        return str(data["str"])
    return scalar_from_json(data["value"]) if "value" in data else OTHER
