"""State of Python's that a function changes: it is changed as often as the function is called, and seen by it."""

from __future__ import annotations

import functools
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count as count_up
from types import CellType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.frontend.state_errors import StateChangedError

torch = pytest.importorskip("torch")

LIBRARIES = pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
Function = Callable[..., Any]

count = 0
TABLE: dict[str, int] = {}
SEEN: list[int] = []
NESTED: dict[str, list[int]] = {"list": []}
MEMO: dict[str, int] = {}


def counts_in_a_global(x: Any) -> Any:
    global count
    count += 1
    return x * count


def counts_in_a_dict(x: Any) -> Any:
    TABLE["n"] = TABLE.get("n", 0) + 1
    return x * TABLE["n"]


def appends(x: Any) -> Any:
    SEEN.append(1)
    return x * len(SEEN)


def appends_inside(x: Any, nested: dict[str, list[int]] = NESTED) -> Any:
    nested["list"].append(1)
    return x * len(nested["list"])


def counts_in_a_default(x: Any, memo: dict[str, int] = MEMO) -> Any:
    memo["n"] = memo.get("n", 0) + 1
    return x * memo["n"]


def in_a_closure() -> Function:
    n, table = 0, {"n": 0}

    def counting(x: Any) -> Any:
        nonlocal n
        n += 1
        table["n"] += 2
        return x * n + table["n"]

    return counting


def in_a_closure_alone() -> Function:
    n = 0

    def counting(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * n

    return counting


class Counter:
    def __init__(self) -> None:
        self.n = 0
        self.history: list[int] = []

    def attribute(self, x: Any) -> Any:
        self.n += 1
        return x * self.n

    def list_of_an_attribute(self, x: Any) -> Any:
        self.history.append(len(self.history))
        return x * len(self.history)


def by_a_helper(x: Any) -> Any:
    return counts_in_a_dict(x) + 1


def raises_after_counting(x: Any) -> Any:
    TABLE["n"] = TABLE.get("n", 0) + 1
    return x * TABLE["n"] if x.sum() > 0 else x


@pytest.fixture(autouse=True)
def reset() -> None:
    start_again()


def start_again() -> None:
    global count
    count = 0
    TABLE.clear()
    SEEN.clear()
    NESTED["list"].clear()
    MEMO.clear()


COUNTING: dict[str, Callable[[], Function]] = {
    "global": lambda: counts_in_a_global,
    "dict": lambda: counts_in_a_dict,
    "list": lambda: appends,
    "nested": lambda: appends_inside,
    "default": lambda: counts_in_a_default,
    "closure": in_a_closure,
    "closure alone": in_a_closure_alone,
    "attribute": lambda: Counter().attribute,
    "list of an attribute": lambda: Counter().list_of_an_attribute,
    "helper": lambda: by_a_helper,
    "not capturable": lambda: raises_after_counting,
}


@LIBRARIES
@pytest.mark.parametrize("name", COUNTING)
def test_each_call_counts_once(name: str, make: Any) -> None:
    def values(function: Function) -> list[float]:
        return [float(function(make(3))[0]) for _ in range(4)]

    as_written = values(COUNTING[name]())
    start_again()
    assert values(fusec.jit(COUNTING[name]())) == as_written
    assert len(set(as_written)) == 4


def appended(x: Any, items: list[Any]) -> Any:
    items.append(x * 2)
    return items[-1] + 1


def entered(x: Any, table: dict[str, Any]) -> Any:
    table["twice"] = x * 2
    table["n"] = 3
    return x


def decorated(function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@LIBRARIES
@pytest.mark.parametrize(("function", "container"), [(appended, list), (entered, dict)])
@pytest.mark.parametrize("given", [lambda f: f, functools.partial, decorated], ids=["function", "partial", "decorated"])
def test_containers_among_the_arguments(given: Function, function: Function, container: type, make: Any) -> None:
    """Those of the function that is called, and of one that it hands them to unseen."""
    compiled = fusec.jit(given(function))
    for _ in range(3):
        ours, theirs = container(), container()
        np.testing.assert_array_equal(compiled(make(3), ours), function(make(3), theirs))
        assert repr(ours) == repr(theirs)
        assert len(ours) > 0


class Lazy:
    def __init__(self) -> None:
        self.ready = False
        self.table: dict[int, int] = {}

    def call(self, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            return x * 2
        return x * 3

    def remembers(self, x: Any) -> Any:
        if len(x) not in self.table:
            self.table[len(x)] = len(x) * 2
        return x + self.table[len(x)]


def test_what_the_first_call_alone_does_does_not_keep_a_function_from_being_compiled() -> None:
    ours, theirs = Lazy(), Lazy()
    for name in ("call", "remembers"):
        compiled, plain = fusec.jit(getattr(ours, name)), getattr(theirs, name)
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(3)), plain(torch.ones(3)))
        assert compiled.dispatcher.plans[-1].executable is not None
        assert sum(compiled.dispatcher.eager_calls.values()) == 1


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.shape = ()

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls

    def listed(self, x: Any) -> Any:
        self.shape = (*self.shape, len(x))
        return x * len(self.shape)

    def noted(self, x: Any) -> Any:
        self.shape = tuple(x.shape)
        return x * 2


def test_modules() -> None:
    ours, theirs = Layer(), Layer()
    compiled = fusec.jit(ours)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), theirs(torch.ones(3)))
    assert ours.calls == theirs.calls == 3
    with pytest.raises(StateChangedError, match=r"test_side_effects.py:\d+: the function changes attributes of self"):
        fusec.jit(fallback="error")(ours.listed)(torch.ones(3))
    assert ours.shape == ()
    noted = fusec.jit(ours.noted)
    for _ in range(3):
        noted(torch.ones(3))
    assert ours.shape == (3,)
    assert noted.dispatcher.plans[-1].executable is not None  # an equal value changes nothing


