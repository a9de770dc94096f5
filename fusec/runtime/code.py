# SPDX-License-Identifier: Apache-2.0
"""Python source that is written, compiled and run: names bound to objects, and lines."""

from __future__ import annotations

import itertools
import keyword
import linecache
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.ir.index import Index, Symbol, symbol, symbols_of
from fusec.ir.indexing import substitute

_numbers = itertools.count()
_NONE: Mapping[str, Any] = {}


def spell(i: Index) -> str:
    """An index expression in generated code, where symbol ``B`` is the variable ``dim_B``."""
    if isinstance(i, int):
        return str(i)
    named: dict[Symbol, Index] = {s: symbol(variable_of(s), s.lo, s.hi) for s in symbols_of(i)}
    return str(substitute(i, named))


def spell_tuple(dims: Sequence[Index]) -> str:
    """A tuple of index expressions in generated code."""
    return f"({', '.join(map(spell, dims))}{',' if len(dims) == 1 else ''})"


def variable_of(s: Symbol) -> str:
    """The variable of generated code that holds a symbol's value."""
    return f"dim_{s.name}"


def indented(lines: Sequence[str]) -> list[str]:
    """The lines as the body of a statement."""
    return [f"    {line}" for line in lines] or ["    pass"]


class Scope:
    """The objects that generated code refers to by name; ``named`` have their names already."""

    def __init__(self, named: Mapping[str, Any] = _NONE) -> None:
        self.objects: dict[str, Any] = dict(named)
        self._names: dict[int, str] = {id(value): name for name, value in named.items()}

    def bind(self, value: Any, hint: str) -> str:
        """The name of an object, as near to ``hint`` as can be; the same object keeps its name."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        base = re.sub(r"\W", "_", hint)
        if not base.isidentifier() or keyword.iskeyword(base):
            base = f"n_{base}"
        name = base
        for number in itertools.count(1):
            if name not in self.objects:
                break
            name = f"{base}_{number}"
        self.objects[name] = value
        self._names[id(value)] = name
        return name


def make_function(name: str, parameters: Sequence[str], lines: Sequence[str], scope: Scope) -> Callable[..., Any]:
    """The function of these lines, and its text in ``__source__``.

    The objects of the scope are its closure, which is faster to read than globals. The function keeps all of them
    alive, those too that the lines know only by address.
    """
    body = "".join(f"        {line}\n" for line in lines) or "        pass\n"
    header = f"def make({', '.join(scope.objects)}):\n    def {name}({', '.join(parameters)}):\n"
    text = f"{header}{body}    return {name}\n"
    filename = f"<fusec {name} {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, filename, "exec"), namespace)
    made: Callable[..., Any] = namespace["make"](**scope.objects)
    weakref.finalize(made, linecache.cache.pop, filename, None).atexit = False
    made.__source__ = text  # type: ignore[attr-defined]
    made.__scope__ = scope  # type: ignore[attr-defined]
    return made
