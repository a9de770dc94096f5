"""Copies of what a function may change: made and put back without running code of its classes."""

from __future__ import annotations

import collections
import threading
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from unseen import Notes

import fusec
from fusec.frontend.held import contents, put_back

CALLS = Notes()
"""Threads, and the methods that ran in them."""


def take() -> list[str]:
    own = threading.get_ident()
    return [name for thread, name in CALLS.take() if thread == own]


def note(name: str) -> None:
    CALLS.add((threading.get_ident(), name))


def noting(name: str, base: type) -> type:
    """A subclass of which every method that Python asks for by itself notes that it ran."""

    def method(special: str, own: Any) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            note(f"{name}.{special}")
            return own(self, *args, **kwargs)

        return call

    names = ("__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__eq__", "__ne__", "__contains__",
             "__repr__", "copy", "clear", "update", "extend", "items", "keys", "values", "__getattribute__",
             "__setattr__", "__delattr__", "__copy__", "__reduce_ex__", "__bool__", "__hash__")  # fmt: skip
    table: dict[str, Any] = {n: method(n, getattr(base, n)) for n in names if hasattr(base, n)}
    if base.__hash__ is None:
        del table["__hash__"]
    table["__class__"] = property(lambda self: note(f"{name}.__class__") or base)
    return type(name, (base,), table)


