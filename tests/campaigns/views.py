"""Random torch programs of views and writes, as written and jitted: values, layouts, aliases, arguments, errors.

    python -m tests.campaigns.views --count 1000 --seed 0

Each program is run on numbers for which it is right, and on such for which what it looks up raises. A program that
differs is cut down to the lines that it takes, and printed.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

import fusec
from tests.campaigns.batches import Campaign, Finding, command
from tests.campaigns.lines import function_of, text_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from aliasing import describe, leaves, outcome  # found beside this folder

Environment = dict[str, Any]

ARGUMENTS = ("x", "y", "z", "i", "n")
"""Two matrices, a row, an index and whole numbers."""

UNTOUCHED = "is as before the call that raises"

KNOWN: tuple[tuple[str, str], ...] = (
    (
        UNTOUCHED,
        "an argument that is written both before and after a library call that raises keeps what it held: what it held "
        "in between is no array of the program's",
    ),
)
"""Differences that are known: the line that makes one, or what is said of it, and why it stays."""


@dataclass(frozen=True)
class Program:
    """The lines of a function of :data:`ARGUMENTS`. layout: which of the matrices lie otherwise than row after row."""

    lines: tuple[str, ...]
    layout: int
    seed: int

    @property
    def text(self) -> str:
        return text_of(ARGUMENTS, self.lines)

    @property
    def function(self) -> Callable[..., Any]:
        return function_of(self.text, f"<views {self.seed}>", {"torch": torch, "F": torch.nn.functional})

    def arguments(self, *, wrong: bool = False, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """The same at each call. ``wrong``: the index is out of range, and one of the numbers is 0."""
        generator = torch.Generator().manual_seed(self.seed)
        x, y = (torch.randn(3, 4, generator=generator).to(dtype) for _ in range(2))
        if self.layout & 1:
            x = x.t().contiguous().t()
        if self.layout & 2:
            y = torch.cat([y, y], 1)[:, ::2] if self.layout & 4 else torch.cat([y, y])[1:4]
        z = torch.randn(4, generator=generator).to(dtype)
        i = torch.tensor([7, 0]) if wrong else torch.randint(-3, 3, (2,), generator=generator)
        n = torch.tensor([2, 0, 1]) if wrong else torch.tensor([2, 3, 1])
        return [x, y, z, i, n]


class Writer:
    """Writes one program, a line at a time, and runs each to see that it may stand there."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        layout = self.random.choice((0, 0, 1, 2, 3, 6))
        self.program = Program((), layout, seed)
        self.values: Environment = dict(zip(ARGUMENTS, self.program.arguments(), strict=True))
        self.lines: list[str] = []
        kinds = (self.view, self.make, self.write, self.look_up)
        wanted = self.random.randint(2, 9)
        for _ in range(60):
            if len(self.lines) >= wanted:
                break
            self.random.choices(kinds, (8, 5, 8, 2))[0]()
        self.lines.append(f"return {self.result()}")

    def write_program(self) -> Program:
        return Program(tuple(self.lines), self.program.layout, self.program.seed)

    # Lines

    def attempt(self, line: str) -> bool:
        """Appends the line if it runs on what the others have made."""
        before = {name: value.clone() for name, value in self.values.items()}
        scope = {"torch": torch, "F": torch.nn.functional, **self.values}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, scope)
            made = {k: v for k, v in scope.items() if isinstance(v, torch.Tensor)}
        except Exception:
            made = {}
        if not made or any(v.numel() > 400 or not _is_plain(v) for v in made.values()):
            for name, value in self.values.items():
                if value.shape == before[name].shape and not torch.equal(value, before[name]):
                    _restore(value, before[name])
            return False
        self.values.update(made)
        self.lines.append(line)
        return True

    def pick(self, kind: str = "float") -> str:
        fits = {"float": torch.Tensor.is_floating_point, "any": lambda v: True}[kind]
        names = [name for name, value in self.values.items() if fits(value)]
        return self.random.choice(names[-5:] if self.random.random() < 0.6 else names)

    def new(self) -> str:
        return f"v{len(self.values) - len(ARGUMENTS)}"

    def axis(self, name: str) -> int:
        return self.random.randint(-1, max(self.values[name].dim() - 1, 0))

    def subscript(self, name: str) -> str:
        parts = []
        for extent in self.values[name].shape[: self.random.randint(1, 3)]:
            low = self.random.randint(0, max(extent - 1, 0))
            high = self.random.randint(low, extent)
            parts.append(self.random.choice((f"{low}", "-1", ":", f"{low}:{high}", f"{low}:", "::2", "None", "...")))
        return ", ".join(p for k, p in enumerate(parts) if p != "..." or "..." not in parts[:k])

    def view(self) -> None:
        name = self.pick("any" if self.random.random() < 0.1 else "float")
        axis, other, size = self.axis(name), self.axis(name), self.random.randint(1, 3)
        value = self.values[name]
        expressions = (
            f"{name}[{self.subscript(name)}]",
            f"{name}[{self.subscript(name)}]",
            f"{name}.t()",
            f"{name}.transpose({axis}, {other})",
            f"{name}.movedim({axis}, {other})",
            f"{name}.reshape(-1)",
            f"{name}.view(-1)",
            f"{name}.reshape({size}, -1)",
            f"{name}.view(-1, {size})",
            f"{name}.flatten()",
            f"{name}.unsqueeze({axis})",
            f"{name}.squeeze()",
            f"{name}.expand({size}, {', '.join('-1' for _ in value.shape)})",
            f"{name}.narrow({axis}, {size - 1}, {size})",
            f"{name}.select({axis}, {size - 1})",
            f"{name}.diagonal({self.random.randint(-1, 1)})",
            f"{name}.unfold({axis}, {size}, {self.random.randint(1, 2)})",
            f"{name}.split({size}, {axis})[-1]",
            f"{name}.chunk({size}, {axis})[0]",
            f"{name}.tensor_split({size}, {axis})[-1]",
            f"{name}.unbind({axis})[-1]",
            f"{name}.as_strided(({size}, 2), (1, {size}))",
            f"{name}.detach()",
            f"{name}.view_as({name})",
            f"{name}.contiguous()",
            f"{name}.float()",
            f"{name}.to({name}.dtype)",
            f"torch.atleast_2d({name})",
            f"torch.broadcast_tensors({name}, {self.pick()})[0]",
            f"F.dropout({name}, 0.5, False)",
        )
        self.attempt(f"{self.new()} = {self.random.choice(expressions)}")

    def make(self) -> None:
        a, b = self.pick(), self.pick()
        axis, size = self.axis(a), self.random.randint(0, 2)
        shape = tuple(self.values[a].shape)
        expressions = (
            f"{a} + 1",
            f"{a} * {b}",
            f"{a} - {b}",
            f"{a} * 1",
            f"{a}.clone()",
            f"torch.cat([{a}, {b}], {axis})",
            f"torch.cat([{a}], {axis})",
            f"torch.stack([{a}, {b}], {axis})",
            f"torch.stack([{a}, {a}])[{self.random.randint(0, 1)}]",
            f"torch.cat([{a}, {b}])[:{size + 1}]",
            f"torch.cat([{a}, {b}], {axis}).split({size + 1}, {axis})[0]",
            f"torch.where({a} > 0, {a}, {b})",
            f"torch.where(torch.ones({shape}, dtype=torch.bool), {a}, {b})",
            f"{a}.repeat({', '.join('1' for _ in shape)})",
            f"{a}.repeat_interleave({size + 1}, 0)",
            f"{a}.roll({size}, {axis})",
            f"{a}.flip({axis})",
            f"F.pad({a}, (0, {size}))",
            f"F.pad({a}, ({size}, 0))[..., {size}:]",
            f"{a}.sum({axis}, keepdim={self.random.random() < 0.5})",
            f"{a}.amax({axis})",
            f"torch.nansum({a}, dim=())",
            f"{a}.mean(dim=())",
            f"{a}.cumsum({axis})",
            f"{a}.sort({axis}).values",
            f"{a}.softmax({axis})",
            f"{a}.tril()",
            f"{a}.to(torch.float64).float()",
            f"{a}.abs().neg()",
            f"torch.zeros({shape})",
            f"torch.zeros_like({a})",
            f"torch.full({shape}, 2.0)",
            "torch.ones(3, 4).t()",
            "torch.arange(4.0)",
            f"{a}.new_zeros(2, 3)",
            f"torch.empty_like({a}).copy_({b})",
        )
        self.attempt(f"{self.new()} = {self.random.choice(expressions)}")

    def write(self) -> None:
        to, a = self.pick(), self.pick()
        subscript, axis = self.subscript(to), self.axis(to)
        lines = (
            f"{to} += {a}",
            f"{to} *= 2",
            f"{to}.add_({a})",
            f"{to}.copy_({a})",
            f"{to}.copy_({a}.sum())",
            f"{to}.zero_()",
            f"{to}.fill_(3)",
            f"{to}.clamp_(-1, 1)",
            f"{to}.neg_()",
            f"{to}[{subscript}] = {a}",
            f"{to}[{subscript}] = 5",
            f"{to}[{subscript}] += {a}",
            f"{to}[{subscript}] *= 3",
            f"{to}[{subscript}].sub_(1)",
            f"{to}.masked_fill_({to} > 0, 4.0)",
            f"{to}[{to} > 0] = -1",
            f"torch.add({a}, 1, out={to})",
            f"torch.mul({a}, {self.pick()}, out={to})",
            f"{to}.t_()",
            f"{to}.unsqueeze_({axis})",
            f"{to}.squeeze_()",
            f"{to}.transpose_(0, {axis})",
            f"{to}.select({axis}, 0).copy_({a}.sum())",
            f"{to}.cumsum_({axis})",
            f"{to}.lerp_({a}, 0.5)",
            f"{to}.relu_()",
        )
        self.attempt(self.random.choice(lines))

    def look_up(self) -> None:
        a, b = self.pick(), self.pick()
        axis = self.axis(a)
        new = self.new()
        lines = (
            f"{new} = {a}[i]",
            f"{new} = {a}[:, i]",
            f"{new} = {a}[i, 0]",
            f"{new} = {a}.index_select({axis}, i % 3)",
            f"{new} = {a}.take(i)",
            f"{new} = F.embedding(i.abs(), {a})",
            f"{a}[i]",
            f"{a}.index_select(0, i.abs())",
            f"{a}[i] = {b}",
            f"{a}[i] += 1",
            f"{a}.index_copy_(0, i.abs(), {b})",
            f"{a}.index_add_(0, i.abs(), {b})",
            f"{a}.index_fill_({axis}, i, 2.0)",
            f"{a}.scatter_(0, i.abs()[None], 7.0)",
            f"{new} = n // n.flip(0)",
            "n % n.roll(1)",
            "n += n // n.flip(0)",
            f"{new} = F.one_hot(i.abs(), 3)",
            f"{new} = {a}[i.abs()[0]]",
        )
        self.attempt(self.random.choice(lines))

    def result(self) -> str:
        made = [name for name in self.values if name not in ARGUMENTS]
        names = self.random.sample(list(self.values), min(self.random.randint(1, 4), len(self.values)))
        if made and not set(names) & set(made):
            names.append(made[-1])
        match self.random.randint(0, 4):
            case 0:
                return f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}"
            case 1:
                return f"[{names[0]}, ({', '.join(names)},)]"
            case _:
                return f"{', '.join(names)},"


