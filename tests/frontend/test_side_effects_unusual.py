"""State that functions change where it is seldom kept: in classes, functions, modules, files, the process."""

from __future__ import annotations

import enum
import functools
import io
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

import fusec

torch = pytest.importorskip("torch")

LIBRARIES = pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
Function = Callable[..., Any]
Made = tuple[Function, Callable[[], Any]]


def in_a_context_variable_that_is_not_set() -> Made:
    variable: ContextVar[int] = ContextVar("variable")

    def f(x: Any) -> Any:
        variable.set(variable.get(0) + 1)
        return x * variable.get()

    return f, lambda: variable.get(None)


def in_a_context_variable_that_is_set_and_reset() -> Made:
    variable: ContextVar[int] = ContextVar("variable")

    def f(x: Any) -> Any:
        variable.reset(variable.set(3))
        return x * 2

    return f, lambda: variable in copy_context()


def in_a_descriptor() -> Made:
    class Numbers:
        def __init__(self) -> None:
            self.held: dict[int, int] = {}

        def __get__(self, owner: Any, kind: type) -> Any:
            return self.held.get(id(owner), 0)

        def __set__(self, owner: Any, value: int) -> None:
            self.held[id(owner)] = value

    class Counter:
        n = Numbers()

    counter = Counter()

    def f(x: Any) -> Any:
        counter.n = counter.n + 1
        return x * counter.n

    return f, lambda: counter.n


def in_an_attribute_of_an_enum_member() -> Made:
    class Kind(enum.Enum):
        A = 1

    def f(x: Any) -> Any:
        Kind.A.count = getattr(Kind.A, "count", 0) + 1  # type: ignore[attr-defined]
        return x * Kind.A.count  # type: ignore[attr-defined]

    return f, lambda: Kind.A.count  # type: ignore[attr-defined]


def in_a_class_that_notes_what_its_metaclass_does() -> Made:
    class Meta(type):
        log: ClassVar[list[str]] = []

        def __setattr__(cls, name: str, value: Any) -> None:
            type.__setattr__(cls, name, value)
            cls.log.append(name)

    class Counter(metaclass=Meta):
        n = 0

    def f(x: Any) -> Any:
        Counter.n = Counter.n + 1
        return x * Counter.n

    return f, lambda: (Counter.n, len(Counter.log))


def in_a_list_of_subclasses() -> Made:
    class Base:
        made: ClassVar[list[str]] = []

        def __init_subclass__(cls) -> None:
            Base.made.append(cls.__name__)

    def f(x: Any) -> Any:
        class Derived(Base):
            pass

        return x * len(Base.made)

    return f, lambda: len(Base.made)


def in_a_class_in_a_class() -> Made:
    class Outer:
        class Inner:
            counts: ClassVar[list[int]] = [0]

    def f(x: Any) -> Any:
        Outer.Inner.counts[0] += 1
        return x * Outer.Inner.counts[0]

    return f, lambda: Outer.Inner.counts[0]


def in_an_attribute_of_a_helper() -> Made:
    def helper(x: Any) -> Any:
        helper.seen.append(1)  # type: ignore[attr-defined]
        return x * len(helper.seen)  # type: ignore[attr-defined]

    helper.seen = []  # type: ignore[attr-defined]
    return lambda x: helper(x), lambda: len(helper.seen)  # type: ignore[attr-defined]


def in_a_module_that_is_imported_in_the_function() -> Made:
    module: Any = ModuleType("counted_in_a_test")
    module.n = 0
    sys.modules["counted_in_a_test"] = module

    def f(x: Any) -> Any:
        import counted_in_a_test  # type: ignore[import-not-found]

        counted_in_a_test.n += 1
        return x * counted_in_a_test.n

    return f, lambda: module.n


def in_a_functions_defaults() -> Made:
    def helper(x: Any, k: int = 1) -> Any:
        return x * k

    def f(x: Any) -> Any:
        helper.__defaults__ = (helper.__defaults__[0] + 1,)  # type: ignore[index]
        return helper(x)

    return f, lambda: helper.__defaults__


def in_a_functions_code() -> Made:
    def twice(x: Any) -> Any:
        return x * 2

    def thrice(x: Any) -> Any:
        return x * 3

    def f(x: Any) -> Any:
        twice.__code__, thrice.__code__ = thrice.__code__, twice.__code__
        return twice(x)

    return f, lambda: twice(1)


