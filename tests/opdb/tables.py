"""The results as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from opdb.families import NAMES
from opdb.known import KNOWN

if TYPE_CHECKING:
    from opdb.run import Row

_STATES = ("compiled", "random", "library", "refused", "wrong")
_TITLES = {
    "forward": "Forward samples, each captured and compiled",
    "specials": "The same with ±0, ±inf, NaN, denormals and ±1e4 among the values",
    "dynamo": "The first sample of each op through `torch.compile`",
    "gradients": "Gradients through `torch.compile`, the first sample of each op",
}


def as_markdown(rows: Sequence[Row]) -> str:
    """One table for each check, then what ran through the library and what is known to differ."""
    parts = [
        "# PyTorch's own samples (`op_db`)\n",
        f"torch {torch.__version__}, CPU; `python -m tests.opdb --write`. Values against "
        "float64 (at most twice eager's error), dtypes, shapes, strides, aliasing, signs of zeros.\n",
        "*compiled*: all of it in kernels of fusec. *random*: so it is, but PyTorch's generator draws, so that the "
        "numbers are eager's (the share is of the other samples). *library*: a call in it runs through PyTorch, and "
        "that is said. *refused*: the sample runs as written, and that is said. "
        "*wrong*: something differs from eager.\n",
    ]
    for check, title in _TITLES.items():
        chosen = [row for row in rows if row.check == check]
        if chosen:
            parts.append(f"## {title}\n\n{_table(chosen)}\n")
    parts.append(f"## What runs through the library, or as written\n\n{_reasons(rows)}\n")
    if KNOWN:
        parts.append(known_table())
    return "\n".join(parts)


def known_table() -> str:
    """The section of what is known to differ."""
    lines = [f"| `{key}` | {reason} |" for key, reason in sorted(KNOWN.items())]
    return "## Known to differ from eager\n\n| op, dtype, check | reason |\n|---|---|\n" + "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> str:
    lines = [
        f"| family | dtype | ops | samples | {' | '.join(_STATES)} | compiled, % |",
        "|---" * (5 + len(_STATES)) + "|",
    ]
    for family in NAMES:
        for dtype in sorted({row.dtype for row in rows}, reverse=True):
            lines += _line(family, dtype, [r for r in rows if r.family == family and r.dtype == dtype])
    asked = [row for row in rows if row.family != "others"]
    lines += _line("all but others", "", asked)
    return "\n".join(lines)


def _line(family: str, dtype: str, rows: Sequence[Row]) -> list[str]:
    states = sum((row.states for row in rows), Counter[str]())
    total = states.total()
    if not total:
        return []
    counts = " | ".join(str(states[state]) for state in _STATES)
    share = 100 * states["compiled"] / max(total - states["random"], 1)
    return [f"| {family} | {dtype} | {len({r.op for r in rows})} | {total} | {counts} | {share:.1f} |"]


def _reasons(rows: Sequence[Row]) -> str:
    by_reason: dict[str, Counter[str]] = {}
    for row in rows:
        for reason, n in row.reasons.items():
            if reason.startswith(("library", "refused")):
                by_reason.setdefault(reason, Counter())[row.op] += n
    lines = ["| reason | samples | ops |", "|---|---|---|"]
    for reason, ops in sorted(by_reason.items(), key=lambda item: -item[1].total()):
        named = ", ".join(f"`{op}`" for op, _ in ops.most_common(6)) + (" …" if len(ops) > 6 else "")
        lines.append(f"| {reason.replace('|', '/')} | {ops.total()} | {named} |")
    return "\n".join(lines)
