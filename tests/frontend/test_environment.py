from __future__ import annotations

import cProfile
import dataclasses
import enum
import functools
import gc
import sys
import timeit
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from threads import at_once

from fusec.frontend.environment import Environment, record_environment


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Config:
    rate = 0.5

    def __init__(self) -> None:
        self.scale = 2.0
        self.inner = types.SimpleNamespace(depth=3)
        self.unread = 1

    def apply(self, x: float) -> float:
        return x * self.scale + self.inner.depth

    @property
    def doubled(self) -> float:
        return self.scale * 2


class Slotted:
    __slots__ = ("gain",)

    def __init__(self, gain: float) -> None:
        self.gain = gain


def helper(x: float) -> float:
    return x + OFFSET


def other_helper(x: float) -> float:
    return x - OFFSET


SCALE: Any = 2.0
OFFSET = 1
MODE = Mode.FAST
SHAPE: Any = (2, 3)
DTYPE = np.dtype("float32")
LIST = [1, 2, 3]
TABLE = {"a": 1.0, "b": 2.0}
MIXED: dict[str, Any] = {"f": helper, "inner": [1, (2, 3)]}
CONFIG = Config()
ITEMS = [Slotted(1.0), Slotted(2.0)]
MODULE = types.ModuleType("user_settings")
MODULE.__file__ = "/home/user/user_settings.py"
MODULE.FACTOR = 3.0  # type: ignore[attr-defined]
ARRAY = np.arange(4.0)
PARTIAL = functools.partial(helper)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def record(f: Callable[..., Any], *args: Any, is_tensor: Callable[[object], bool] = is_array) -> Environment:
    with record_environment(f, args) as recorder:
        f(*args)
    return recorder.finish(is_tensor=is_tensor)


@pytest.fixture
def globals_restored() -> Iterator[None]:
    saved = dict(globals())
    yield
    globals().update(saved)


def reads(name: str) -> Callable[[], object]:
    """A function of this module whose body reads one global."""
    namespace = globals()
    exec(compile(f"def read_{name}():\n    return {name}\n", __file__, "exec"), namespace)
    function: Callable[[], object] = namespace.pop(f"read_{name}")
    return function


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("SCALE", 3.0),
        ("SCALE", 2),  # equal, but of another type
        ("OFFSET", True),
        ("OFFSET", None),
        ("MODE", Mode.SLOW),
        ("SHAPE", (2, 3.0)),
        ("SHAPE", [2, 3]),
        ("DTYPE", np.dtype("float64")),
        ("LIST", [1, 2, 4]),
        ("TABLE", {"a": 1.0}),
        ("helper", other_helper),
        ("MODULE", types),
        ("CONFIG", Config()),
        ("Config", Slotted),
        ("PARTIAL", functools.partial(other_helper)),
    ],
)
def test_a_changed_global_is_seen(name: str, new: object, globals_restored: None) -> None:
    environment = record(reads(name))
    assert environment.holds()
    assert environment.why_changed() == ""
    globals()[name] = new
    assert not environment.holds()
    assert f"global {name}" in environment.why_changed()


def test_the_explanation_gives_both_values(globals_restored: None) -> None:
    environment = record(reads("SCALE"))
    globals()["SCALE"] = 3.0
    assert environment.why_changed() == "global SCALE: was 2.0, now 3.0"
    del globals()["SCALE"]
    assert environment.why_changed() == "global SCALE: was 2.0, now gone"


def test_an_equal_value_holds(globals_restored: None) -> None:
    environment = record(reads("SHAPE"))
    globals()["SHAPE"] = (1 + len(LIST) - 2, 3)
    assert environment.holds()


def test_sign_of_zero_and_nan(globals_restored: None) -> None:
    globals()["SCALE"] = 0.0
    environment = record(reads("SCALE"))
    globals()["SCALE"] = -0.0
    assert not environment.holds()
    globals()["SCALE"] = float("nan")
    environment = record(reads("SCALE"))
    assert environment.holds()
    globals()["SCALE"] = float("nan") * 2
    assert environment.holds()
    globals()["SCALE"] = 1.0
    assert not environment.holds()


