"""Odd programs, written by hand: source that makes a function, and calls of it, as written and through ``fusec.jit``.

    python -m tests.campaigns.odd_programs [NAME ...] [--way compile]

The programs stand in ``odd/*.txt``. Each begins with ``### its name``; lines that begin with ``>`` are its steps, each
a statement or an expression. A step with N in it is made at several extents, and several times at the first. The
function is ``f``, unless a line ``> jit: NAME ...`` says which names are jitted. What a step gives, raises, prints and
warns of is compared, and all that the program's names lead to: values with the signs of zeros, types, layouts, which
arrays share memory and which objects are one, flags, gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fusec
from fusec.notices import FusecWarning, InternalErrorWarning

FOLDER = Path(__file__).with_name("odd")
EXTENTS = (3, 3, 3, 5, 6, 5)
"""What N is in turn."""

KNOWN: dict[str, str] = {}
"""Programs that differ, each with why that stays."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, type, np.generic, torch.dtype, torch.device, torch.Size)

HEAD = """
import collections, contextlib, copy, dataclasses, functools, gc, itertools, math, operator, os, pickle
import threading, typing, weakref
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def r(*shape, dtype=torch.float32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (x * 4).to(dtype) if not dtype.is_floating_point and not dtype.is_complex else x.to(dtype)


def a(*shape, dtype=np.float64, seed=0):
    x = np.random.default_rng(seed).normal(size=shape)
    return (x * 4).astype(dtype) if np.dtype(dtype).kind in "iub" else x.astype(dtype)


torch.manual_seed(0)
"""


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    steps: tuple[str, ...]
    jitted: tuple[str, ...]


def programs(folder: Path = FOLDER) -> Iterator[Program]:
    for path in sorted(folder.glob("*.txt")):
        for block in re.split(r"(?m)^### ", path.read_text())[1:]:
            name, _, text = block.partition("\n")
            lines = text.rstrip().split("\n")
            steps = [line[2:] for line in lines if line.startswith("> ")]
            source = "\n".join("" if line.startswith("> ") else line for line in lines)
            jitted = ("f",)
            if steps and steps[0].startswith("jit: "):
                jitted = tuple(steps.pop(0)[5:].split())
            yield Program(f"{path.stem}: {name.strip()}", source, tuple(_repeated(steps)), jitted)


def _repeated(steps: list[str]) -> Iterator[str]:
    for step in steps:
        if re.search(r"\bN\b", step):
            yield from (re.sub(r"\bN\b", str(n), step) for n in EXTENTS)
        else:
            yield step


class World:
    """The names of a program; ``through`` is what each of the jitted names goes through."""

    def __init__(self, program: Program, through: Callable[[Any], Any]) -> None:
        self.space: dict[str, Any] = {"__name__": "odd"}
        sys.modules["odd"] = module = types.ModuleType("odd")  # where pickle and dataclasses look for what it defines
        self.space = module.__dict__
        self.module = module
        exec(compile(HEAD, "<head>", "exec"), self.space)
        self.own = set(self.space)
        exec(compile(program.source, f"<{program.name}>", "exec"), self.space)
        self.jitted = {}
        for name in program.jitted:
            self.jitted[name] = self.space[name] = through(self.space[name])

    def do(self, step: str) -> tuple[Any, BaseException | None, str, set[str]]:
        """What a step gives, raises, prints, and the names of the warnings that it gives."""
        sys.modules["odd"] = self.module
        out = io.StringIO()
        value, error = None, None
        with warnings.catch_warnings(record=True) as told, contextlib.redirect_stdout(out):
            warnings.simplefilter("always")
            warnings.simplefilter("error", InternalErrorWarning)
            try:
                try:
                    code = compile(step, "<step>", "eval")
                except SyntaxError:
                    exec(compile(step, "<step>", "exec"), self.space)
                else:
                    value = eval(code, self.space)
            except BaseException as found:
                error = found
        names = {w.category.__name__ for w in told if not issubclass(w.category, FusecWarning)}
        return value, error, out.getvalue(), names - {"RuntimeWarning", "DeprecationWarning", "FutureWarning"}

    def state(self) -> dict[str, Any]:
        return {
            k: v for k, v in self.space.items() if k not in self.own and k not in self.jitted and not k.startswith("__")
        }


