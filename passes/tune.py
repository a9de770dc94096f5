# SPDX-License-Identifier: Apache-2.0
"""Measured search: the best few candidates of each kernel are run, checked and timed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

from fusec.config import logger
from fusec.errors import LoweringError
from fusec.ir.graph import FusedAttributes
from fusec.ir.nodes import Op
from fusec.ir.print import print_graph
from fusec.passes.families.record import Times, tuned_from_text, tuned_to_text
from fusec.passes.lower.context import LoweredGroup, LoweringContext, sizes_of
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.select import Selector, lower_with
from fusec.runtime.program import Choice

log = logger("tune")

Effort = Literal["quick", "full"]
CANDIDATES: dict[Effort, int] = {"quick": 6, "full": 48}
SECONDS: dict[Effort, float] = {"quick": 2.0, "full": 20.0}
"""How many candidates of a kernel are measured, and for how long at most."""


@dataclass(frozen=True)
class Measured:
    """One candidate's median time in seconds; None when it failed to build or gave a wrong result, with the reason."""

    seconds: float | None
    reason: str = ""


class Stopped(Exception):  # noqa: N818 - no error: what is raised once the user has had enough of measuring
    """Ctrl-C while candidates were measured. ``results`` are those so far."""

    def __init__(self, results: Sequence[Measured]) -> None:
        super().__init__()
        self.results = list(results)


Done = Callable[[], None]
"""Called after each candidate."""

Measure = Callable[[Op, Sequence[LoweredGroup], float, Done], list[Measured]]
"""Builds, checks and times lowered candidates of one fused op, within a number of seconds; may return fewer.

At Ctrl-C it raises :class:`Stopped`."""

Progress = Callable[[str, int], AbstractContextManager[Done]]
"""Shows the measurement of a kernel, by name, with so many candidates, while the context lasts."""


def silent(kernel: str, candidates: int) -> AbstractContextManager[Done]:
    """Shows nothing."""
    return nullcontext(lambda: None)


@dataclass
class TuningSelector(Selector):
    """Chooses by measurement; ``remembered`` keeps choices between compilations, by content and ``facts``: those of the
    machine and the versions, so that what was measured on another counts for nothing here.

    ``measured`` are the choices made. ``stopped``: Ctrl-C ended a search; what it had found is used but not
    remembered, and nothing more is measured.
    """

    measure: Measure | None = None
    effort: Effort = "quick"
    facts: tuple[str, ...] = ()
    remembered: MutableMapping[str, str] = field(default_factory=dict)
    progress: Progress = silent
    deadline: float | None = None
    rejected: list[str] = field(default_factory=list)
    measured: list[Choice] = field(default_factory=list)
    stopped: bool = False

    @property
    def by_name(self) -> bool:
        """Each group is told of in ``measured``; one of the same structure is remembered, not measured again."""
        return True

    def lower(self, context: LoweringContext) -> LoweredGroup:
        """The group's kernel with the fastest right candidate; symbolic extents are not measured."""
        candidates = self.candidates(context)
        if self.measure is None or len(candidates) == 1 or sizes_of(context.body):
            return lower_with(context, candidates[0])
        key = tuning_key(context, repr(self.target), self.threads, *self.facts)
        known = tuned_from_text(self.remembered.get(key, ""))
        if known is None and self.stopped:
            return lower_with(context, candidates[0])
        best, times = known or self._search(context, candidates[: CANDIDATES[self.effort]])
        if known is None and not self.stopped:
            self.remembered[key] = tuned_to_text(best, times)
        lowered = lower_with(context, best)
        if times:
            self.measured.append(Choice(context.name, _text(lowered), times))
        return lowered

    def _search(self, context: LoweringContext, candidates: Sequence[CpuSchedule]) -> tuple[CpuSchedule, Times]:
        """The fastest right candidate, and what was measured; the first one where nothing could be."""
        assert self.measure is not None
        budget = SECONDS[self.effort]
        if self.deadline is not None:
            budget = min(budget, self.deadline - time.monotonic())
        if budget <= 0:
            return candidates[0], ()
        lowered: list[tuple[CpuSchedule, LoweredGroup]] = []
        for schedule in candidates:
            try:
                lowered.append((schedule, lower_with(context.fresh(), schedule)))
            except LoweringError as error:
                self.rejected.append(f"{context.name} {schedule}: {error}")
        try:
            with self.progress(context.name, len(lowered)) as done:
                results = self.measure(context.op, [kernel for _, kernel in lowered], budget, done)
        except (Stopped, KeyboardInterrupt) as stopped:
            results, self.stopped = results_of(stopped), True
            log.warning("tuning stopped at %s: the best so far is used", context.name)
        timed: list[tuple[float, int]] = []
        for k, result in enumerate(results):
            if result.seconds is None:
                self.rejected.append(f"{context.name} {lowered[k][0]}: {result.reason}")
            else:
                timed.append((result.seconds, k))
        times = tuple((_text(group), r.seconds, r.reason) for (_, group), r in zip(lowered, results))
        return (lowered[min(timed)[1]][0] if timed else candidates[0]), times


def results_of(stopped: BaseException) -> list[Measured]:
    """What had been measured when Ctrl-C came."""
    return stopped.results if isinstance(stopped, Stopped) else []


def _text(lowered: LoweredGroup) -> str:
    """A schedule as ``explain`` shows it."""
    return " ".join(f"{name}={size}" for name, size in lowered.describe())


def tuning_key(context: LoweringContext, *facts: object) -> str:
    """A digest of what a measured choice depends on: the group, its layouts and the machine, not its source lines."""
    layouts = [context.strides[v] for v in (*context.body.inputs, *context.body.outputs)]
    static = [v in context.static for v in context.body.inputs]
    body = context.body.with_ops([replace(op, location=None) for op in context.body.ops])
    kind = context.op.expect(FusedAttributes).kind
    text = "\n".join((print_graph(body), repr(layouts), repr(static), kind, *map(str, facts)))
    return hashlib.sha256(text.encode()).hexdigest()