@pytest.mark.parametrize(
    "change",
    [
        lambda: LIST.append(4),
        lambda: LIST.__setitem__(0, 1.0),
        lambda: TABLE.__setitem__("a", 5.0),
        lambda: TABLE.__setitem__("c", 5.0),
        lambda: MIXED.__setitem__("f", other_helper),
        lambda: MIXED["inner"].append(3),
        lambda: MIXED["inner"].__setitem__(1, (2, 4)),
        lambda: setattr(CONFIG, "scale", 9.0),
        lambda: setattr(CONFIG.inner, "depth", 4),
        lambda: setattr(CONFIG, "inner", types.SimpleNamespace(depth=3)),
        lambda: setattr(Config, "apply", lambda self, x: x),
        lambda: setattr(Config, "rate", 0.25),
        lambda: setattr(Config, "doubled", property(lambda self: 0.0)),
        lambda: setattr(ITEMS[1], "gain", 0.0),
        lambda: ITEMS.reverse(),
        lambda: setattr(MODULE, "FACTOR", 4.0),
        lambda: globals().__setitem__("helper", other_helper),
        lambda: globals().__setitem__("OFFSET", 7),
        lambda: globals().__setitem__("len", lambda x: 0),
    ],
)
def test_a_changed_part_is_seen(change: Callable[[], None], globals_restored: None) -> None:
    def f(x: float) -> float:
        for item in ITEMS:
            x = x * item.gain
        x += CONFIG.apply(x) + CONFIG.rate + CONFIG.doubled
        return MIXED["f"](x) + helper(x) + len(LIST) + TABLE["a"] * MODULE.FACTOR

    saved = (list(LIST), dict(TABLE), dict(MIXED), list(MIXED["inner"]), dict(vars(CONFIG)), list(ITEMS), ITEMS[1].gain)
    methods = {name: vars(Config)[name] for name in ("apply", "rate", "doubled")}
    environment = record(f, 1.0)
    assert environment.holds(), environment.why_changed()
    try:
        change()
        assert not environment.holds()
        assert environment.why_changed()
    finally:
        globals().pop("len", None)
        LIST[:], ITEMS[:] = saved[0], saved[5]
        TABLE.clear()
        TABLE.update(saved[1])
        MIXED.update(saved[2])
        MIXED["inner"][:] = saved[3]
        vars(CONFIG).update(saved[4])
        CONFIG.inner.depth = 3
        ITEMS[1].gain = saved[6]
        MODULE.FACTOR = 3.0
        for name, value in methods.items():
            setattr(Config, name, value)


def test_what_was_not_read_is_not_guarded(globals_restored: None) -> None:
    environment = record(lambda: CONFIG.scale)
    CONFIG.unread += 1
    globals()["OFFSET"] = 100
    assert environment.holds()


def test_closure_cells() -> None:
    scale = 2.0

    def f(x: float) -> float:
        return x * scale

    environment = record(f, 1.0)
    assert environment.holds()
    scale = 3.0
    assert environment.why_changed() == "closure scale: was 2.0, now 3.0"


def test_closure_of_a_callee_hidden_by_a_decorator() -> None:
    rate = 1.0

    def decorate(function: Callable[[float], float]) -> Callable[[float], float]:
        @functools.wraps(function)
        def wrapper(x: float) -> float:
            return function(x) * rate

        return wrapper

    @decorate
    def f(x: float) -> float:
        return x + 1

    class Opaque:
        def __init__(self) -> None:
            self.call = functools.lru_cache(f)

    opaque = Opaque()
    environment = record(lambda x: getattr(opaque, "ca" + "ll")(x), 1.0)
    assert environment.holds()
    rate = 2.0
    assert not environment.holds()


def test_of_functions_with_one_code_those_that_ran_are_guarded() -> None:
    """A decorator's wrappers, of which a library has hundreds."""

    def scaled(by: list[float]) -> Callable[[float], float]:
        def wrapper(x: float) -> float:
            return x * by[0]

        return wrapper

    rates = [[float(k)] for k in range(9)]
    hidden = [functools.lru_cache(scaled(rate)) for rate in rates]

    class Opaque:
        call, other = hidden[3], hidden[5]

    environment = record(lambda x: getattr(Opaque, "ca" + "ll")(x) + getattr(Opaque, "oth" + "er")(x), 1.0)
    assert environment.holds()
    rates[4][0] = 7.0
    assert environment.holds(), "it was not called"
    for ran in (3, 5):
        rates[ran][0] += 1
        assert not environment.holds()
        rates[ran][0] -= 1
        assert environment.holds()


