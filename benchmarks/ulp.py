"""Greatest errors of elementary functions, in units in the last place, and their cost, beside NumPy's and torch's.

``python -m benchmarks.ulp --out benchmarks/results/ulp.md`` measures all. 16-bit types are tried at every number, f32
at every one too with ``--exhaustive`` (minutes a function), else like f64 at random bit patterns, in intervals where
the function has its shape, and near the multiples of pi/2. References have the next wider type: f64 for f32 and the
16-bit types, x87's 80 bits or mpmath for f64.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import fusec

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
_DIGITS = {"f16": (11, -24), "bf16": (8, -133), "f32": (24, -149), "f64": (53, -1074)}
"""Binary digits, and the exponent of the smallest number."""

BLOCK = 1 << 16
TIMED = 1 << 14
"""Elements of the array that is timed: it lies in the second-level cache, and a call's own time hardly counts."""


@dataclass(frozen=True)
class Function:
    """A function of one or two numbers; ``within``: where most samples are taken, besides random bit patterns.

    numpy: NumPy's name of it, None where it has none. timed: arguments of the timed calls.
    """

    name: str
    numpy: str | None
    within: tuple[tuple[float, float], ...]
    timed: tuple[float, float] = (-3.0, 3.0)
    arity: int = 1

    def torch(self, *args: torch.Tensor) -> torch.Tensor:
        return getattr(torch, self.name)(*args)  # type: ignore[no-any-return]


_WIDE, _UNIT, _PERIODS = ((-1.0, 1.0), (-20.0, 20.0)), ((-1.0, 1.0),), ((-10.0, 10.0), (-1e5, 1e5), (-1e12, 1e12))
_ABOVE = ((0.5, 2.0), (0.0, 100.0))

FUNCTIONS = (
    Function("exp", "exp", ((-1.0, 1.0), (-104.0, 89.0), (-746.0, 710.0))),
    Function("exp2", "exp2", ((-1.0, 1.0), (-150.0, 128.0), (-1075.0, 1024.0))),
    Function("expm1", "expm1", ((-1.0, 1.0), (-40.0, 89.0), (-40.0, 710.0))),
    Function("sqrt", "sqrt", _ABOVE, (0.1, 10.0)),
    Function("log", "log", _ABOVE, (0.1, 10.0)),
    Function("log2", "log2", _ABOVE, (0.1, 10.0)),
    Function("log10", "log10", _ABOVE, (0.1, 10.0)),
    Function("log1p", "log1p", ((-1.0, 1.0), (-0.1, 0.1), (0.0, 100.0)), (-0.9, 10.0)),
    Function("sin", "sin", _PERIODS),
    Function("cos", "cos", _PERIODS),
    Function("tan", "tan", _PERIODS),
    Function("asin", "arcsin", _UNIT, (-1.0, 1.0)),
    Function("acos", "arccos", _UNIT, (-1.0, 1.0)),
    Function("atan", "arctan", _WIDE),
    Function("sinh", "sinh", ((-2.0, 2.0), (-89.5, 89.5), (-710.5, 710.5))),
    Function("cosh", "cosh", ((-2.0, 2.0), (-89.5, 89.5), (-710.5, 710.5))),
    Function("tanh", "tanh", _WIDE),
    Function("asinh", "arcsinh", _WIDE),
    Function("acosh", "arccosh", ((1.0, 1.1), (1.0, 100.0)), (1.0, 10.0)),
    Function("atanh", "arctanh", _UNIT, (-1.0, 1.0)),
    Function("erf", None, ((-1.0, 1.0), (-6.0, 6.0))),
    Function("erfc", None, ((-1.0, 1.0), (-6.0, 10.1), (0.0, 27.0))),
    Function("atan2", "arctan2", ((-1.0, 1.0), (-100.0, 100.0)), arity=2),
    Function("hypot", "hypot", ((-1.0, 1.0), (-100.0, 100.0)), arity=2),
    Function("pow", "power", ((0.0, 2.0), (0.0, 100.0)), (0.1, 3.0), arity=2),
    Function("fmod", "fmod", ((-1.0, 1.0), (-100.0, 100.0)), arity=2),
)


def exact_of(function: Function, dtype: str) -> Exact:
    """The function in a wider type than ``dtype``."""
    wide = np.longdouble if dtype == "f64" else np.float64
    if function.numpy is not None:
        ufunc = getattr(np, function.numpy)
        return lambda *args: ufunc(*(a.astype(wide) for a in args))
    if dtype == "f64":
        import mpmath

        mp = getattr(mpmath, function.name)
        return lambda x: np.array([_long(mp, float(v)) for v in x], np.longdouble)
    return np.vectorize(getattr(math, function.name), otypes=[np.float64])


