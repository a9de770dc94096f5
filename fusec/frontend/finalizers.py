# SPDX-License-Identifier: Apache-2.0
"""Objects whose death runs the user's code: a compiled call makes none, so nothing would run."""

from __future__ import annotations

from types import CodeType, FrameType, FunctionType
from typing import Any

from fusec.errors import UnsupportedOpError
from fusec.frontend.kinds import true_value
from fusec.frontend.raw import classes_of, is_a, table_of
from fusec.frontend.source import code_location, is_user_file

_NAME = "__del__"


def is_finalized(cls: type) -> bool:
    """Whether the user's code runs when an object of the class dies."""
    found: list[Any] = [table_of(base).get(_NAME) for base in classes_of(cls)]
    return any(is_a(f, FunctionType) and is_user_file(f.__code__.co_filename) for f in found)


def made_of(name: str, code: CodeType) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"the function makes a {name}, whose {_NAME} runs when it dies; make it outside", code_location(code)
    )


def refuse_finalized(frame: FrameType) -> None:
    """UnsupportedOpError where code that is about to run makes such a class, or has a name for one.

    Once an object of it is there it dies, whatever becomes of the run.
    """
    code, values = frame.f_code, frame.f_locals
    namespace: Any = getattr(frame.f_globals, "original", frame.f_globals)
    for body in _codes_in(code):
        if _NAME in body.co_names and _NAME in (inner.co_name for inner in _codes_in(body)):
            raise made_of(body.co_name, code)
    named = [true_value(namespace, name) for name in code.co_names]
    for value in (*named, *(values.get(name) for name in code.co_freevars)):
        if is_a(value, type) and is_finalized(value):
            raise made_of(value.__name__, code)


def _codes_in(code: CodeType) -> list[CodeType]:
    """Of the functions and bodies of classes that code makes."""
    return [inner for inner in code.co_consts if isinstance(inner, CodeType)]