class Reader:
    """Turns a value to lines that are alike in both worlds where the values are, and to the arrays in it."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.lines: list[tuple[str, object]] = []
        self.arrays: list[tuple[str, Any]] = []
        self.kept: list[Any] = []
        self.numpy: list[Any] = []

    def read(self, value: Any, path: str) -> None:
        note = self.lines.append
        if isinstance(value, np.floating | np.complexfloating):
            note((path, type(value).__qualname__))
            self._numbers(np.array(value), path)
            return
        if isinstance(value, PLAIN) or value is NotImplemented or value is ...:
            note((path, f"{type(value).__qualname__} {value!r}"))
            return
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.ModuleType | types.MethodType):
            if isinstance(value, types.FunctionType) and value.__module__ == "odd" and id(value) not in self.seen:
                self.seen[id(value)] = len(self.seen)
                for k, cell in enumerate(value.__closure__ or ()):
                    with contextlib.suppress(ValueError):
                        self.read(cell.cell_contents, f"{path}.closure{k}")
                self.read(value.__defaults__, f"{path}.defaults")
                self.read(dict(value.__dict__), f"{path}.attributes")
            return
        if id(value) in self.seen:
            note((path, f"the object {self.seen[id(value)]}"))
            return
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        note((path, type(value).__qualname__))
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, np.ndarray):
            self._array(value, path)
        elif isinstance(value, Mapping):
            note((path, [repr(k) for k in value] if "hooks" not in path else len(value)))
            for k in list(value) if "hooks" not in path else ():
                self.read(dict.__getitem__(value, k) if isinstance(value, dict) else value[k], f"{path}[{k!r}]")
        elif isinstance(value, list | tuple):
            note((path, len(value)))
            for k, part in enumerate(value):
                self.read(part, f"{path}[{k}]")
        elif isinstance(value, set | frozenset):
            note((path, sorted(map(repr, value))))
        made = getattr(value, "__dict__", None)
        if isinstance(value, torch.utils.hooks.RemovableHandle):
            return
        if isinstance(made, dict) and not isinstance(value, torch.Tensor | np.ndarray):
            ours = {k: v for k, v in made.items() if not str(k).startswith(("_fusec", "__"))}
            note((path, sorted(map(str, ours))))
            for k, part in ours.items():
                self.read(part, f"{path}.{k}")

    def _tensor(self, x: torch.Tensor, path: str) -> None:
        self.lines.append((path, (x.dtype, tuple(x.shape), x.requires_grad, x.is_leaf, x.is_inference(), x.layout)))
        self.lines.append((path, (x.is_conj(), x.is_neg(), x.is_contiguous())))
        if x.layout is torch.strided and not x.is_nested and x.device.type != "meta":
            strides = tuple(s if n > 1 else 0 for s, n in zip(x.stride(), x.shape)) if x.numel() else ()
            pointer = x.untyped_storage().data_ptr()
            first = self.storages.setdefault(pointer, len(self.storages)) if pointer else None
            self.lines.append((path, ("strides", strides, "storage", first)))
            self.arrays.append((path, x))
        if x.is_leaf and x.grad is not None:
            self.read(x.grad, f"{path}.grad")
        if x.__dict__:
            self.read(dict(x.__dict__), f"{path}.attributes")

    def _array(self, x: Any, path: str) -> None:
        strides = tuple(s if n > 1 else 0 for s, n in zip(x.strides, x.shape)) if x.size else ()
        flags = (x.flags.writeable, x.flags.c_contiguous, x.flags.f_contiguous)
        shared = [k for k, other in enumerate(self.numpy) if np.may_share_memory(x, other)]
        self.lines.append((path, (x.dtype, x.shape, strides, flags, shared)))
        self.numpy.append(x)
        if x.dtype.hasobject:
            self.read(x.tolist(), path)
        elif x.dtype.kind in "biufc":
            self._numbers(np.array(x, dtype=x.dtype.newbyteorder("="), copy=True, subok=False), path)
        else:
            self.lines.append((path, x.tolist()))

    def _numbers(self, x: Any, path: str) -> None:
        wide = {"g": np.float64, "G": np.complex128}.get(x.dtype.char, x.dtype)
        self.arrays.append((path, torch.from_numpy(x.astype(wide))))


def differs(ours: Any, theirs: Any) -> str:
    """What is otherwise in two values; empty where nothing is."""
    a, b = Reader(), Reader()
    a.read(ours, ""), b.read(theirs, "")
    for left, right in zip(a.lines, b.lines):
        if left != right:
            return f"{left[0]}: {left[1]}, as written {right[1]}" + (f" at {right[0]}" if right[0] != left[0] else "")
    if len(a.lines) != len(b.lines):
        return f"{len(a.lines)} facts, as written {len(b.lines)}"
    for (path, x), (_, y) in zip(a.arrays, b.arrays):
        with torch._C.DisableTorchFunctionSubclass():
            said = numbers_differ(x.detach().as_subclass(torch.Tensor), y.detach().as_subclass(torch.Tensor))
        if said:
            return f"{path}: {said}"
    return ""


EPSILONS = {torch.float32: 4e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def numbers_differ(x: torch.Tensor, y: torch.Tensor) -> str:
    if x.is_complex():
        return numbers_differ(torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj()))
    if not x.is_floating_point():
        return "" if torch.equal(x, y) else f"{_short(x)}, as written {_short(y)}"
    nan, inf = x.isnan(), x.isinf()
    if not torch.equal(nan, y.isnan()):
        return f"NaN: {_short(x)}, as written {_short(y)}"
    if not torch.equal(inf, y.isinf()) or not torch.equal(x[inf], y[inf]):
        return f"infinities: {_short(x)}, as written {_short(y)}"
    zeros = (x == 0) & (y == 0)
    if not torch.equal(x[zeros].signbit(), y[zeros].signbit()):
        return f"signs of zeros: {_short(x)}, as written {_short(y)}"
    left, right = x[~nan & ~inf].double(), y[~nan & ~inf].double()
    if left.numel():
        size = float(right.abs().max())
        worst = float((left - right).abs().max())
        if worst > EPSILONS.get(x.dtype, 0.1) * size:
            return f"off by {worst:.3g} of {size:.3g}: {_short(x)}, as written {_short(y)}"
    return ""


def _short(x: torch.Tensor) -> str:
    return str(x.flatten()[:8].tolist()) + ("" if x.numel() <= 8 else f" of {tuple(x.shape)}")


def compared(program: Program, through: Callable[[Any], Any] | None = None) -> str:
    """What is not as written; empty where all is. It may say besides, after ``is never compiled``, why no call is."""
    fast, slow = World(program, through or fusec.jit), World(program, lambda made: made)
    told: tuple[set[str], set[str]] = set(), set()
    for k, step in enumerate(program.steps):
        random = torch.random.get_rng_state(), np.random.get_state()
        theirs = slow.do(step)
        after = torch.random.get_rng_state(), np.random.get_state()
        torch.random.set_rng_state(random[0]), np.random.set_state(random[1])
        ours = fast.do(step)
        where = f"step {k} ({step}): "
        if not torch.equal(torch.random.get_rng_state(), after[0]):
            torch.random.set_rng_state(after[0])
            return f"{where}PyTorch's random numbers have another state"
        if not np.array_equal(np.random.get_state()[1], after[1][1]) or np.random.get_state()[2] != after[1][2]:
            return f"{where}NumPy's random numbers have another state"
        if type(ours[1]).__qualname__ != type(theirs[1]).__qualname__:
            return f"{where}raises {ours[1]!r:.300}, as written {theirs[1]!r:.300}"
        if str(ours[1]) != str(theirs[1]):
            return f"{where}says {str(ours[1])!r:.300}, as written {str(theirs[1])!r:.300}"
        if ours[2] != theirs[2]:
            return f"{where}prints {ours[2]!r}, as written {theirs[2]!r}"
        told[0].update(ours[3]), told[1].update(theirs[3])
        said = differs((ours[0], fast.state()), (theirs[0], slow.state()))
        if said:
            return where + said
    if told[0] != told[1]:
        return f"warnings are {told[0]}, as written {told[1]}"
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.odd_programs")
    parser.add_argument("names", nargs="*", help="parts of names; all programs without any")
    parser.add_argument("--way", choices=("jit", "eager", "compile"), default="jit")
    given = parser.parse_args(arguments)
    ways: dict[str, Callable[[Any], Any]] = {
        "jit": fusec.jit,
        "eager": lambda made: made,
        "compile": lambda made: torch.compile(made, backend="fusec"),
    }
    findings = 0
    for program in programs():
        if given.names and not any(name in program.name for name in given.names):
            continue
        print(program.name, end=" ... ", file=sys.stderr, flush=True)
        try:
            said = compared(program, ways[given.way])
        except Exception:
            said = traceback.format_exc()
        known = KNOWN.get(program.name, "") if given.way == "jit" else ""
        if known and not said:
            said = f"known, and not seen any more ({known})"
        elif known:
            continue
        if said:
            findings += 1
            print(f"\n### {program.name}\n{said}", flush=True)
    print(f"{findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