def test_a_monkeypatched_callee_of_a_callee(globals_restored: None) -> None:
    def outer(x: float) -> float:
        return helper(x)

    environment = record(outer, 1.0)
    helper.__defaults__ = (0.0,)
    assert not environment.holds()
    helper.__defaults__ = None
    assert environment.holds()
    saved = helper.__code__
    helper.__code__ = other_helper.__code__
    assert not environment.holds()
    helper.__code__ = saved
    globals()["OFFSET"] = 2
    assert not environment.holds()


def test_mutable_default() -> None:
    def f(x: float, table: dict[str, float] = {"k": 2.0}) -> float:  # noqa: B006
        return x * table["k"]

    environment = record(f, 1.0)
    assert environment.holds()
    f.__defaults__[0]["k"] = 3.0  # type: ignore[index]
    assert not environment.holds()


def test_self_of_a_bound_method_and_of_an_argument() -> None:
    config = Config()
    for environment in (record(config.apply, 1.0), record(Config.apply, config, 1.0)):
        assert environment.holds()
        config.inner.depth = 10
        assert "inner.depth" in environment.why_changed()
        config.inner.depth = 3
    vars(config)["scale"] = 1.5
    assert not environment.holds()


def test_objects_are_not_kept_alive() -> None:
    @dataclasses.dataclass(eq=False)
    class Model:
        weight: float

        def __call__(self, x: float) -> float:
            return x * self.weight

    model = Model(1.0)
    environment = record(model, 1.0)
    assert environment.holds()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not environment.holds()


def test_objects_made_during_the_run_are_not_guarded() -> None:
    def f(x: float) -> float:
        return Config().apply(x)

    environment = record(f, 1.0)
    gc.collect()
    assert environment.holds(), environment.why_changed()


def test_arrays_are_left_to_the_frontend_unless_pinned_or_not_lifted() -> None:
    f = reads("ARRAY")
    lifted = record(f)
    constant = record(f, is_tensor=lambda value: False)
    with record_environment(f, ()) as recorder:
        f()
    recorder.pin("ARRAY", lambda: ARRAY, ARRAY)
    pinned = recorder.finish(is_tensor=is_array)
    assert lifted.holds()
    assert constant.holds()
    assert pinned.holds()
    ARRAY[0] = 5.0
    try:
        assert lifted.holds()
        assert not constant.holds()
        assert not pinned.holds()
    finally:
        ARRAY[0] = 0.0


def test_torch_modules() -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0
            self.norm = torch.nn.LayerNorm(4)
            self.layers = torch.nn.ModuleList([torch.nn.Dropout(0.5)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.norm(x) * self.scale

    block = Block().eval()
    x = torch.ones(2, 4)

    def is_tensor(value: object) -> bool:
        return isinstance(value, torch.Tensor)

    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: setattr(block, "scale", 3.0), lambda: setattr(block, "scale", 2.0)),
        (lambda: block.layers[0].train(), lambda: block.layers[0].eval()),
        (lambda: setattr(block.layers[0], "p", 0.1), lambda: setattr(block.layers[0], "p", 0.5)),
        (lambda: setattr(block.norm, "eps", 1e-3), lambda: setattr(block.norm, "eps", 1e-5)),
        (lambda: block.layers.append(torch.nn.Identity()), lambda: block.layers.__delitem__(1)),
        (lambda: setattr(block.norm, "forward", lambda x: x), lambda: delattr(block.norm, "forward")),
    ]
    environment = record(block, x, is_tensor=is_tensor)
    for change, undo in changes:
        assert environment.holds(), environment.why_changed()
        change()
        assert not environment.holds()
        undo()
    block.norm = torch.nn.LayerNorm(4)
    assert "norm" in environment.why_changed()
    environment = record(block, x, is_tensor=is_tensor)
    block.norm.weight.data.mul_(2.0)
    assert environment.holds()
    block.norm.register_forward_hook(lambda *a: None)
    assert "_forward_hooks" in environment.why_changed()


