# SPDX-License-Identifier: Apache-2.0
"""The code of guards: lines that check what a capture read, as one Python function."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusec.frontend.capture import FAILED, Guards
from fusec.frontend.plain import brief


@dataclass
class _Guard:
    """Lines that set ``variable`` and check it; ``{fail}`` stands for what a failed check returns."""

    lines: list[str]
    variable: str
    path: str
    was: str


class GuardCode:
    """Guards in the order in which they are checked, and the constants that they name."""

    def __init__(self) -> None:
        self.bound: dict[str, object] = {}
        self._ids: dict[int, str] = {}
        self._guards: list[_Guard] = []
        self._temporaries = 0
        self._checked: dict[tuple[str, str], str] = {}
        self._tables: dict[str, str] = {}

    @property
    def count(self) -> int:
        return len(self._guards)

    def bind(self, value: object) -> str:
        """A name for a constant of the generated code; the value is kept alive by it."""
        name = self._ids.get(id(value))
        if name is None:
            name = self._ids[id(value)] = f"o{len(self.bound)}"
            self.bound[name] = value
        return name

    def bind_weakly(self, value: object) -> str | None:
        """An expression for the value that does not keep it alive; None for a type without weak references."""
        try:
            reference = weakref.ref(value)
        except TypeError:
            return None
        return f"{self.bind(reference)}()"

    def add(self, lines: list[str], variable: str, path: str, was: str) -> None:
        """Lines that set ``variable`` and check it."""
        self._guards.append(_Guard(lines, variable, path, was))

    def check(self, expression: str, failed: str, path: str, value: object) -> str:
        """A guard of what an expression gives, ``{v}`` in the test that fails; its variable.

        What is checked already is not checked again, and an object's ``__dict__`` is read once.
        """
        known = self._checked.get((expression, failed))
        if known is not None:
            return known
        v = self._tables.get(expression)
        lines = []
        if v is None:
            v = f"v{self._temporaries}"
            self._temporaries += 1
            lines = [f"{v} = {expression}"]
            if expression.endswith(".__dict__"):
                self._tables[expression] = v
        self._checked[expression, failed] = v
        self.add([*lines, f"if {failed.replace('{v}', v)}: return {{fail}}"], v, path, brief(value))
        return v

    def _compile(self, body: list[str]) -> Callable[[], Any]:
        names = ", ".join(self.bound)
        text = "\n".join([f"def make({names}):", "    def check():", *("        " + line for line in body)])
        namespace: dict[str, Any] = {}
        exec(compile(text + "\n    return check\n", "<fusec guards>", "exec"), namespace)
        made: Callable[[], Any] = namespace["make"](**self.bound)
        return made

    def written(self) -> Guards | None:
        """The guards as text; None where there are none."""
        lines = tuple(line for guard in self._guards for line in guard.lines)
        return Guards(lines, self.bound) if lines else None

    def compile_check(self) -> Callable[[], bool]:
        """The function that is True while every guard holds."""
        if not self._guards:
            return _always
        lines = ["    " + line.replace(FAILED, "False") for guard in self._guards for line in guard.lines]
        return self._compile(["try:", *lines, "    return True", "except Exception:", "    return False"])

    def explain(self) -> str:
        """Which guard fails first, with the value then and now; empty when all hold."""
        lines = ["at = 0", "try:"]
        for position, guard in enumerate(self._guards):
            failed = f"{position}, {guard.variable}"
            lines += [f"    at = {position}", *("    " + g.replace(FAILED, failed) for g in guard.lines)]
        lines += ["    return None", "except Exception as error:", "    return at, error"]
        found = self._compile(lines)()
        if found is None:
            return ""
        position, now = found
        guard = self._guards[position]
        if isinstance(now, Exception):
            return f"{guard.path}: was {guard.was}, now gone"
        return f"{guard.path}: was {guard.was}, now {brief(now)}"


def _always() -> bool:
    return True
