"""Random convolutions and pools, as written and jitted: errors against float64, NaN and infinity, layouts, exceptions.

    python -m tests.campaigns.convolutions --count 1000 --seed 0 [--device cuda]

Of one, two and three axes; strides, paddings, dilations, groups, transposed, what stands before and behind them, odd
sizes and layouts, in f32, bf16, f16 and f64. Some programs are wrong. One that differs is printed as source that runs.
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from random import Random
from typing import Any

import torch

from tests.campaigns.batches import Campaign, Finding, command
from tests.campaigns.comparing import DTYPES, FAKE_STRIDES, Runs, laid_like
from tests.campaigns.lines import function_of, text_of

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 64)
EXTENTS = {1: (1, 2, 5, 8, 16, 31, 100), 2: (1, 2, 4, 7, 8, 13, 20), 3: (1, 2, 3, 5, 6)}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
KNOWN: tuple[tuple[str, str], ...] = (
    (
        FAKE_STRIDES,
        "reflection_pad3d of channels last; axes of one element, by whose strides a convolution chooses its layout",
    ),
)
INDICES = (
    "PyTorch's max_pool3d of channels last names an element of the first slice for a window of -inf or padding alone"
)
LIBRARY_NAN = (
    "oneDNN's bf16 convolutions multiply infinities by the zeros that fill up channels: which become NaN goes by the "
    "layout, and fusec gives it channels last"
)
"""These are too rare for 10,000 programs to show."""
DRAWS = 16
"""Arguments on which the errors of a program are compared that are too large on one."""


@dataclass(frozen=True)
class Argument:
    """layout: ``plain``, ``last`` (channels), ``cut`` out of more, ``repeated`` along the batch. values: ``normal``,
    ``few`` (whole numbers, so that many are equal), ``special`` (some are NaN or infinite), ``positive``."""

    name: str
    shape: tuple[int, ...]
    layout: str = "plain"
    values: str = "normal"
    scale: float = 1.0

    def draw(self, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        x = torch.randn(self.shape, generator=generator)
        if self.values == "few":
            x = torch.randint(-2, 3, self.shape, generator=generator).float()
        if self.values == "positive":
            x = x.abs() + 0.5
        if self.values == "special" and x.numel():
            chosen = torch.randint(0, 3, self.shape, generator=generator)
            some = torch.rand(self.shape, generator=generator) < 2 / max(x.numel(), 20)
            x = torch.where(some, torch.tensor([torch.nan, torch.inf, -torch.inf])[chosen], x)
        x = (x * self.scale).to(dtype)
        match self.layout:
            case "last" if x.dim() in FORMATS:
                return x.contiguous(memory_format=FORMATS[x.dim()])
            case "cut":
                return torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]
            case "repeated":
                return x[:1].expand(x.shape)
        return x


@dataclass(frozen=True)
class Program:
    """The lines of a function of some arguments, which knows ``torch`` and ``F``."""

    lines: tuple[str, ...]
    given: tuple[Argument, ...]
    dtype: str
    seed: int

    @property
    def text(self) -> str:
        return text_of([a.name for a in self.given], self.lines)

    def function(self) -> Callable[..., Any]:
        return function_of(self.text, f"<convolutions {self.seed}>", {"torch": torch, "F": torch.nn.functional})

    def arguments(self, number: int = 0, device: str = "cpu") -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * DRAWS * 2 + number)
        return [laid_like(a.draw(generator, DTYPES[self.dtype]), device) for a in self.given]


class Writer:
    """Writes one program; runs each line to see what it makes."""

    def __init__(self, seed: int) -> None:
        self.random = r = Random(seed)
        self.dtype = r.choices(list(DTYPES), (6, 3, 2, 1))[0]
        self.places = r.choices((1, 2, 3), (2, 6, 2))[0]
        self.wrong = r.random() < 0.06
        self.lines: list[str] = []
        self.given: list[Argument] = []
        self.values: dict[str, torch.Tensor] = {}
        batch = r.choice((1, 1, 2, 3)) if r.random() < 0.97 else 0
        shape = (batch, r.choice(CHANNELS), *(r.choice(EXTENTS[self.places]) for _ in range(self.places)))
        self.batched = r.random() < 0.93 or batch != 1
        shape = shape if self.batched else shape[1:]
        layout = r.choices(("plain", "last", "cut", "repeated"), (6, 5, 1, 1))[0]
        self.y = self.add_argument("x", shape, layout, r.choices(("normal", "few", "special"), (8, 2, 1))[0])
        self.write()
        used = set(re.findall(r"\w+", " ".join(self.lines)))
        self.program = Program(tuple(self.lines), tuple(a for a in self.given if a.name in used), self.dtype, seed)

    def write(self) -> None:
        r = self.random
        for _ in range(r.choice((0, 0, 0, 1))):
            self.before()
        for _ in range(r.choices((1, 2, 3), (6, 3, 1))[0]):
            kinds = (self.convolution, self.transposed, self.max_pool, self.avg_pool, self.adaptive, self.columns)
            count = len(self.lines)
            for _ in range(8):
                if len(self.lines) == count and self.places_now:
                    r.choices(kinds, (10, 2, 3, 3, 1, 1))[0]()
            for _ in range(r.choice((0, 1, 1, 2, 3))):
                self.behind()
        returned = sorted({self.y, *r.sample(sorted(self.values), 1)} - {a.name for a in self.given} | {self.y})
        self.lines.append(f"return {', '.join(returned)},")

    def add_argument(
        self, name: str, shape: tuple[int, ...], layout: str = "plain", values: str = "normal", scale: float = 1.0
    ) -> str:
        name = name if name not in self.values else f"{name}{len(self.given)}"
        repeats = len(shape) > 1 and shape[0] > 0
        self.given.append(Argument(name, shape, layout if layout != "repeated" or repeats else "plain", values, scale))
        self.values[name] = torch.zeros(shape)
        return name

    def attempt(self, expression: str) -> bool:
        """Appends a line that makes ``y`` of an expression if it can be run, or is to be wrong."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = eval(expression, {"torch": torch, "F": torch.nn.functional, **self.values})
        except Exception:
            if self.wrong:
                self.lines.append(f"{self.y} = {expression}")
            return False
        if made.numel() > 300_000:
            return False
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values[name] = made
        self.y = name
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values[self.y].shape)

    @property
    def places_now(self) -> int:
        """Axes of the image at hand."""
        return max(len(self.shape) - 1 - self.batched, 0)

    def numbers(self, choices: tuple[int, ...], count: int) -> str:
        """One number for all axes, or one for each."""
        some = tuple(self.random.choice(choices) for _ in range(count))
        return str(some[0]) if self.random.random() < 0.4 else str(some)

    def sizes(self, low: int = 1) -> tuple[int, ...]:
        most = {1: 9, 2: 5, 3: 3}[self.places_now]
        if self.places_now == 2 and self.random.random() < 0.1:
            most = 7
        return tuple(self.random.randint(low, max(min(most, n + 1), low)) for n in self.shape[-self.places_now :])

    def weight(self, shape: tuple[int, ...], products: int) -> str:
        layout = self.random.choices(("plain", "last", "cut"), (6, 4, 1))[0]
        return self.add_argument("w", shape, layout, scale=max(products, 1) ** -0.5)

    def bias(self, columns: int) -> str:
        return f", {self.add_argument('b', (columns,))}" if self.random.random() < 0.5 else ""

    # Lines

    def before(self) -> None:
        shape = self.shape
        s = self.add_argument("s", (shape[-1 - self.places_now], *(1 for _ in range(self.places_now))))
        around = ", ".join(str(self.random.randint(0, 2)) for _ in range(2 * self.places_now))
        self.attempt(
            self.random.choice(
                (
                    f"F.relu({self.y})",
                    f"{self.y} * {s}",
                    f"F.silu({self.y})",
                    f"F.pad({self.y}, ({around}))",
                    f"F.pad({self.y}, ({around}), mode='reflect')",
                    f"torch.cat([{self.y}, {self.y} * 2], {-1 - self.places_now})",
                    f"{self.y}.flip(-1)",
                    f"{self.y}[..., 1:]",
                )
            )
        )

    def convolution(self) -> None:
        r, places = self.random, self.places_now
        channels = self.shape[-1 - places]
        size = self.sizes()
        groups = self.groups(channels)
        columns = groups * r.choice((1, 1, 2, 3)) if groups > 1 else r.choice(CHANNELS)
        w = self.weight((columns, channels // groups + (self.wrong and r.random() < 0.3), *size), channels * prod(size))
        stride = self.numbers((1, 1, 1, 2, 3), places)
        padding = self.numbers((0, 0, 1, 1, 2, 3), places)
        if r.random() < 0.15:
            padding, stride = r.choice(("'same'", "'valid'")), "1"
        more = f"stride={stride}, padding={padding}, dilation={self.numbers((1, 1, 1, 2, 3), places)}, groups={groups}"
        self.attempt(f"F.conv{places}d({self.y}, {w}{self.bias(columns)}, {more})")

    def groups(self, channels: int) -> int:
        divisors = [n for n in range(2, channels) if channels % n == 0]
        kind = self.random.random()
        if kind < 0.2:
            return channels
        return self.random.choice(divisors) if kind < 0.3 and divisors else 1

    def transposed(self) -> None:
        places, channels = self.places_now, self.shape[-1 - self.places_now]
        size, groups = self.sizes(), self.groups(channels)
        columns = self.random.choice((1, 2, 3, 8))
        w = self.weight((channels, columns, *size), channels * prod(size))
        numbers = [self.numbers(choices, places) for choices in ((1, 2, 3), (0, 0, 1), (0, 0, 1), (1, 1, 2))]
        more = "stride={}, padding={}, output_padding={}, dilation={}".format(*numbers)
        call = f"F.conv_transpose{places}d({self.y}, {w}{self.bias(columns * groups)}, {more}, groups={groups})"
        self.attempt(call)

    def pool(self) -> str:
        r, places = self.random, self.places_now
        size = self.sizes() if r.random() < 0.7 else (min(self.sizes()),) * places
        given = [f"{size}"]
        if r.random() < 0.6:
            given.append(f"stride={self.numbers((1, 2, 3), places)}")
        if r.random() < 0.5:
            given.append(f"padding={tuple(r.randint(0, n // 2) for n in size)}")
        if r.random() < 0.3:
            given.append("ceil_mode=True")
        return ", ".join(given)

    def max_pool(self) -> None:
        more = self.pool()
        if self.random.random() < 0.2:
            more += f", dilation={self.numbers((1, 2), self.places_now)}"
        call = f"F.max_pool{self.places_now}d({self.y}, {more}"
        if self.y == "x" and self.random.random() < 0.5:  # behind sums a rounding would decide
            if self.attempt(f"{call}, return_indices=True)[1]"):
                self.lines.append(f"at = {self.y}")
                self.values["at"] = self.values[self.y]
                self.values["x"] = torch.zeros(self.values["x"].shape)
                self.y = "x"
        else:
            self.attempt(f"{call})")

    def avg_pool(self) -> None:
        more = self.pool()
        if self.random.random() < 0.3:
            more += ", count_include_pad=False"
        if self.random.random() < 0.2 and self.places_now > 1:
            more += f", divisor_override={self.random.choice((1, 3, 7))}"
        self.attempt(f"F.avg_pool{self.places_now}d({self.y}, {more})")

    def adaptive(self) -> None:
        sizes = tuple(self.random.choice((1, 1, 2, n)) for n in self.shape[-self.places_now :])
        kind = self.random.choice(("avg", "avg", "max"))
        self.attempt(f"F.adaptive_{kind}_pool{self.places_now}d({self.y}, {sizes})")

    def columns(self) -> None:
        """A convolution as users write it by hand."""
        if self.places_now != 2 or not self.batched:
            return
        channels, size = self.shape[1], self.sizes()
        count = self.random.choice(CHANNELS)
        w = self.weight((count, channels * prod(size)), channels * prod(size))
        more = f"stride={self.numbers((1, 2), 2)}, padding={self.numbers((0, 1, 2), 2)}"
        self.attempt(f"{w} @ F.unfold({self.y}, {size}, {more}, dilation={self.numbers((1, 1, 2), 2)})")

    def behind(self) -> None:
        shape, places, y = self.shape, self.places_now, self.y
        if not places:
            return
        channels = shape[-1 - places]
        match self.random.randint(0, 11):
            case 0 | 1:
                self.attempt(f"F.relu({y})")
            case 2:
                self.attempt(f"F.silu({y})")  # not gelu, of whose infinities oneDNN makes NaN
            case 3 | 4 if self.batched:
                mean, gamma, beta = (self.add_argument(name, (channels,)) for name in ("mean", "gamma", "beta"))
                var = self.add_argument("var", (channels,), values="positive")
                self.attempt(f"F.batch_norm({y}, {mean}, {var}, {gamma}, {beta})")
            case 5 | 6:
                layout = self.random.choice(("plain", "last", "repeated"))
                self.attempt(f"{y} + {self.add_argument('r', shape, layout)}")
            case 7:
                self.attempt(f"{y} * {self.add_argument('s', (channels, *(1 for _ in range(places))))}")
            case 8:
                self.attempt(f"{y} * torch.sigmoid({y}.mean({tuple(range(-places, 0))}, keepdim=True))")
            case 9:
                self.attempt(f"{y}.flip({self.random.choice((-1, -2))})")
            case 10:
                other = self.add_argument("o", shape, self.random.choice(("plain", "last")))
                self.attempt(f"torch.cat([{y}, {other}], {-1 - places})")
            case 11 if self.random.random() < 0.4:
                self.attempt(
                    self.random.choice(
                        (
                            f"{y}.mean({tuple(range(-places, 0))})",
                            f"{y}.flatten(-2)",
                            f"{y}.contiguous()",
                            f"{y}.transpose(-1, -2)",
                            f"F.group_norm({y}, 1)",
                        )
                    )
                )


def written(seed: int) -> Program:
    return Writer(seed).program


def difference(program: Program, device: str = "cpu") -> str:
    """What is not as written; empty where all is."""
    made = program.function()
    return Runs(made, made, lambda number: program.arguments(number, device), program.dtype, DRAWS).compared()


def source(program: Program, device: str = "cpu") -> str:
    """The program as source that runs."""
    return (
        "from tests.campaigns.convolutions import Argument, Program, difference\n\n"
        f"{program.text}\n\nprint(difference({program!r}, {device!r}))\n"
    )


def trial(seed: int, device: str = "cpu") -> Finding | None:
    program = written(seed)
    try:
        said = difference(program, device)
    except Exception:
        said = traceback.format_exc()
    return Finding(said, source(program, device), known(program, said)) if said else None


def known(program: Program, said: str) -> str:
    """The name of the difference if it stays, or nothing."""
    if said == FAKE_STRIDES:
        return FAKE_STRIDES
    if any("max_pool3d(" in line and "return_indices" in line for line in program.lines):
        return INDICES if not difference(_changed(program, layout="plain")) else ""
    if program.dtype == "bf16" and "NaN is not where" in said and any(".conv" in line for line in program.lines):
        others = (_changed(program, values="normal"), replace(program, dtype="f16"), replace(program, dtype="f32"))
        return LIBRARY_NAN if not any(map(difference, others)) else ""
    return ""


def _changed(program: Program, **change: str) -> Program:
    """The program with arguments that are otherwise."""
    return replace(program, given=tuple(replace(a, **change) for a in program.given))


def campaign(device: str) -> Campaign:
    return Campaign("convolutions", lambda seed: source(written(seed), device), partial(trial, device=device), KNOWN)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given, rest = parser.parse_known_args(arguments)
    return command(campaign(given.device), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
