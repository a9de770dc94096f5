"""What objects of Python's own classes hold: a change of it is seen."""

from __future__ import annotations

import collections
import contextvars
import functools
import gc
import queue
import threading
import types
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from fusec.frontend.environment import Environment, record_environment

Held = tuple[Callable[[], Any], Callable[[], Any]]
"""What reads, and what changes what was read."""


def record(read: Callable[[], Any]) -> Environment:
    with record_environment(read, ()) as recorder:
        read()
    return recorder.finish(is_tensor=lambda value: False)


class Key:
    def __init__(self, size: float = 2.0) -> None:
        self.size = size


def _deque() -> Held:
    held = collections.deque([1.0, 2.0])
    return lambda: held[0], lambda: held.appendleft(3.0)


def _deque_of_objects() -> Held:
    held = collections.deque([{"a": [Key()]}])
    return lambda: held[0]["a"][0].size, lambda: setattr(held[0]["a"][0], "size", 3.0)


def _read_only_dict() -> Held:
    table = {"a": 1.0}
    held = types.MappingProxyType(table)
    return lambda: held["a"], lambda: table.update(a=2.0)


def _weak_reference() -> Held:
    keys = [Key()]
    held = weakref.ref(keys[0])
    return lambda: getattr(held(), "size", 0.0), lambda: (keys.clear(), gc.collect())


def _weak_reference_that_stays() -> Held:
    key = Key()
    held = weakref.ref(key)
    return lambda: held().size, lambda: setattr(key, "size", 3.0)  # type: ignore[union-attr]


def _weak_values() -> Held:
    keys = [Key()]
    held = weakref.WeakValueDictionary(a=keys[0])
    return lambda: "a" in held, lambda: (keys.clear(), gc.collect())


def _weak_keys() -> Held:
    key = Key()
    held = weakref.WeakKeyDictionary({key: 1.0})
    return lambda: held[key], lambda: held.update({key: 2.0})


def _user_dict() -> Held:
    held = collections.UserDict(a=1.0)
    return lambda: held["a"], lambda: held.update(a=2.0)


def _user_list() -> Held:
    held = collections.UserList([1.0])
    return lambda: held[0], lambda: held.insert(0, 2.0)


def _chain() -> Held:
    first: dict[str, float] = {}
    held = collections.ChainMap(first, {"a": 1.0})
    return lambda: held["a"], lambda: first.update(a=2.0)


def _queue() -> Held:
    held: queue.Queue[float] = queue.Queue()
    held.put(1.0)
    return lambda: held.queue[0], lambda: held.get()


def _context_variable() -> Held:
    held = contextvars.ContextVar("held", default=1.0)
    return lambda: held.get(), lambda: held.set(2.0)


def _thread_local() -> Held:
    held = threading.local()
    held.size = 1.0
    return lambda: held.size, lambda: setattr(held, "size", 2.0)


def _thread_local_that_is_empty() -> Held:
    held = threading.local()
    return lambda: getattr(held, "size", 1.0), lambda: setattr(held, "size", 2.0)


def _cell() -> Held:
    held = types.CellType(1.0)
    return lambda: held.cell_contents, lambda: setattr(held, "cell_contents", 2.0)


def _method_of_a_list() -> Held:
    numbers = [1.0]
    held = numbers.__getitem__
    return lambda: held(0), lambda: numbers.insert(0, 2.0)


def _method_of_a_dict() -> Held:
    table = {"a": 1.0}
    held = table.get
    return lambda: held("a"), lambda: table.update(a=2.0)


def _view_of_a_dict() -> Held:
    table = {"a": 1.0}
    held = table.values()
    return lambda: sum(held), lambda: table.update(a=2.0)


def _bytes() -> Held:
    held = bytearray(b"ab")
    return lambda: held[0], lambda: held.__setitem__(0, 3)


def _memory() -> Held:
    own = bytearray(b"ab")
    held = memoryview(own)
    return lambda: held[0], lambda: own.__setitem__(0, 3)


def _array() -> Held:
    held = array("d", [1.0])
    return lambda: held[0], lambda: held.__setitem__(0, 2.0)


def _dispatch() -> Held:
    @functools.singledispatch
    def size(value: object) -> float:
        return 1.0

    return lambda: size(1), lambda: size.register(int)(lambda value: 2.0)


HELD = [_deque, _deque_of_objects, _read_only_dict, _weak_reference, _weak_reference_that_stays, _weak_values]
HELD += [_weak_keys, _user_dict, _user_list, _chain, _queue, _context_variable, _thread_local]
HELD += [_thread_local_that_is_empty, _cell, _method_of_a_list, _method_of_a_dict, _view_of_a_dict, _bytes, _memory]
HELD += [_array, _dispatch]


@pytest.mark.parametrize("make", HELD, ids=lambda make: make.__name__.strip("_"))
def test_a_change_is_seen(make: Callable[[], Held]) -> None:
    read, change = make()
    environment = record(read)
    assert environment.holds()
    gc.collect(1)  # all of it is young
    assert environment.holds()
    change()
    assert not environment.holds()
    assert environment.why_changed()


def test_a_thread_has_its_own_values() -> None:
    held, found = threading.local(), []
    held.size = 1.0
    environment = record(lambda: held.size)
    other = threading.Thread(target=lambda: found.append(environment.holds()))
    other.start()
    other.join()
    assert found == [False]
    assert environment.holds()
