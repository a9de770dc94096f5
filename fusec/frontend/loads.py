# SPDX-License-Identifier: Apache-2.0
"""Which globals, closure cells and attributes code reads, by its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType

from fusec.frontend.guards import Names

_ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
_GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_BY_NAME = {"getattr", "hasattr", "attrgetter", "vars", "__dict__", "__getattr__", "__getattribute__", "getattr_static"}
_BY_TEXT = {"getattr", "hasattr"}
_OF_CLASSES = {"super", "type", "__class__", "mro", "__mro__"}
_ALL_NAMES = {"vars", "dir"}
_TEXTS = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING")
_MISSING_ATTRIBUTE = {"AttributeError", "Exception", "BaseException"}
_OF_IDENTITY = {"id", "is_", "is_not", "index", "remove", "count", "__contains__"}
_ASKS_IDENTITY = ("IS_OP", "CONTAINS_OP")
_CELL_LOADS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")


class Loads:
    """Names of globals, cells and attributes that a code object reads.

    texts: its texts that may be names of attributes. by_name: it reads some that are named by texts. handles: it goes
    on without an attribute that is missing. by_class: it may look into a class, past an instance. identity: it may ask
    which arrays are one object.
    """

    __slots__ = ("attributes", "by_class", "by_name", "cells", "globals", "handles", "identity", "texts")

    def __init__(self, code: CodeType) -> None:
        self.globals: set[str] = set()
        self.cells: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: set[str] = set()
        self.handles = not _MISSING_ATTRIBUTE.isdisjoint(code.co_names)
        self.identity = not _OF_IDENTITY.isdisjoint(code.co_names)
        makes_texts = False
        before = ""
        for instruction in dis.get_instructions(code):
            if instruction.opname in _GLOBAL_LOADS:
                self.globals.add(instruction.argval)
            elif instruction.opname in _ATTRIBUTE_LOADS:
                self.attributes.add(instruction.argval)
            elif instruction.opname in _CELL_LOADS and instruction.argval in code.co_freevars:
                self.cells.add(instruction.argval)
            elif instruction.opname in _TEXTS:
                makes_texts = True
            elif instruction.opname == "POP_TOP" and before == "PUSH_EXC_INFO":  # except: of any error
                self.handles = True
            elif instruction.opname in _ASKS_IDENTITY and before != "LOAD_CONST":
                self.identity = True
            before = instruction.opname
        self.by_name = not _BY_NAME.isdisjoint(code.co_names)
        asked = sum(i.opname in _GLOBAL_LOADS and i.argval in _BY_TEXT for i in dis.get_instructions(code))
        spelled = sum(type(i.argval) is str for i in dis.get_instructions(code) if i.opname == "LOAD_CONST")
        for constant in code.co_consts:
            parts = constant if isinstance(constant, tuple | frozenset) else (constant,)
            for text in (part for part in parts if isinstance(part, str)):
                self.texts.update(name for name in text.split(".") if name.isidentifier())  # attrgetter("inner.scale")
        self.by_class = not _OF_CLASSES.isdisjoint(code.co_names)
        if "globals" in self.globals:
            self.globals |= self.texts
        if not _ALL_NAMES.isdisjoint(self.globals) or (self.by_name and makes_texts) or asked > spelled:
            self.attributes.add("__dict__")


@lru_cache(maxsize=4096)
def loads_of(code: CodeType) -> Loads:
    """What code reads, of which few objects run again and again."""
    return Loads(code)


def names_read(loads: Iterable[Loads], executed: set[int]) -> Names:
    """The names that all code together may read. A text may be where another function makes a name of it."""
    listed = list(loads)
    attributes: set[str] = set().union(*(entry.attributes for entry in listed))
    texts: set[str] = set()
    if any(entry.by_name for entry in listed):
        texts.update(*(entry.texts for entry in listed))
    handled = attributes if any(entry.handles for entry in listed) else set()  # by whoever called what reads
    by_class = any(entry.by_class for entry in listed)
    identity = any(entry.identity for entry in listed)
    return Names(frozenset(attributes | texts), executed, frozenset(handled | texts), by_class, identity)
