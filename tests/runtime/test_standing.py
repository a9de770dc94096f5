"""The plan that a call would run is found without running it, and is the one that it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import fusec
from fusec.runtime.standing import standing_plan


def plan(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    return standing_plan(getattr(jitted, "_fusec", jitted).dispatcher, args, kwargs)


def test_each_signature_has_its_own() -> None:
    f = fusec.jit(lambda x, scale=1.0: torch.relu(x) * scale)
    assert plan(f, torch.ones(3)) is None
    f(torch.ones(3))
    f(torch.ones(3), scale=2.0)
    first, second = f.dispatcher.plans
    assert plan(f, torch.ones(3)) is first
    assert plan(f, torch.ones(3), scale=2.0) is second
    assert plan(f, torch.ones(4)) is None
    assert plan(f, torch.ones(3), scale=3.0) is None
    assert plan(f, torch.ones(3, 3).t()[0]) is None
    assert plan(f, 3) is None


def test_one_whose_reads_have_changed_stands_no_more() -> None:
    holder = {"scale": 2.0}
    f = fusec.jit(lambda x: torch.relu(x) * holder["scale"])
    f(torch.ones(3))
    assert plan(f, torch.ones(3)) is not None
    holder["scale"] = 3.0
    assert plan(f, torch.ones(3)) is None
    with torch.no_grad():
        holder["scale"] = 2.0
        assert plan(f, torch.ones(3)) is None, "another mode"


def test_ranges_of_extents() -> None:
    f = fusec.jit(lambda x, y: torch.relu(x) + y, dynamic=True)
    for n in (3, 5):
        f(torch.ones(n, 4), torch.ones(n, 4))
    symbolic = f.dispatcher.plans[-1]
    assert symbolic.opening is not None
    assert plan(f, torch.ones(7, 4), torch.ones(7, 4)) is symbolic
    for other in (
        (torch.ones(7, 4), torch.ones(6, 4)),
        (torch.ones(7, 5), torch.ones(7, 5)),
        (torch.ones(1, 4), torch.ones(1, 4)),
        (torch.ones(1000, 4), torch.ones(1000, 4)),
        (torch.ones(4, 7).t(), torch.ones(7, 4)),
        (torch.ones(7, 4, dtype=torch.float64), torch.ones(7, 4, dtype=torch.float64)),
    ):
        assert plan(f, *other) is None


def test_ranges_of_integers() -> None:
    f = fusec.jit(lambda x, parts: x[parts[0]] * 2)
    for n in range(3, 9):
        f(np.ones((20, 3)), (n, "a"))
    opened = [p for p in f.dispatcher.plans if p.structure is not None]
    assert opened
    assert plan(f, np.ones((20, 3)), (12, "a")) in opened
    assert plan(f, np.ones((20, 3)), (12, "b")) is None
    assert plan(f, np.ones((20, 3)), (1 << 40, "a")) is None
    assert plan(f, np.ones((20, 3)), [12, "a"]) is None
    assert plan(f, np.ones((20, 3)), ("a", 12)) is None


def test_counters_are_looked_at_and_not_moved() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return x * self.steps

    module = Counter()
    f = fusec.jit(module)
    for _ in range(6):
        f(torch.ones(3))
    assert plan(f, torch.ones(3)) is not None
    assert module.steps == 6