class Outer(torch.nn.Module):
    """None of the code of what it changes is the user's, nor run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(Layer())
        self.counter = Counter()

    def forward(self, x: Any) -> Any:
        self.inner[0].shape = (*self.inner[0].shape, 1)
        self.counter.history = [*self.counter.history, 2]
        return x * len(self.inner[0].shape) + len(self.counter.history)


def test_objects_that_only_an_attribute_leads_to() -> None:
    ours, theirs = Outer(), Outer()
    compiled = fusec.jit(ours)
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), theirs(torch.ones(3)))
    assert (ours.inner[0].shape, ours.counter.history) == (theirs.inner[0].shape, theirs.counter.history)


@LIBRARIES
def test_what_is_made_in_the_call_may_change(make: Any) -> None:
    def function(x: Any) -> Any:
        made = Counter()
        items = []
        table = {}
        for k in range(3):
            items.append(made.attribute(x))
            table[k] = len(items)
        return sum(items) * table[2]

    compiled = fusec.jit(fallback="error")(function)
    np.testing.assert_allclose(compiled(make(3)), function(make(3)))


class Registry(dict[str, int]):
    """As libraries have them: a dict that is asked by other keys than it keeps."""

    def get(self, key: object, default: Any = None) -> Any:
        return super().get(str(key), default)


REGISTRY = Registry(n=3)


def asks_a_registry(x: Any) -> Any:
    return x * REGISTRY.get("n")


def adds_to_a_registry(x: Any) -> Any:
    REGISTRY[str(len(REGISTRY))] = 1
    return x * len(REGISTRY)


@LIBRARIES
def test_a_kind_of_dict(make: Function) -> None:
    x = make(4)
    assert (fusec.jit(asks_a_registry, fallback="error")(x) == 3).all()
    with pytest.raises(StateChangedError, match="REGISTRY"):
        fusec.jit(adds_to_a_registry, fallback="error")(x)
    assert REGISTRY == {"n": 3}


class Slotted:
    __slots__ = ("n",)
    total = 0

    def __init__(self) -> None:
        self.n = 0


def in_slots() -> Function:
    held = Slotted()

    def f(x: Any) -> Any:
        held.n += 1
        return x * held.n

    return f


def in_a_class() -> Function:
    class Local:
        n = 0

    def f(x: Any) -> Any:
        Local.n += 1
        return x * Local.n

    return f


def in_a_module() -> Function:
    module: Any = ModuleType("module")
    module.n = 0

    def f(x: Any) -> Any:
        module.n += 1
        return x * module.n

    return f


def in_a_functions_attribute() -> Function:
    def f(x: Any) -> Any:
        f.n += 1  # type: ignore[attr-defined]
        return x * f.n  # type: ignore[attr-defined]

    f.n = 0  # type: ignore[attr-defined]
    return f


def in_a_deque() -> Function:
    window: Any = deque(maxlen=3)

    def f(x: Any) -> Any:
        window.append(1)
        return x * len(window)

    return f


def by_an_iterator() -> Function:
    numbers = iter(range(10))
    return lambda x: x * next(numbers)


def by_an_attributes_iterator() -> Function:
    holder = SimpleNamespace(numbers=count_up())
    return lambda x: x * next(holder.numbers)


def by_a_random_number() -> Function:
    random.seed(3)
    return lambda x: x * random.random()


def by_a_generator_of_ones_own() -> Function:
    own = random.Random(3)
    return lambda x: x * own.random()


def in_an_object_of_an_object() -> Function:
    outer = SimpleNamespace(inner=[SimpleNamespace(n=0)])

    def f(x: Any) -> Any:
        bump(outer)
        return x * outer.inner[0].n

    return f


def bump(outer: Any) -> None:
    outer.inner[0].n += 1


def in_two_closures_of_one_maker() -> Function:
    one, other = in_a_closure(), in_a_closure()
    return lambda x: one(x) + other(other(x))


def in_a_threads_own_values() -> Function:
    own = threading.local()
    own.n = 0

    def f(x: Any) -> Any:
        own.n += 1
        return x * own.n

    return f


def in_a_context_variable() -> Function:
    variable = ContextVar[int]("variable")
    variable.set(0)

    def f(x: Any) -> Any:
        variable.set(variable.get() + 1)
        return x * variable.get()

    return f


def in_a_cell() -> Function:
    cell = CellType(0)

    def f(x: Any) -> Any:
        cell.cell_contents += 1
        return x * cell.cell_contents

    return f


def by_a_key_that_is_held_weakly() -> Function:
    table = weakref.WeakKeyDictionary[Any, int]()
    key = type("Key", (), {})()
    table[key] = 0

    def f(x: Any) -> Any:
        table[key] += 1
        return x * table[key]

    return f


def by_a_method_that_is_kept() -> Function:
    seen: list[int] = []
    append, length = seen.append, seen.__len__

    def f(x: Any) -> Any:
        append(1)
        return x * length()

    return f


OUTLIVING = (
    *(
        in_a_threads_own_values,
        in_a_context_variable,
        in_a_cell,
        by_a_key_that_is_held_weakly,
        by_a_method_that_is_kept,
    ),
    *(in_slots, in_a_class, in_a_module, in_a_functions_attribute, in_a_deque, by_an_iterator, by_a_random_number),
    *(by_an_attributes_iterator, by_a_generator_of_ones_own, in_an_object_of_an_object, in_two_closures_of_one_maker),
)


@LIBRARIES
@pytest.mark.parametrize("maker", OUTLIVING, ids=lambda m: m.__name__)
def test_state_of_all_kinds(maker: Callable[[], Function], make: Any) -> None:
    def values(function: Function) -> list[float]:
        return [float(function(make(3))[0]) for _ in range(5)]

    expected = values(maker())
    assert values(fusec.jit(maker())) == pytest.approx(expected)


def test_an_array_of_numpys_in_a_function_of_pytorch() -> None:
    def maker() -> Function:
        table = np.zeros(3)

        def f(x: Any) -> Any:
            table[1] += 1
            return x * float(table[1])

        return f

    fast, slow = fusec.jit(maker()), maker()
    for _ in range(4):
        torch.testing.assert_close(fast(torch.ones(2)), slow(torch.ones(2)))


def test_what_is_traced_is_not_left_in_a_cache() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers = [SimpleNamespace(keys=None)]

    @functools.lru_cache
    def table(n: int) -> Any:
        return torch.arange(n).float()

    def step(x: Any, cache: Any) -> Any:
        layer = cache.layers[0]
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x])
        return layer.keys.sum(0) * table(x.shape[1])

    fast, ours, theirs = fusec.jit(step), Cache(), Cache()
    for _ in range(4):
        x = torch.randn(2, 3)
        torch.testing.assert_close(fast(x, ours), step(x, theirs))
        torch.testing.assert_close(ours.layers[0].keys, theirs.layers[0].keys)
    assert type(table(3)) is torch.Tensor


def test_iterators_that_are_made_in_the_call() -> None:
    def total(parts: Any) -> Any:
        return sum(parts)

    def f(x: Any) -> Any:
        return total(x * k for k in range(3)) + total(map(torch.tanh, (x, x)))

    fast = fusec.jit(f, fallback="error")
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), f(x))


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_a_library_in_a_closure(library: Any) -> None:
    """As where a function imports it, and makes the one that is compiled."""

    def standardise(x: Any) -> Any:
        return (x - library.mean(x)) / library.std(x)

    x = library.linspace(0.0, 1.0, 12).reshape(3, 4)
    compiled = fusec.jit(standardise, fallback="error")
    for _ in range(2):
        np.testing.assert_allclose(compiled(x), standardise(x), rtol=1e-5)


class Sampler:
    """Draws with a generator of its own, by way of another function."""

    def __init__(self) -> None:
        self.source = random.Random(0)

    def scaled(self, x: Any) -> Any:
        return drawn(x, self.source)


def drawn(x: Any, source: random.Random) -> Any:
    return x * source.choice([1.0, 2.0, 3.0])


def test_generators_made_in_the_call_are_no_state_and_others_are() -> None:
    x = np.ones(3)
    compiled = fusec.jit(lambda x: drawn(x, random.Random(2)), fallback="error")
    assert all((compiled(x) == drawn(x, random.Random(2))).all() for _ in range(3))
    one, other = Sampler(), Sampler()
    written = fusec.jit(one.scaled)
    assert [written(x)[0] for _ in range(5)] == [other.scaled(x)[0] for _ in range(5)]


BY_TYPE: dict[type, Callable[[Any], Any]] = {}


def noted_by_type(x: Any) -> Any:
    """As einops finds the library of an array."""
    found = BY_TYPE.get(type(x))
    if found is None:
        found = BY_TYPE[type(x)] = doubled
    return found(x) + 1


def doubled(x: Any) -> Any:
    return x * 2


@LIBRARIES
def test_what_is_noted_about_a_type_is_noted_once_and_no_stand_in_stays(make: Any) -> None:
    BY_TYPE.clear()
    compiled: Any = fusec.jit(noted_by_type)
    for _ in range(3):
        assert float(compiled(make(3))[0]) == float(noted_by_type(make(3))[0])
        assert list(BY_TYPE) == [type(make(3))]
    assert sum(compiled.dispatcher.eager_calls.values()) == 1


@LIBRARIES
def test_a_note_about_a_type_that_calls_would_not_find_is_state(make: Any) -> None:
    seen: dict[type, list[int]] = {}

    def lists(x: Any) -> Any:
        seen.setdefault(type(x), []).append(len(seen))
        return x * len(seen[type(x)])

    compiled: Any = fusec.jit(lists)
    assert [float(compiled(make(3))[0] / make(3)[0]) for _ in range(4)] == [1, 2, 3, 4]
    assert list(seen) == [type(make(3))]
