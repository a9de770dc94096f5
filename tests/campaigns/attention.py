"""Random spellings of attention, as written and jitted: errors against float64, NaN and infinity, layouts.

    python -m tests.campaigns.attention --count 1000 --seed 0

Masks, scales, soft caps, biases, grouped heads, functions of scores and of weights, spellings of the softmax, odd
shapes and layouts, in f32, bf16, f16 and f64. A program that differs is printed as source that runs.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tests.campaigns.batches import Campaign, Finding, command
from tests.campaigns.comparing import DTYPES, Runs
from tests.campaigns.lines import function_of, text_of

ARGUMENTS = ("q", "k", "v", "bias", "mask", "keys", "slopes", "ids", "gate")
LENGTHS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 48, 64, 65, 100, 129, 200)
DEPTHS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 32, 40, 64, 80)


@dataclass(frozen=True)
class Sizes:
    """Batches, heads of queries and of keys, queries, keys, depth of keys and of values."""

    b: int
    h: int
    g: int
    n: int
    m: int
    d: int
    e: int


@dataclass(frozen=True)
class Program:
    """The lines of a function of :data:`ARGUMENTS`, which knows its sizes and two dtypes: ``own``, and ``wide``.

    ``wide`` is f32 and f64 where ``own`` is. layout: whether heads lie behind the positions. size: of the queries.
    """

    lines: tuple[str, ...]
    sizes: Sizes
    dtype: str
    layout: bool
    size: float
    seed: int

    @property
    def text(self) -> str:
        return text_of(ARGUMENTS, self.lines)

    def function(self, own: torch.dtype | None = None) -> Callable[..., Any]:
        own = own or DTYPES[self.dtype]
        wide = torch.float64 if own is torch.float64 else torch.float32
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math, "inf": math.inf}
        scope |= {"own": own, "wide": wide, "low": torch.finfo(DTYPES[self.dtype]).min, **vars(self.sizes)}
        return function_of(self.text, f"<attention {self.seed}>", scope)

    def arguments(self, number: int = 0) -> list[torch.Tensor]:
        s, generator = self.sizes, torch.Generator().manual_seed(self.seed * 2 + number)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        def heads(count: int, length: int, depth: int) -> torch.Tensor:
            if self.layout:
                return normal(s.b, length, count, depth).transpose(1, 2)
            return normal(s.b, count, length, depth)

        q, k, v = heads(s.h, s.n, s.d) * self.size, heads(s.g, s.m, s.d), heads(s.g, s.m, s.e)
        mask = torch.rand(s.n, s.m, generator=generator) < 0.7
        keys = torch.rand(s.b, 1, 1, s.m, generator=generator) < 0.8
        mask[:, 0] = keys[..., 0] = True
        floats = [
            q,
            k,
            v,
            normal(s.h, s.n, s.m),
            torch.rand(s.h, 1, 1, generator=generator),
            normal(s.b, s.h, s.n, s.e),
        ]
        q, k, v, bias, slopes, gate = (x.to(DTYPES[self.dtype]) for x in floats)
        ids = torch.randint(0, 3, (s.b, max(s.n, s.m)), generator=generator).sort(-1).values
        return [q, k, v, bias, mask, keys, slopes, ids, gate]


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        r = self.random
        g = r.choice((1, 1, 2, 3))
        n, m = r.choice(LENGTHS), r.choice(LENGTHS)
        d = r.choice(DEPTHS)
        e = d if r.random() < 0.7 else r.choice(DEPTHS)
        sizes = Sizes(r.choice((1, 1, 2, 3)), g * r.choice((1, 1, 2, 4)), g, n, n if r.random() < 0.5 else m, d, e)
        self.sizes = sizes
        self.lines: list[str] = []
        self.hidden = False
        self.heads()
        self.scores()
        for _ in range(r.choice((0, 1, 1, 2, 2, 3))):
            self.change()
        self.weights()
        self.values()
        dtype = r.choices(list(DTYPES), (6, 3, 2, 1))[0]
        size = r.choices((1.0, 0.0, 8.0, 50.0, 1e-4), (12, 1, 3, 1, 1))[0]
        self.program = Program(tuple(self.lines), sizes, dtype, r.random() < 0.3, size, seed)

    def add(self, *choices: str) -> None:
        self.lines += self.random.choice(choices).split("; ")

    def heads(self) -> None:
        s = self.sizes
        if s.h == s.g:
            return
        self.add(
            "k = k.repeat_interleave(h // g, 1); v = v.repeat_interleave(h // g, dim=1)",
            "k = k[:, :, None].expand(b, g, h // g, m, d).reshape(b, h, m, d); "
            "v = v[:, :, None].expand(b, g, h // g, m, e).reshape(b, h, m, e)",
            "k = k.repeat(1, h // g, 1, 1); v = torch.cat([v] * (h // g), 1)",
        )

    def scores(self) -> None:
        scale = self.random.choice(("", "", "/ math.sqrt(d)", "* d ** -0.5", "* 0.3", "* -0.25", "/ 7", "* 3.0"))
        if self.random.random() < 0.2 and scale:
            self.lines.append(f"q = q {scale}")
            scale = ""
        product = self.random.choice(
            (
                "(q @ k.mT)",
                "(q @ k.transpose(-2, -1))",
                "torch.matmul(q, k.mT)",
                'torch.einsum("bhnd,bhmd->bhnm", q, k)',
                "(k @ q.mT).mT",
                "torch.bmm(q.reshape(-1, n, d), k.reshape(-1, m, d).mT).view(b, h, n, m)",
                "(q.to(wide) @ k.to(wide).mT)",
            )
        )
        self.lines.append(f"s = {product} {scale}".rstrip())

    def change(self) -> None:
        """Something that happens to the scores."""
        row, column = "torch.arange(n)[:, None]", "torch.arange(m)[None, :]"
        causal = self.random.choice(
            (
                "torch.ones(n, m, dtype=torch.bool).tril()",
                "torch.tril(torch.ones(n, m)) == 1",
                f"{row} >= {column}",
                f"{column} - {row} <= m - n",
                f"({row} - {column}).abs() < {self.random.choice((2, 5, 40))}",
                f"({row} >= {column}) & ({row} - {column} < {self.random.choice((1, 9, 33))})",
                f"({row} // 8 == {column} // 8)",
                "ids[:, None, :n, None] == ids[:, None, None, :m]",
                "mask",
                "keys",
                "mask & keys",
                f"mask | ({row} == {column})",
            )
        )
        fill = self.random.choice(('float("-inf")', "-inf", "-1e9" if self.random.random() < 0.5 else "-1e4", "low"))
        cap = self.random.choice((1.0, 5.0, 30.0))
        kind = self.random.random()
        if kind < 0.5:
            self.lines.append(f"seen = {causal}")
            self.add(
                f"s = s.masked_fill(~seen, {fill})",
                f"s = torch.where(seen, s, {fill})",
                f"s = s + torch.zeros(seen.shape, dtype=s.dtype).masked_fill(~seen, {fill})",
                "s = s * seen",
                "s = s * seen + (1.0 - seen.to(s.dtype)) * -1e4",
                "s = s - 1e4 * (~seen)",
                f"s = s.masked_fill(~seen, {fill})",
            )
            return
        self.add(
            f"s = {cap} * torch.tanh(s / {cap})",
            "s = s + bias",
            "s = s + bias[None]",
            "s = s + bias.to(s.dtype)",
            "s = s + bias[:, :1]",
            "s = s + bias[..., :1]",
            f"s = s - slopes * ({row} - {column}).abs()",
            f"s = s + slopes * ({column} - {row})",
            "s = s * slopes",
            f"s = s.clamp(max={cap / 2})",
            f"s = s.clamp(-{cap}, {cap})",
            "s = s * 0.5",
            "s = s + s",
            "s = s * s * 0.1",
            "s = s.abs()",
            "s = torch.relu(s)",
            "s = F.leaky_relu(s, 0.1)",
            "s = torch.sigmoid(s)",
            "s = torch.sin(s)",
            "s = F.gelu(s)",
            "s = s.to(wide)",
            "s = s - s.amax(-1, keepdim=True)",
            "s = torch.nan_to_num(s, 0.0, -low, low)",
            "s = s / (1 + s.abs())",
        )

    def weights(self) -> None:
        """The weights ``p`` from the scores ``s``: mostly a softmax in one spelling or another."""
        r = self.random.random()
        if r < 0.88:
            self.add(
                "p = torch.softmax(s, -1)",
                "p = torch.softmax(s, dim=3)",
                "p = s.softmax(-1)",
                "p = F.softmax(s, dim=-1, dtype=wide).to(own)",
                "p = torch.softmax(s.to(wide), -1).to(own)",
                "x = (s - s.amax(-1, keepdim=True)).exp(); p = x / x.sum(-1, keepdim=True)",
                "x = torch.exp(s - s.max(-1, keepdim=True).values); p = x * (1 / x.sum(-1, keepdim=True))",
                "p = F.log_softmax(s, -1).exp()",
                "p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))",
                "t = s.amax(-1, keepdim=True); x = (s - t).exp(); p = x / (x.sum(-1, keepdim=True) + torch.exp(-t))",
                "p = torch.softmax(torch.cat([s, s[..., :1] * 0], -1), -1)[..., :m]",
            )
        else:
            self.add(
                "p = torch.sigmoid(s)",
                "p = torch.relu(s) / m",
                "p = torch.relu(s) ** 2",
                "p = s / s.abs().sum(-1, keepdim=True).clamp(min=1)",
                "x = F.elu(s) + 1; p = x / (x.sum(-1, keepdim=True) + 1e-6)",
                "p = torch.softmax(s, -2)",
                "p = torch.tanh(s)",
            )
        if self.random.random() < 0.25:
            self.add(
                "p = p * 0.5",
                "p = p * mask",
                "p = p.masked_fill(~keys, 0.0)",
                "p = torch.nan_to_num(p)",
                "p = p.to(own)",
                "p = p / p.sum(-1, keepdim=True)",
                "p = torch.where(mask, p, 0.0)",
            )

    def values(self) -> None:
        self.lines.append("p = p.to(v.dtype)")
        self.add(
            "y = p @ v",
            "y = torch.matmul(p, v)",
            'y = torch.einsum("bhnm,bhme->bhne", p, v)',
            "y = (v.mT @ p.mT).mT",
            "y = torch.bmm(p.flatten(0, 1), v.flatten(0, 1)).view(b, h, n, e)",
        )
        if self.random.random() < 0.5:
            self.add(
                "y = y.transpose(1, 2).reshape(b, n, h * e)",
                "y = y.transpose(1, 2)",
                "y = y * torch.sigmoid(gate)",
                "y = y + gate",
                "y = y.to(wide)",
                "y = y.mean(2)",
                "y = F.layer_norm(y, (e,))",
            )
        self.add("return y,", "return y,", "return y,", "return y, p", "return y, s")


def written(seed: int) -> Program:
    return Writer(seed).program


def difference(program: Program) -> str:
    """What is not as written; empty where all is."""
    as_written, in_float64 = program.function(), program.function(torch.float64)
    return Runs(as_written, in_float64, program.arguments, program.dtype, draws=24, nudged=8).compared()


def source(program: Program) -> str:
    """The program as source that runs."""
    return (
        "from tests.campaigns.attention import Program, Sizes, difference\n\n"
        f"{program.text}\n\nprint(difference({program!r}))\n"
    )


def trial(seed: int) -> Finding | None:
    program = written(seed)
    try:
        said = difference(program)
    except Exception:
        said = traceback.format_exc()
    return Finding(said, source(program)) if said else None


CAMPAIGN = Campaign("attention", lambda seed: source(written(seed)), trial)

if __name__ == "__main__":
    sys.exit(command(CAMPAIGN, sys.argv[1:]))