def test_a_forward_of_the_module_itself() -> None:
    torch = pytest.importorskip("torch")
    layers, x = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2)
    layers[0].forward = lambda x: x * 3
    environment = record(layers, x, is_tensor=lambda value: isinstance(value, torch.Tensor))
    assert environment.holds(), environment.why_changed()
    layers[0].forward = lambda x: x * 4
    assert "forward" in environment.why_changed()
    del layers[0].forward
    assert not environment.holds()


def test_guards_are_fast() -> None:
    namespace: dict[str, Any] = {f"G{i}": float(i + 1) for i in range(100)}
    body = " + ".join(namespace)
    exec(compile(f"def f(): return {body}", __file__, "exec"), namespace)
    environment = record(namespace["f"])
    assert len(environment) == 101
    once = min(timeit.repeat(environment.holds, number=200, repeat=5)) / 200
    assert once / 100 < 500e-9  # some 40 ns on an idle machine
    nothing = record(lambda x: x, 1.0)
    assert nothing.holds()


def test_an_existing_profiler_goes_on() -> None:
    calls: list[str] = []

    def mine(frame: types.FrameType, event: str, arg: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(mine)
    try:
        record(helper, 1.0)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert "helper" in calls
    profile = cProfile.Profile()
    profile.enable()
    record(helper, 1.0)
    helper(2.0)
    profile.disable()
    profile.create_stats()
    assert any(key[2] == "helper" for key in profile.stats)  # type: ignore[attr-defined]


def test_threads_record_only_their_own_code() -> None:
    results: dict[int, bool] = {}

    def work(index: int) -> None:
        environment = record(reads("SCALE") if index % 2 else reads("LIST"))
        results[index] = environment.holds() and len(environment) >= 1

    at_once(work, range(8))
    assert results == dict.fromkeys(range(8), True)


def test_an_error_in_the_run_restores_the_profiler() -> None:
    with pytest.raises(ZeroDivisionError), record_environment(helper, ()):
        _ = 1 / 0
    assert sys.getprofile() is None


class Base:
    rate = 0.5

    def scaled(self) -> float:
        return 2.0


class Derived(Base):
    rate = 0.25

    def __init__(self) -> None:
        self.rate = 0.125

    def scaled(self) -> float:
        return super().scaled() + super().rate

    def of_class(self) -> float:
        return type(self).rate


class Other(Base):
    pass


@pytest.mark.parametrize(
    ("read", "name", "new"),
    [
        (lambda own: own.scaled(), "scaled", lambda self: 3.0),
        (lambda own: own.scaled(), "rate", 0.75),
    ],
)
def test_what_super_finds_is_seen(
    read: Callable[[Any], Any], name: str, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Derived()
    environment = record(lambda: read(own))
    assert environment.holds()
    monkeypatch.setattr(Base, name, new)
    assert not environment.holds()


def test_what_an_instance_hides_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Derived()
    environment = record(lambda: own.of_class())
    assert environment.holds()
    monkeypatch.setattr(Derived, "rate", 1.0)
    assert not environment.holds()


@pytest.mark.parametrize("reader", [lambda own: isinstance(own, Derived), lambda own: own.scaled()])
def test_an_object_of_another_class_is_seen(reader: Callable[[Any], Any]) -> None:
    own: Any = Derived()
    environment = record(lambda: reader(own))
    own.__class__ = Other
    assert not environment.holds()
    own.__class__ = Derived
    assert environment.holds()


def test_attributes_by_way_of_dicts_are_seen(globals_restored: None) -> None:
    space, name = types.SimpleNamespace(a=1.0, b=2.0), "b"

    class Own:
        a = 1.0

    readers: list[tuple[Callable[[], Any], Callable[[], None]]] = [
        (lambda: vars(space)["a"], lambda: setattr(space, "a", 2.0)),
        (lambda: vars(space)[name], lambda: setattr(space, "b", 3.0)),
        (lambda: getattr(space, f"{name}"), lambda: setattr(space, "b", 4.0)),
        (lambda: Own.__dict__["a"], lambda: setattr(Own, "a", 2.0)),
        (lambda: globals()["SCALE"], lambda: globals().update(SCALE=5.0)),
    ]
    for read, change in readers:
        environment = record(read)
        assert environment.holds()
        change()
        assert not environment.holds()