def in_an_event() -> Made:
    event = threading.Event()

    def f(x: Any) -> Any:
        factor = 3 if event.is_set() else 2
        event.set()
        return x * factor

    return f, event.is_set


def in_a_semaphore() -> Made:
    semaphore = threading.Semaphore(10)

    def f(x: Any) -> Any:
        semaphore.acquire()
        return x * semaphore._value

    return f, lambda: semaphore._value


def in_a_queue_written_in_c() -> Made:
    queue: SimpleQueue[int] = SimpleQueue()

    def f(x: Any) -> Any:
        queue.put(1)
        return x * queue.qsize()

    return f, queue.qsize


def in_the_environment() -> Made:
    os.environ["TESTED_BY_A_TEST"] = "0"

    def f(x: Any) -> Any:
        os.environ["TESTED_BY_A_TEST"] = str(int(os.environ["TESTED_BY_A_TEST"]) + 1)
        return x * int(os.environ["TESTED_BY_A_TEST"])

    return f, lambda: os.environ.pop("TESTED_BY_A_TEST")


def in_a_text_that_is_written() -> Made:
    text = io.StringIO()

    def f(x: Any) -> Any:
        text.write("a")
        return x * len(text.getvalue())

    return f, text.getvalue


def in_bytes_that_are_read() -> Made:
    given = io.BytesIO(bytes(range(1, 30)))
    return lambda x: x * given.read(1)[0], given.tell


def in_a_file_that_is_read() -> Made:
    path = Path(os.environ["FUSEC_CACHE_DIR"]) / "numbers.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("123456789")
    given = path.open()
    return lambda x: x * int(given.read(1)), given.tell


def by_an_iterator_in_a_list() -> Made:
    numbers = [itertools.count(1)]
    return lambda x: x * next(numbers[0]), lambda: next(numbers[0])


def by_a_generator_in_a_dict() -> Made:
    table = {"numbers": (n for n in range(1, 100))}
    return lambda x: x * next(table["numbers"]), lambda: next(table["numbers"])


def by_what_is_called_when_a_result_dies() -> Made:
    dead: list[int] = []

    def f(x: Any) -> Any:
        y = x * 2
        weakref.finalize(y, dead.append, 1)
        return x * 3

    return f, lambda: len(dead)


MAKERS = (
    *(in_a_context_variable_that_is_not_set, in_a_context_variable_that_is_set_and_reset, in_a_descriptor),
    *(in_an_attribute_of_an_enum_member, in_a_class_that_notes_what_its_metaclass_does, in_a_list_of_subclasses),
    *(in_a_class_in_a_class, in_an_attribute_of_a_helper, in_a_module_that_is_imported_in_the_function),
    *(in_a_functions_defaults, in_a_functions_code, in_an_event, in_a_semaphore, in_a_queue_written_in_c),
    *(in_the_environment, in_a_text_that_is_written, in_bytes_that_are_read, in_a_file_that_is_read),
    *(by_an_iterator_in_a_list, by_a_generator_in_a_dict, by_what_is_called_when_a_result_dies),
)


@LIBRARIES
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_state_is_as_after_calls_as_written(maker: Callable[[], Made], make: Any) -> None:
    def lives(compile_it: Callable[[Function], Function]) -> tuple[list[float], Any]:
        function, state = maker()
        called = compile_it(function)
        return [float(called(make(3))[0]) for _ in range(4)], state()

    assert lives(fusec.jit(warn=False)) == lives(lambda function: function)


def test_an_attribute_of_a_tensor_of_a_closure() -> None:
    def lives(compile_it: Callable[[Function], Function]) -> tuple[list[float], int]:
        weight = torch.ones(3)

        def f(x: Any) -> Any:
            weight.calls = getattr(weight, "calls", 0) + 1
            return x * weight.calls

        called = compile_it(f)
        return [float(called(torch.ones(3))[0]) for _ in range(4)], weight.calls

    assert lives(fusec.jit(warn=False)) == lives(lambda function: function)


def test_a_cached_function_of_plain_values_is_called_once() -> None:
    table = functools.lru_cache(lambda n: n + 1)
    fast = fusec.jit(lambda x: x * table(3))
    fast(torch.ones(3))
    assert table.cache_info().misses == 1
    assert not fast.dispatcher.eager_calls


