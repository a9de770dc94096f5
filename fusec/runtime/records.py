# SPDX-License-Identifier: Apache-2.0
"""Classes of results in files: named tuples, dataclasses, and dicts such as the ``ModelOutput`` of transformers.

A file names them. Where such a class has been imported when the file is loaded, results are of that class; nothing is
imported for it. Elsewhere they are of a stand-in with the same name, items, attributes and order.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from typing import Any, Literal, get_args

from fusec.errors import ArtifactError
from fusec.frontend import raw

Base = Literal["tuple", "dict", "object"]


def base_of(kind: type) -> Base | None:
    """What a class of results is kept as; None for one that a file can't hold."""
    if issubclass(kind, tuple):
        return "tuple" if hasattr(kind, "_fields") else None
    if issubclass(kind, dict):
        return "dict"
    return "object" if raw.in_class(kind, "__dataclass_fields__") is not None else None


def find_class(module: str, name: str, base: Base, fields: Sequence[str]) -> type:
    """The class, where it has been imported and is such a one; else a stand-in. ArtifactError for no class's name."""
    if base not in get_args(Base):
        raise ArtifactError(f"there is no kind of results such as {base!r:.40}")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # what a module's __getattr__ gives it may import
    if isinstance(found, type) and base_of(found) == base and (base != "tuple" or found._fields == tuple(fields)):  # type: ignore[attr-defined]
        return found
    return _stand_in(name.rpartition(".")[2], base, tuple(fields))


@functools.cache
def _stand_in(name: str, base: Base, fields: tuple[str, ...]) -> type:
    try:
        match base:
            case "tuple":
                return namedtuple(name, fields)
            case "dict":
                return type(name, (Record,), {})
            case "object":
                return dataclasses.make_dataclass(name, fields)
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"there is no class of results {name!r:.80}: {error}") from None


class Record(OrderedDict[Any, Any]):
    """A dict whose items are attributes, too, and whose values have numbers, in order."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(map(str, self))}") from None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | slice) and key not in self.keys():
            return self.to_tuple()[key]
        return super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values, in order."""
        return tuple(self.values())
