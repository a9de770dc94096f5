"""Programs that are lines of Python: the function that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def text_of(arguments: Sequence[str], lines: Sequence[str]) -> str:
    """The source of ``program``, a function of these arguments."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"def program({', '.join(arguments)}):\n{body}"


def function_of(text: str, file: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function ``program`` of a source, which sees ``scope`` and shows ``file`` as its place."""
    exec(compile(text, file, "exec"), scope)
    made: Callable[..., Any] = scope["program"]
    return made
