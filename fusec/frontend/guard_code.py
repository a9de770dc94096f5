# SPDX-License-Identifier: Apache-2.0
"""The code of guards: lines that check what a capture read, as one Python function."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusec.frontend.capture import FAILED, Guards
from fusec.frontend.guard_watch import GuardWatch, may_be_watched
from fusec.frontend.plain import brief

_VARIABLE = re.compile(r"\bv\d+\b")
_BOUND = re.compile(r"\bo\d+\b")
_HELD = re.compile(r"(v\d+)(\.\w+|\[[^\[\]]+\])$")
"""What a variable holds: an attribute, or an entry."""


@dataclass
class _Guard:
    """Lines that set ``variable`` and check it; ``{fail}`` stands for what a failed check returns.

    is_watched: while the watch finds nothing changed it passes.
    """

    lines: list[str]
    variable: str
    path: str
    was: str
    is_watched: bool = False


class _Watched:
    """True while all guards hold. They run where the watch finds a change, in a function of their own: one with
    thousands of variables takes some time to be called at all."""

    __slots__ = ("_all", "_keep", "_look")

    def __init__(self, watch: GuardWatch, all_hold: Callable[[], bool]) -> None:
        self._look, self._keep, self._all = watch.look, watch.keep, all_hold

    def __call__(self) -> bool:
        level = self._look()
        if level is None:
            return True
        if not self._all():
            return False
        self._keep(level)
        return True


class GuardCode:
    """Guards in the order in which they are checked, and the constants that they name."""

    def __init__(self) -> None:
        self.bound: dict[str, object] = {}
        self._ids: dict[int, str] = {}
        self._guards: list[_Guard] = []
        self._temporaries = 0
        self._checked: dict[tuple[str, str], str] = {}
        self._tables: dict[str, str] = {}
        self._watch = GuardWatch()
        self._watched: set[str] = set()

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

    def watch(self, variable: str, value: object) -> None:
        """From now on guards of what the variable holds, an object, may be left out while that has not changed."""
        if may_be_watched(value):
            self._watch.add(value)
            self._watched.add(variable)

    def watch_kind(self, value: object) -> bool:
        """Watches of which class an object is; False where that can't be."""
        if may_be_watched(value):
            self._watch.add(value)
        return may_be_watched(value)

    def watch_table(self, variable: str, value: object, name: str) -> bool:
        """The same for a dict among the attributes of an object that is watched; False where that can't be."""
        return variable in self._watched and self._watch.add_table(value, name)

    def check(
        self,
        expression: str,
        failed: str,
        path: str,
        value: object,
        *,
        fixed: bool = False,
        table: bool = False,
        holder: str = "",
    ) -> str:
        """A guard of what an expression gives, ``{v}`` in the test that fails; its variable.

        What is checked already is not checked again, and an object's ``__dict__`` is read once. ``fixed``: the test
        gives the same while the expression gives the same object. ``table``: that is a dict which is watched.
        ``holder``: the variable of the object that alone says what the expression gives.
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
        found = _HELD.match(expression)
        is_watched = (fixed or table) and (holder or (found[1] if found else "")) in self._watched
        if is_watched and (table or expression.endswith(".__dict__")):
            self._watched.add(v)
        test = f"if {failed.replace('{v}', v)}: return {{fail}}"
        self._guards.append(_Guard([*lines, test], v, path, brief(value), is_watched))
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
        if not any(guard.is_watched for guard in self._guards):
            lines = [line for guard in self._guards for line in guard.lines]
            return Guards(tuple(lines), self.bound) if lines else None
        holds = self.bind(_Watched(self._watch, self.compile_check()))
        lines = [f"if not {holds}(): return {FAILED}", *self._unwatched()]
        named = {name for line in lines for name in _BOUND.findall(line)}
        return Guards(tuple(lines), {name: value for name, value in self.bound.items() if name in named})

    def _unwatched(self) -> list[str]:
        """The lines of guards that the watch does not cover, and those that set the variables which these read."""
        found: list[list[str]] = []
        read: set[str] = set()
        for guard in reversed(self._guards):
            lines = guard.lines
            if guard.is_watched:
                lines = [line for line in lines[:-1] if guard.variable in read]
            read.update(name for line in lines for name in _VARIABLE.findall(line))
            found.append(lines)
        return [line for lines in reversed(found) for line in lines]

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