class Factory(collections.OrderedDict):  # type: ignore[type-arg]
    """Gives an instance of the class that it holds, as transformers' table of activations does."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


class Slotted:
    __slots__ = ("value",)


class Plain:
    pass


NotingDict, NotingOrdered, NotingDefault, NotingList, NotingSet, NotingDeque, NotingObject, NotingSlots = (
    noting(f"Noting{base.__name__.title()}", base)
    for base in (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque, Plain, Slotted)
)


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, held in attributes.items():
        object.__setattr__(value, name, held)
    return value


def slotted() -> Any:
    made = NotingSlots()
    Slotted.value.__set__(made, [1])  # type: ignore[attr-defined]
    return made


def ordered(kind: type = collections.OrderedDict) -> Any:
    made = kind(a=1, b=2)
    made.move_to_end("a")
    return made


HOLDERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: NotingDict(a=1, b=2),
    "ordered": lambda: ordered(NotingOrdered),
    "factory": lambda: Factory(silu=torch.nn.SiLU),
    "default": lambda: NotingDefault(list, a=[1]),
    "list": lambda: NotingList([1, 2]),
    "set": lambda: NotingSet([1, 2]),
    "deque": lambda: NotingDeque([1, 2], 3),
    "object": lambda: with_attributes(NotingObject(), a=1, b=[2]),
    "slots": slotted,
    "dict with attributes": lambda: with_attributes(NotingDict(a=1), note=[1]),
    "user dict": lambda: collections.UserDict(a=1),
    "counter": lambda: collections.Counter("abca"),
    "bytes": lambda: bytearray(b"abc"),
    "array": lambda: array("i", [1, 2]),
}


def spoil(value: Any) -> None:
    """Changes a value in every way that it has, past its own methods."""
    if issubclass(type(value), dict):
        kind = collections.OrderedDict if issubclass(type(value), collections.OrderedDict) else dict
        kind.__setitem__(value, "new", 3)
        kind.__delitem__(value, next(iter(dict.keys(value))))
    elif issubclass(type(value), list | collections.deque | set):
        base = next(b for b in (list, collections.deque, set) if issubclass(type(value), b))
        base.clear(value)
    elif type(value) in (bytearray, array):
        value[0] = 7
        value.append(9)
    elif issubclass(type(value), Slotted):
        Slotted.value.__set__(value, None)  # type: ignore[attr-defined]
    if hasattr(type(value), "__dict__") and "__dict__" in dir(type(value)):
        table = object.__getattribute__(value, "__dict__")
        table["new"] = 1
        for name in [n for n in table if n != "new"][:1]:
            table[name] = None
    if issubclass(type(value), collections.defaultdict):
        collections.defaultdict.default_factory.__set__(value, set)  # type: ignore[attr-defined]


def picture(value: Any) -> Any:
    """All that a value holds, by identity, past its own methods."""
    state = contents(value)
    assert state is not None
    parts = state.parts if isinstance(state.parts, bytes) else list(map(id, state.parts or ()))
    return state.kind, state.keys, parts, id(state.table), list(state.names()), list(map(id, state.names().values()))


@pytest.mark.parametrize("name", HOLDERS)
def test_what_was_there_is_put_back_and_no_method_runs(name: str) -> None:
    value = HOLDERS[name]()
    take()
    before = contents(value)
    assert before is not None
    was = picture(value)
    spoil(value)
    assert picture(value) != was
    take()
    put_back(value, before)
    now = picture(value)
    assert not take()
    assert now == was


def test_a_class_and_a_table_of_attributes_that_were_replaced_are_put_back() -> None:
    value = Plain()
    value.a = 1  # type: ignore[attr-defined]
    table, before = value.__dict__, contents(value)
    assert before is not None
    value.__dict__ = {"b": 2}
    value.__class__ = type("Other", (Plain,), {})
    put_back(value, before)
    assert type(value) is Plain
    assert value.__dict__ is table
    assert table == {"a": 1}


def test_a_property_of_the_class_is_not_set() -> None:
    class Guarded:
        def __init__(self) -> None:
            self.__dict__["size"] = 1

        @property
        def size(self) -> int:
            raise AssertionError("read")

        @size.setter
        def size(self, n: int) -> None:
            raise AssertionError("set")

    value = Guarded()
    before = contents(value)
    assert before is not None
    value.__dict__["size"] = 2
    put_back(value, before)
    assert value.__dict__ == {"size": 1}


TABLE: Any = Factory(silu=torch.nn.SiLU)


@pytest.mark.parametrize("read", ["global", "closure", "argument", "attribute", "self"])
def test_a_table_that_makes_what_it_gives_stays_as_it_was(read: str) -> None:
    table = Factory(silu=torch.nn.SiLU)
    holder = with_attributes(Plain(), table=table)

    def by_global(x: Any) -> Any:
        return TABLE["silu"](x) * 2

    def by_closure(x: Any) -> Any:
        return table["silu"](x) * 2

    def by_argument(x: Any, given: Any) -> Any:
        return given["silu"](x) * 2

    def by_attribute(x: Any) -> Any:
        return holder.table["silu"](x) * 2

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, x: Any) -> Any:
            return self.table["silu"](x) * 2

    functions: dict[str, Any] = {"global": by_global, "closure": by_closure, "argument": by_argument,
                                 "attribute": by_attribute, "self": Module()}  # fmt: skip
    function, x = functions[read], torch.linspace(-2, 2, 6)
    rest = (table,) if read == "argument" else ()
    compiled = fusec.jit(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, *rest), function(x, *rest))
        for own in (TABLE, table):
            assert type(own) is Factory
            assert list(collections.OrderedDict.values(own)) == [torch.nn.SiLU]


READERS: dict[str, Callable[[Any], Any]] = {
    "dict": lambda held: held["a"],
    "ordered": lambda held: held["a"],
    "default": lambda held: held["a"][0],
    "list": lambda held: held[0],
    "object": lambda held: held.a,
    "slots": lambda held: held.value[0],
    "dict with attributes": lambda held: held["a"] + held.note[0],
}


@pytest.mark.parametrize("x", [torch.ones(3), np.ones(3)], ids=["torch", "numpy"])
@pytest.mark.parametrize("name", READERS)
def test_holding_what_a_function_reads_runs_no_method_of_it(name: str, x: Any) -> None:
    """A run that is captured calls what the function itself calls; a compiled call calls nothing."""
    held, read = HOLDERS[name](), READERS[name]

    def function(x: Any) -> Any:
        return x * read(held) * 2

    take()
    expected = function(x)
    own = take()
    compiled = fusec.jit(function)
    take()
    compiled(x)
    assert take() == own
    take()
    for _ in range(3):
        assert (compiled(x) == expected).all()
    assert not take()
    assert not compiled.dispatcher.eager_calls  # type: ignore[attr-defined]