def _long(f: Callable[[float], Any], x: float) -> np.longdouble:
    import mpmath

    with mpmath.workprec(100):
        value = f(x if math.isnan(x) else max(-30.0, min(x, 30.0)))
        high = float(value)
        return np.longdouble(high) + np.longdouble(float(value - high) if math.isfinite(high) else 0.0)


def errors(result: Array, exact: Array, dtype: str) -> Array:
    """The distance of each result from the exact one in ulps of that; infinite where only one of them is finite."""
    digits, least = _DIGITS[dtype]
    bound = np.ldexp(exact.dtype.type(2.0 - 2.0 ** (-digits)), {"f16": 15, "f64": 1023}.get(dtype, 127))
    exact = np.where(np.abs(exact) >= bound, np.copysign(np.inf, exact), exact)
    result = result.astype(exact.dtype)
    finite = np.isfinite(exact)
    _, exponent = np.frexp(np.where(finite & (exact != 0), exact, 1))
    unit = np.ldexp(exact.dtype.type(1), np.maximum(np.where(exact == 0, least, exponent - digits), least))
    with np.errstate(all="ignore"):
        off = np.abs(result - exact) / unit
    same = (result == exact) | (np.isnan(result) & np.isnan(exact))
    return np.where(finite & np.isfinite(result), off, np.where(same, 0.0, np.inf)).astype(np.float64)


# samples


def _all_16(dtype: str) -> Iterator[torch.Tensor]:
    yield torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(TYPES[dtype])


def _all_32() -> Iterator[torch.Tensor]:
    for start in range(-(1 << 31), 1 << 31, BLOCK):
        yield torch.arange(start, start + BLOCK, dtype=torch.int64).to(torch.int32).view(torch.float32)


