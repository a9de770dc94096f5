# SPDX-License-Identifier: Apache-2.0
"""Guards of modules that are left out while nothing has changed: every kind of write is noticed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import fusec  # noqa: E402
from fusec.frontend.guard_watch import GuardWatch, may_be_watched  # noqa: E402
from fusec.frontend.versions import KEEPS_VERSIONS  # noqa: E402

pytestmark = pytest.mark.skipif(not KEEPS_VERSIONS, reason="this Python keeps no versions")
X = torch.linspace(-2.0, 2.0, 6).reshape(2, 3)


class Config:
    def __init__(self) -> None:
        self.scale = 2.0
        self.sizes = (1, 2)


class Base(nn.Module):
    factor: Any = 1.0

    def shifted(self, x: Any) -> Any:
        return x + 1.0


class Inner(Base):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.config = Config()
        self.weight = nn.Parameter(torch.ones(3) * 0.5)
        self.register_buffer("offset", torch.zeros(3))
        self.register_parameter("bias", None)
        self.names = ["a"]

    def forward(self, x: Any) -> Any:
        x = self.shifted(x) * self.by * self.factor * self.config.scale + len(self.names) + len(self.config.sizes)
        x = x * self.weight + self.offset
        return x if self.bias is None else x + self.bias


class Other(Inner):
    def forward(self, x: Any) -> Any:
        return x * self.by - 100.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Inner(2.0), nn.Sequential(nn.Linear(3, 3), nn.GELU()), nn.Dropout(0.0)])
        self.last = nn.LayerNorm(3)
        self.count = 2

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        x = self.last(x) * self.count
        return x - 5.0 if self.training else x


def inner(net: Any) -> Any:
    return net.parts[0]


def swap(table: dict[str, Any], *names: str) -> None:
    """Puts the entries into another order."""
    kept = {name: table.pop(name) for name in names}
    table.update(kept)


def fresh_dict(value: Any, **changed: Any) -> None:
    value.__dict__ = {**value.__dict__, **changed}


def fresh_table(value: Any, table: str, **changed: Any) -> None:
    value.__dict__[table] = {**value.__dict__[table], **changed}


def made(part: Any) -> Any:
    return part.train(False)


WRITES: dict[str, Callable[[Any], object]] = {
    "mode": lambda net: net.train(),
    "the mode of one": lambda net: setattr(net, "training", True),
    "a number": lambda net: setattr(inner(net), "by", 3.0),
    "a number of another kind": lambda net: setattr(inner(net), "by", True),
    "by its dict": lambda net: inner(net).__dict__.update(by=4.0),
    "past its class": lambda net: object.__setattr__(inner(net), "by", 5.0),
    "a number at the root": lambda net: setattr(net, "count", 3),
    "another dict": lambda net: fresh_dict(inner(net), by=6.0),
    "an attribute that hides the class's": lambda net: setattr(inner(net), "factor", 2.0),
    "a method that hides the class's": lambda net: setattr(inner(net), "shifted", lambda x: x - 1.0),
    "a forward of its own": lambda net: setattr(inner(net), "forward", lambda x: x * 9.0),
    "another class": lambda net: setattr(inner(net), "__class__", Other),
    "a part of the configuration": lambda net: setattr(inner(net).config, "scale", 7.0),
    "another configuration": lambda net: setattr(inner(net), "config", type("C", (), {"scale": 0.5, "sizes": ()})()),
    "a tuple of the configuration": lambda net: setattr(inner(net).config, "sizes", (1, 2, 3)),
    "the configuration's dict": lambda net: fresh_dict(inner(net).config, scale=8.0),
    "a list": lambda net: inner(net).names.append("b"),
    "a parameter where none was": lambda net: setattr(inner(net), "bias", nn.Parameter(torch.ones(3))),
    "another parameter": lambda net: setattr(inner(net), "weight", nn.Parameter(torch.full((3,), 4.0))),
    "another buffer": lambda net: setattr(inner(net), "offset", torch.full((3,), 4.0)),
    "another table of parameters": lambda net: fresh_table(
        inner(net), "_parameters", bias=nn.Parameter(torch.full((3,), 2.0))
    ),
    "another table of parts": lambda net: fresh_table(net.parts, "_modules", **{"0": made(Inner(8.0))}),
    "another part": lambda net: net.parts.__setitem__(0, made(Inner(9.0))),
    "another part by its table": lambda net: net.parts._modules.update({"0": made(Inner(10.0))}),
    "one part more": lambda net: net.parts.append(made(Inner(11.0))),
    "one part more in the middle": lambda net: net.parts.insert(1, made(Inner(12.0))),
    "one part less": lambda net: net.parts.__delitem__(1),
    "no parts": lambda net: net.parts._modules.clear(),
    "the order of parts": lambda net: swap(net.parts._modules, "0", "1", "2"),
    "another order of parts": lambda net: swap(net.parts._modules, "0"),
    "another list of parts": lambda net: setattr(net, "parts", nn.ModuleList([made(Inner(13.0))])),
    "another part deeper": lambda net: net.parts[1].__setitem__(1, nn.ReLU()),
    "the library's own setting": lambda net: setattr(net.last, "eps", 0.5),
    "a shape": lambda net: setattr(net.parts[2], "p", 0.25),
    "a hook": lambda net: inner(net).register_forward_hook(lambda module, args, out: out * 2.0),
    "a hook before": lambda net: inner(net).register_forward_pre_hook(lambda module, args: (args[0] * 2.0,)),
    "a hook of a part of the library's": lambda net: net.last.register_forward_hook(lambda module, args, out: out * 2),
}


def on_class(cls: type, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """Writes into a class; what it gives takes that back."""

    def write() -> Callable[[], None]:
        had, before = name in cls.__dict__, cls.__dict__.get(name)
        setattr(cls, name, value)
        return lambda: setattr(cls, name, before) if had else delattr(cls, name)

    return write


CLASS_WRITES = {
    "a number": on_class(Base, "factor", 3.0),
    "a number in between": on_class(Inner, "factor", 4.0),
    "a method": on_class(Base, "shifted", lambda self, x: x * 2.0),
    "a forward": on_class(Inner, "forward", lambda self, x: x * 3.0),
    "a property over an attribute": on_class(Inner, "by", property(lambda self: 5.0)),
    "a property over the mode": on_class(Net, "training", property(lambda self: True, lambda self, value: None)),
    "the library's forward": on_class(nn.GELU, "forward", lambda self, x: x * 4.0),
}


def armed(net: Any) -> Any:
    """The module compiled, and called often enough for its guards to be left out."""
    jitted = fusec.jit(lambda x: net(x), dynamic=False)
    for _ in range(4):
        torch.testing.assert_close(jitted(X), net(X))
    return jitted


def network() -> Any:
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_noticed(name: str) -> None:
    net = network()
    jitted, before = armed(net), net(X)
    WRITES[name](net)
    with torch.random.fork_rng():
        if name == "a shape":  # of a dropout, which does nothing here
            net.parts[2].train()
            torch.manual_seed(1)
        wanted = net(X)
        torch.manual_seed(1)
        if name != "the order of parts":
            assert not wanted.equal(before)
        for _ in range(3):
            torch.manual_seed(1)
            torch.testing.assert_close(jitted(X), wanted)


@pytest.mark.parametrize("name", CLASS_WRITES)
def test_a_write_to_a_class_is_noticed(name: str) -> None:
    net = network()
    jitted, before = armed(net), net(X)
    undo = CLASS_WRITES[name]()
    try:
        assert not net(X).equal(before)
        for _ in range(3):
            torch.testing.assert_close(jitted(X), net(X))
    finally:
        undo()
    for _ in range(3):
        torch.testing.assert_close(jitted(X), before)


def test_there_and_back_again() -> None:
    net = network()
    jitted, before = armed(net), net(X)
    for value in (3.0, 2.0, 4.0, 2.0):
        inner(net).by = value
        torch.testing.assert_close(jitted(X), net(X))
    torch.testing.assert_close(jitted(X), before)


def test_a_write_by_another_thread() -> None:
    net = network()
    jitted = armed(net)
    writer = threading.Thread(target=lambda: setattr(inner(net), "by", 7.0))
    writer.start()
    writer.join()
    torch.testing.assert_close(jitted(X), net(X))


def test_what_is_compiled_keeps_no_part_alive() -> None:
    net = network()
    jitted = armed(net)
    gone = weakref.ref(inner(net))
    net.parts[0] = made(Inner(3.0))
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(jitted(X), net(X))


def test_attributes_that_each_call_changes() -> None:
    net = network()
    jitted = armed(net)
    for k in range(200):
        inner(net).note = k
        torch.testing.assert_close(jitted(X), net(X))
    inner(net).by = 3.0
    torch.testing.assert_close(jitted(X), net(X))


class Held:
    def __init__(self) -> None:
        self.x = 1
        self.table = {"a": 1}


def watching(*values: Any) -> GuardWatch:
    watch = GuardWatch()
    for value in values:
        watch.add(value)
    return watch


def test_nothing_is_told_before_guards_have_passed() -> None:
    value = Held()
    watch = watching(value)
    assert watch.add_table(value, "table")
    assert not watch.add_table(value, "x")
    assert watch.look() is not None
    level = watch.look()
    watch.keep(level)
    assert watch.look() is None
    value.table["a"] = 2
    level = watch.look()
    assert level is not None
    value.x = 2  # while the guards run
    watch.keep(level)
    assert watch.look() is not None


def test_an_object_that_is_no_more_ends_it() -> None:
    kept, gone = Held(), Held()
    watch = watching(kept, gone)
    watch.keep(watch.look())
    assert watch.look() is None
    del gone
    for _ in range(3):
        level = watch.look()
        assert level is not None
        watch.keep(level)


def test_it_looks_seldom_at_what_changes_always() -> None:
    value = Held()
    watch = watching(value)
    noted = 0
    for k in range(2000):
        value.x = k
        level = watch.look()
        assert level is not None
        noted += bool(level)
        watch.keep(level)
    assert noted < 100
    level = []
    for _ in range(3000):
        level = watch.look()
        if level is not None:
            watch.keep(level)
    assert level is None


def test_objects_without_a_dict_are_not_watched() -> None:
    assert may_be_watched(Held())
    assert not may_be_watched([])
    assert not may_be_watched(3)