@LIBRARIES
def test_a_module_imported_in_the_function_is_read_at_each_call(make: Any) -> None:
    module: Any = ModuleType("read_in_a_test")
    module.scale = 2
    exec("def twice(x):\n    return x * scale * 2", module.__dict__)
    sys.modules["read_in_a_test"] = module

    def by_name(x: Any) -> Any:
        import read_in_a_test  # type: ignore[import-not-found]

        return x * read_in_a_test.scale

    def from_it(x: Any) -> Any:
        from read_in_a_test import scale

        return x * scale

    def function_from_it(x: Any) -> Any:
        from read_in_a_test import twice

        return twice(x)

    for function in (by_name, from_it, function_from_it):
        fast = fusec.jit(function)
        for scale in (2, 3, 4):
            module.scale = scale
            assert float(fast(make(3))[0]) == float(function(make(3))[0])
        assert not fast.dispatcher.eager_calls


@LIBRARIES
def test_attributes_by_names_that_are_data(make: Any) -> None:
    class Settings:
        chosen, low, high = "low", 2, 3

    settings = Settings()

    def f(x: Any) -> Any:
        return x * getattr(settings, settings.chosen)

    fast = fusec.jit(f)
    for chosen, low in (("low", 2), ("high", 2), ("low", 5)):
        settings.chosen, settings.low = chosen, low
        assert float(fast(make(3))[0]) == float(f(make(3))[0])


def of_a_class_made_inside(ends: list[str]) -> Function:
    def f(x: Any) -> Any:
        class Ending:
            def __init__(self, value: Any) -> None:
                self.value = value

            def __del__(self) -> None:
                ends.append("end")

        return Ending(x + 1).value * 2

    return f


def of_a_class_with_a_name(ends: list[str]) -> Function:
    class Ending:
        def __del__(self) -> None:
            ends.append("end")

    def f(x: Any) -> Any:
        made = Ending()
        made.value = x + 1  # type: ignore[attr-defined]
        return made.value * 2  # type: ignore[attr-defined]

    return f


@LIBRARIES
@pytest.mark.parametrize("function", [of_a_class_made_inside, of_a_class_with_a_name])
@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_the_death_of_an_object_runs_code_at_each_call(function: Any, make: Any) -> None:
    ends: list[str] = []
    f = fusec.jit(function(ends))
    for call in range(1, 4):
        assert float(f(make(3))[0]) == 4
        assert len(ends) == call


def taken(lock: Any) -> Function:
    def f(x: Any) -> Any:
        lock.acquire()
        return x + 1

    return f


def taken_where_it_is_free(lock: Any) -> Function:
    def f(x: Any) -> Any:
        if not lock.acquire(blocking=False):
            return x - 1
        return x + 1

    return f


@LIBRARIES
@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
@pytest.mark.parametrize("function", [taken, taken_where_it_is_free])
@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_a_lock_is_taken_at_each_call(function: Any, kind: Any, make: Any) -> None:
    lock = kind()
    f = fusec.jit(function(lock))
    for _ in range(3):
        assert float(f(make(3))[0]) == 2
        lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


@LIBRARIES
@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_a_lock_that_is_taken_already(make: Any) -> None:
    lock = threading.Lock()
    f = fusec.jit(taken_where_it_is_free(lock))
    with lock:
        assert float(f(make(3))[0]) == 0
    assert float(f(make(3))[0]) == 2
    lock.release()


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_a_lock_that_another_thread_holds() -> None:
    lock = threading.RLock()
    f = fusec.jit(taken_where_it_is_free(lock))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock.acquire).result()
        assert [float(f(np.ones(3))[0]) for _ in range(2)] == [0, 0]
        pool.submit(lock.release).result()
    assert float(f(np.ones(3))[0]) == 2
    lock.release()


@LIBRARIES
def test_a_lock_that_a_call_gives_back(make: Any) -> None:
    lock = threading.Lock()

    def f(x: Any) -> Any:
        lock.acquire()
        try:
            return x + 1
        finally:
            lock.release()

    jitted = fusec.jit(fallback="error")(f)
    for _ in range(2):
        assert float(jitted(make(3))[0]) == 2
        assert not lock.locked()
