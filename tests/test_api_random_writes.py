"""Random functions that write through views of their arguments, in place: as eager, results and arguments alike."""

from __future__ import annotations

import linecache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import fusec


class RandomFunction:
    """The text of one function of two arrays of 6 by 8; ``steps`` are the steps of strided views."""

    def __init__(self, seed: int, steps: tuple[int, ...]) -> None:
        self.rng = Random(seed)
        self.steps = steps
        self.shapes: dict[str, tuple[int, ...]] = {"x": (6, 8), "y": (6, 8)}
        self.lines: list[str] = []
        for _ in range(self.rng.randint(2, 8)):
            self.rng.choices((self.view, self.write, self.compute), (7, 9, 4))[0](self.rng.choice(list(self.shapes)))
        names = self.rng.sample(list(self.shapes), min(len(self.shapes), self.rng.randint(1, 3)))
        returned = [name if name in "xy" and self.rng.random() < 0.3 else f"{name} * 1" for name in names]
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return {', '.join(returned)},"))
        self.text = f"def function(x, y):\n{body}"

    def name(self, made: str, shape: tuple[int, ...]) -> None:
        name = f"v{len(self.shapes)}"
        self.lines.append(f"{name} = {made}")
        self.shapes[name] = shape

    def span(self, extent: int) -> tuple[int, int]:
        low = self.rng.randint(0, extent - 1)
        return low, self.rng.randint(low + 1, extent)

    def view(self, of: str) -> None:
        rows, *rest = self.shapes[of]
        low, high = self.span(rows)
        choice = self.rng.randint(0, 4) if rest else 1
        if choice == 0:
            self.name(f"{of}[{low}]", tuple(rest))
        elif choice == 1:
            self.name(f"{of}[{low}:{high}]", (high - low, *rest))
        elif choice == 2:
            step = self.rng.choice(self.steps)
            self.name(f"{of}[:, ::{step}]", (rows, len(range(rest[0])[::step])))
        elif choice == 3:
            self.name(f"{of}.T", (rest[0], rows))
        else:
            self.name(f"{of}.reshape(-1)", (rows * rest[0],))

    def write(self, to: str) -> None:
        rows, columns = self.shapes[to][0], self.shapes[to][-1]
        low, high = self.span(columns)
        other = self.rng.choice(list(self.shapes))
        same = f"{other} * 2" if self.shapes[other] == self.shapes[to] else f"{other}.sum() * 0.1"
        choices = [
            f"{to}[...] = {same}",
            f"{to} *= 0.5",
            f"{to} += {other}.sum() * 0.01",
            f"{to}[{self.rng.randint(0, rows - 1)}] = {to}[{self.rng.randint(0, rows - 1)}] * 2",
            f"{to}[..., {low}:{high}] = 3 - {to}[..., {low}:{high}]",
            f"{to}[1:] = {to}[:-1] + 0.25",
        ]
        self.lines.append(self.rng.choice(choices))

    def compute(self, of: str) -> None:
        self.name(f"{of} * 1.5 - 0.25", self.shapes[of])


def made(text: str, name: str) -> Any:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(text, name, "exec"), namespace)
    return namespace["function"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_random_writes(library: str, seed: int) -> None:
    text = RandomFunction(seed, (2, 3) if library == "torch" else (2, -1, -2)).text
    function = made(text, f"/random/{library}/{seed}.py")
    fast = fusec.jit(function)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        arrays = [rng.random((6, 8)) for _ in range(2)]
        make = torch.tensor if library == "torch" else np.array
        ours, theirs = ([make(array) for array in arrays] for _ in range(2))
        found, expected = fast(*ours), function(*theirs)
        for one, other in zip((*found, *ours), (*expected, *theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12, err_msg=text)
        same = [[r is a for r in results for a in given] for results, given in ((found, ours), (expected, theirs))]
        assert same[0] == same[1], text
