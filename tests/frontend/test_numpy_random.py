"""Random programs: views and writes that alias, indices, reductions and strides on arrays of any layout."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

sys.path.insert(0, str(Path(__file__).parent))
from numpy_harness import check, copied

Program = Callable[..., Any]
RUNS = 120


def random_slice(r: random.Random, n: int) -> Any:
    if r.random() < 0.2:
        return slice(None)
    if r.random() < 0.2 and n:
        return r.randrange(-n, n)
    ends = [None, *range(-n - 1, n + 2)]
    return slice(r.choice(ends), r.choice(ends), r.choice([None, 1, 1, 2, -1, -2, 3]))


def random_index(r: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(random_slice(r, n) for n in shape[: r.randrange(1, len(shape) + 1)])


def aliasing_program(seed: int) -> Program:
    """Takes views of the argument and of a copy, writes through some, returns them all."""

    def f(x: Any) -> Any:
        r = random.Random(seed)
        arrays = [x * 1, x]
        for _ in range(r.randrange(3, 10)):
            a = r.choice(arrays)
            if a.ndim == 0:
                continue
            kind = r.randrange(8)
            index = random_index(r, a.shape)
            if kind == 0:
                arrays.append(a[(*index, None)] if r.random() < 0.3 else a[(*index, ...)])
            elif kind == 1:
                arrays.append(a.T)
            elif kind == 2:
                arrays.append(a.reshape(-1))
            elif kind == 3:
                a[index] = r.randrange(-9, 9)
            elif kind == 4:
                a[index] = a[index] * 2 + 1
            elif kind == 5:
                a += r.randrange(5)
            elif kind == 6:
                a[a > 3] = r.randrange(5)
            else:
                arrays.append(a.copy())
        return arrays

    return f


def random_array(r: random.Random) -> Any:
    shape = tuple(r.choice([2, 3, 4, 5]) for _ in range(r.choice([1, 2, 3, 4])))
    x = np.arange(int(np.prod(shape)), dtype=r.choice(["i4", "f4", "f8"])).reshape(shape)
    x = x.transpose(r.sample(range(x.ndim), x.ndim))
    return x[:: r.choice([1, -1])] if r.random() < 0.3 else x


def advanced_index(r: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    places = r.choice([(2,), (3,), (2, 3), (1,)])
    items: list[Any] = []
    for n in shape[: r.randrange(1, len(shape) + 1)]:
        count = int(np.prod(places))
        picks = np.array([r.randrange(-n, n) for _ in range(count)]).reshape(places)
        items.append(r.choice([slice(None, None, r.choice([1, 2, -1])), r.randrange(-n, n), picks, picks]))
        if r.random() < 0.15:
            items.append(None)
    return tuple(items)


def gathering_program(r: random.Random, x: Any) -> tuple[Program, tuple[Any, ...]]:
    index = advanced_index(r, x.shape)
    if r.random() < 0.5:
        return lambda x: x[index], (x,)
    arrays = tuple(i for i in index if isinstance(i, np.ndarray))

    def f(x: Any, *given: Any) -> Any:
        left = iter(given)
        return x[tuple(next(left) if isinstance(i, np.ndarray) else i for i in index)]

    return f, (x, *arrays)


def reducing_program(r: random.Random, x: Any) -> tuple[Program, tuple[Any, ...]]:
    name = r.choice(["sum", "max", "mean", "prod", "any", "var", "argmax", "cumsum"])
    axis = r.choice([None, *range(-x.ndim, x.ndim)])
    keep = {} if name == "cumsum" else {"keepdims": r.random() < 0.5}
    return lambda x: getattr(x, name)(axis=axis, **keep), (x,)


def mixing_program(r: random.Random, x: Any) -> tuple[Program, tuple[Any, ...]]:
    order = r.sample(range(x.ndim), x.ndim)

    def f(x: Any) -> Any:
        y = x.transpose(order).copy("C").transpose(np.argsort(order))
        flat = (x.reshape(-1), x.flatten(), x.ravel())
        return x + y, np.exp(x[:1] * 0.01) * y, np.where(x > 3, x, y), np.concatenate([x, y]), np.zeros_like(x), flat

    return f, (x,)


def striding_program(r: random.Random, x: Any) -> tuple[Program, tuple[Any, ...]]:
    rank = r.choice([1, 2, 3])
    strides = [abs(r.choice((*x.strides, 0, x.itemsize, 2 * x.itemsize))) for _ in range(rank)]
    shape = [r.choice([1, 2, 3]) for _ in range(rank)]
    return lambda x: as_strided(x, shape, strides) + 0, (np.ascontiguousarray(x),)


def test_writes_through_views_reach_every_alias() -> None:
    done = 0
    for seed in range(RUNS):
        x = np.arange(24).reshape((4, 6) if seed % 3 else (2, 3, 4))
        x = np.asfortranarray(x) if seed % 5 == 0 else x
        try:
            aliasing_program(seed)(copied(x))
        except IndexError:
            continue
        check(aliasing_program(seed), x)
        done += 1
    assert done > RUNS // 2


@pytest.mark.parametrize("make", [gathering_program, reducing_program, mixing_program, striding_program])
def test_any_layout(make: Callable[[random.Random, Any], tuple[Program, tuple[Any, ...]]]) -> None:
    done = 0
    for seed in range(RUNS):
        r = random.Random(seed)
        f, args = make(r, random_array(r))
        try:
            check(f, *args, ulps=400)
            done += 1
        except (IndexError, ValueError):  # an index or a stride out of bounds, which NumPy refuses or reads as rubbish
            pass
    assert done > RUNS // 2