def _random(function: Function, dtype: str, blocks: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
    kind = {"f64": np.float64, "f32": np.float32}.get(dtype, np.float32)
    integer = {8: np.uint64, 4: np.uint32}[np.dtype(kind).itemsize]
    for _ in range(blocks):
        bits = rng.integers(0, np.iinfo(integer).max, BLOCK, dtype=integer, endpoint=True).view(kind)
        yield torch.from_numpy(bits).to(TYPES[dtype])
        for low, high in function.within:
            yield torch.from_numpy(rng.uniform(low, high, BLOCK).astype(kind)).to(TYPES[dtype])
    near = np.round(rng.normal(size=BLOCK) * 1e5) * (np.pi / 2)
    yield torch.from_numpy(near.astype(kind)).to(TYPES[dtype])


def samples(function: Function, dtype: str, blocks: int, exhaustive: bool) -> Iterator[tuple[torch.Tensor, ...]]:
    """Arguments, a block at a time."""
    rng = np.random.default_rng(20)
    if function.arity == 2:
        pairs = zip(_random(function, dtype, blocks, rng), _random(function, dtype, blocks, rng), strict=True)
        yield from pairs
    elif dtype in ("f16", "bf16"):
        yield from ((x,) for x in _all_16(dtype))
    elif dtype == "f32" and exhaustive:
        yield from ((x,) for x in _all_32())
    else:
        yield from ((x,) for x in _random(function, dtype, blocks, rng))


# measuring


@dataclass
class Worst:
    """The greatest error so far, where it was, and whether an infinity or a NaN was wrong."""

    ulps: float = 0.0
    at: tuple[float, ...] = ()
    wrong: tuple[float, ...] = ()

    def add(self, off: Array, args: Sequence[Array]) -> None:
        special = ~np.isfinite(off)
        if special.any() and not self.wrong:
            first = int(special.argmax())
            self.wrong = tuple(float(a[first]) for a in args)
        off = np.where(special, 0.0, off)
        worst = int(off.argmax())
        if off[worst] > self.ulps:
            self.ulps, self.at = float(off[worst]), tuple(float(a[worst]) for a in args)

    @property
    def text(self) -> str:
        told = f"{self.ulps:.2f}" if self.ulps < 1000 else f"{self.ulps:.1e}"
        return told + (" †" if self.wrong else "")


@dataclass(frozen=True)
class Row:
    function: str
    dtype: str
    worst: dict[str, Worst]
    cost: dict[str, float]


def peers(function: Function, dtype: str) -> dict[str, Callable[..., torch.Tensor]]:
    """fusec's function, NumPy's and torch's, on tensors."""
    found: dict[str, Callable[..., torch.Tensor]] = {"fusec": fusec.jit(function.torch, fallback="error")}
    if function.numpy is not None and dtype != "bf16":
        ufunc = getattr(np, function.numpy)
        found["NumPy"] = lambda *args: torch.from_numpy(ufunc(*(a.numpy() for a in args)))
    found["torch"] = function.torch
    return found


def measure(function: Function, dtype: str, blocks: int, exhaustive: bool, timed: bool) -> Row:
    exact = exact_of(function, dtype)
    every = peers(function, dtype)
    worst = {name: Worst() for name in every}
    slow = dtype == "f64" and function.numpy is None
    for args in samples(function, dtype, 1 if slow else blocks, exhaustive):
        if slow:
            args = tuple(a[:4096].clone() for a in args)
        arrays = [a.to(torch.float32).numpy() if dtype in ("f16", "bf16") else a.numpy() for a in args]
        with np.errstate(all="ignore"):
            reference = np.asarray(exact(*arrays))
            for name, f in every.items():
                result = f(*args)
                wide = result.to(torch.float64) if dtype != "f64" else result
                worst[name].add(errors(wide.numpy(), reference, dtype), arrays)
    return Row(function.name, dtype, worst, cost(function, dtype, every) if timed else {})


def cost(function: Function, dtype: str, every: dict[str, Callable[..., torch.Tensor]]) -> dict[str, float]:
    """Nanoseconds an element of each, the least of many calls, on numbers that lie in a cache."""
    rng = np.random.default_rng(1)
    args = [torch.from_numpy(rng.uniform(*function.timed, TIMED)).to(TYPES[dtype]) for _ in range(function.arity)]
    least = dict.fromkeys(every, math.inf)
    for _ in range(15):
        for name, f in every.items():
            start = time.perf_counter()
            for _ in range(8):
                f(*args)
            least[name] = min(least[name], (time.perf_counter() - start) / 8)
    return {name: seconds / TIMED * 1e9 for name, seconds in least.items()}


# the table


def table(rows: Sequence[Row], exhaustive: bool) -> str:
    """Markdown."""
    names = ("fusec", "NumPy", "torch")
    f32 = "all numbers of f32," if exhaustive else "samples of f32,"
    lines = [
        "# Errors and cost of elementary functions",
        "",
        f"Greatest error in ulp over all numbers of f16 and bf16 (pairs: samples), {f32} samples of f64; nanoseconds",
        f"an element of {TIMED} in one thread. † an infinity or a NaN where the reference has none, or the other way.",
        f"`python -m benchmarks.ulp`, {_machine()}, torch {torch.__version__}, NumPy {np.__version__}.",
        "",
        "| function | type | "
        + " | ".join(f"{n}: ulp" for n in names)
        + " | "
        + " | ".join(f"{n}: ns" for n in names)
        + " |",
        "|---|---|" + "---:|" * 6,
    ]
    for row in rows:
        worst = [row.worst[n].text if n in row.worst else "–" for n in names]
        cost_ = [f"{row.cost[n]:.2f}" if n in row.cost else "–" for n in names]
        lines.append(f"| {row.function} | {row.dtype} | {' | '.join([*worst, *cost_])} |")
    return "\n".join(lines) + "\n"


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulp", description=__doc__)
    parser.add_argument("--only", default="", help="functions, separated by commas")
    parser.add_argument("--dtypes", default=",".join(TYPES))
    parser.add_argument("--blocks", type=int, default=8, help=f"blocks of {BLOCK} samples from each kind of sample")
    parser.add_argument("--exhaustive", action="store_true", help="every number of f32")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    only = set(given.only.split(",")) - {""}
    rows = []
    for function in FUNCTIONS:
        for dtype in given.dtypes.split(","):
            if only and function.name not in only:
                continue
            row = measure(function, dtype, given.blocks, given.exhaustive, not given.no_times)
            rows.append(row)
            told = "  ".join(
                f"{n} {w.text} at {w.at}" + (f" wrong at {w.wrong}" if w.wrong else "") for n, w in row.worst.items()
            )
            costs = " ".join(f"{n} {c:.2f}" for n, c in row.cost.items())
            print(f"{function.name} {dtype}: {told}  ns: {costs}", flush=True)
    if given.out is not None:
        given.out.write_text(table(rows, given.exhaustive))


if __name__ == "__main__":
    main(sys.argv[1:])