def _is_plain(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.dtype in (torch.float32, torch.int64, torch.bool, torch.float64)


def _restore(value: torch.Tensor, before: torch.Tensor) -> None:
    try:
        value.copy_(before)
    except RuntimeError:  # it overlaps itself
        value.untyped_storage().copy_(before.contiguous().untyped_storage())


# Comparing


def difference(program: Program) -> str:
    """What is not as written; empty where all is."""
    try:
        function = program.function
        jitted = fusec.jit(function)
    except SyntaxError:
        return ""
    for wrong in (False, True, False):
        found = _differs(program, function, jitted, wrong=wrong)
        if found:
            return f"{'wrong' if wrong else 'right'} numbers: {found}"
    return ""


def _differs(program: Program, function: Callable[..., Any], jitted: Callable[..., Any], *, wrong: bool) -> str:
    theirs, ours = program.arguments(wrong=wrong), program.arguments(wrong=wrong)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, error, said = outcome(function, theirs)
        got, raised, message = outcome(jitted, ours)
        if raised is not error:
            return f"raises {raised} ({message[:200]}), as written {error} ({said[:200]})"
        reference = _in_double(program, wrong=wrong) if error is None else None
    before = program.arguments(wrong=wrong)
    for name, a, b, was in zip(ARGUMENTS, ours, theirs, before, strict=True):
        if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
            return f"argument {name} has another layout"
        if not _near(a, b, None if reference is None else reference[1][name]):
            return (
                f"argument {name} {UNTOUCHED if error is not None and torch.equal(a, was) else 'holds other numbers'}"
            )
    if error is not None:
        return ""
    if describe(got, ours) != describe(expected, theirs):
        return f"results are {describe(got, ours)}, as written {describe(expected, theirs)}"
    exact = list(leaves(reference[0])) if reference is not None else []
    for k, (a, b) in enumerate(zip(leaves(got), leaves(expected), strict=True)):
        if not _near(a, b, exact[k] if k < len(exact) else None):
            return f"result {k} holds other numbers"
    return ""


def _in_double(program: Program, *, wrong: bool) -> tuple[Any, dict[str, torch.Tensor]] | None:
    """Results and arguments where all floats are float64; None where the program does not run so."""
    given = program.arguments(wrong=wrong, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        return program.function(*given), dict(zip(ARGUMENTS, given, strict=True))
    except Exception:
        return None
    finally:
        torch.set_default_dtype(torch.float32)


def _near(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether the error is at most twice that of the code as written, and a rounding; NaN and infinity where it has
    them."""
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return False
    if not torch.equal(ours[~ours.isfinite()].nan_to_num(7.0), theirs[~theirs.isfinite()].nan_to_num(7.0)):
        return False
    a, b = ours.double().nan_to_num(0, 0, 0), theirs.double().nan_to_num(0, 0, 0)
    reference = b if exact is None or exact.shape != b.shape else exact.double().nan_to_num(0, 0, 0)
    rounding = torch.finfo(theirs.dtype).eps * (b.abs().max() if b.numel() else 0) * 4
    return bool(((a - reference).abs() <= 2 * (b - reference).abs() + rounding).all())


def smallest(program: Program) -> Program:
    """The program without the lines that its difference does not take."""
    k = len(program.lines) - 2
    while k >= 0:  # last first: they need the lines before
        shorter = replace(program, lines=(*program.lines[:k], *program.lines[k + 1 :]))
        if _still_differs(shorter):
            program = shorter
        k -= 1
    return program


def _still_differs(program: Program) -> bool:
    _, error, _ = outcome(program.function, program.arguments())
    try:
        return error not in (NameError, UnboundLocalError) and bool(difference(program))
    except Exception:
        return True


def source(program: Program) -> str:
    """The program as source that runs."""
    return (
        "import torch\nimport torch.nn.functional as F\n\nfrom tests.campaigns.views import Program, difference"
        f"\n\n{program.text}\n\nprint(difference({program!r}))\n"
    )


def trial(seed: int) -> Finding | None:
    program = Writer(seed).write_program()
    try:
        said = difference(program)
    except Exception:
        said = traceback.format_exc()
    if not said:
        return None
    known = next((line for line, _ in KNOWN if any(line in own for own in (said, *program.lines))), "")
    short = program if known else smallest(program)
    return Finding(difference(short) or said, source(short), known)


CAMPAIGN = Campaign("views", lambda seed: source(Writer(seed).write_program()), trial, KNOWN)

if __name__ == "__main__":
    sys.exit(command(CAMPAIGN, sys.argv[1:]))
