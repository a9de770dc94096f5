# SPDX-License-Identifier: Apache-2.0
"""Measured search on a GPU: schedules and library calls of a group side by side, the fastest right one kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from fusec.config import logger
from fusec.errors import LoweringError
from fusec.passes.families.record import times_from
from fusec.passes.lower.context import LoweredGroup, LoweringContext, sizes_of
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.select_gpu import GpuSelector
from fusec.passes.tune import Done, Effort, Measured, Progress, Stopped, results_of, silent, tuning_key
from fusec.runtime.program import Choice

ALTERNATIVES: dict[Effort, int] = {"quick": 8, "full": 60}
SECONDS: dict[Effort, float] = {"quick": 30.0, "full": 240.0}
"""How many alternatives of a group are measured, and for how long at most; compiling one takes a second or more."""

SAME = 1.01
"""Times this near to each other are taken for equal, and the alternative that was predicted to be better is chosen."""

log = logger("tune")

MeasureGpu = Callable[[LoweringContext, Sequence[Alternative], float, Done], list[Measured]]
"""Builds, checks and times a group's alternatives, within a number of seconds; may return fewer.

An empty list: nothing can be measured now, as while a stream is being captured. At Ctrl-C it raises ``Stopped``."""


@dataclass
class GpuTuningSelector(GpuSelector):
    """Chooses by measurement; ``remembered`` keeps choices between compilations, by content and ``facts``.

    ``stopped``: Ctrl-C ended a search; what it had found is used but not remembered, and nothing more is measured.
    """

    measure: MeasureGpu | None = None
    effort: Effort = "quick"
    facts: tuple[str, ...] = ()
    remembered: MutableMapping[str, str] = field(default_factory=dict)
    progress: Progress = silent
    stopped: bool = False

    @property
    def by_name(self) -> bool:
        """Each group is told of in ``measured``; one of the same structure is remembered, not measured again."""
        return True

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        """The group by its fastest right alternative; where none could be measured, by the best predicted one."""
        if self.measure is None or sizes_of(context.body):
            return super().lower(context)
        alternatives = self.alternatives(context)
        if len(alternatives) == 1:
            return alternatives[0].lower(context)
        key = tuning_key(context, self.target.name, *self.facts)
        choice = choice_from_text(self.remembered.get(key, ""), context.name)
        known = next((a for a in alternatives if choice is not None and a.text == choice.chosen), None)
        if choice is None or known is None:
            if self.stopped:
                return alternatives[0].lower(context)
            choice = self._search(context, alternatives[: ALTERNATIVES[self.effort]])
            if choice is not None:
                if not self.stopped:
                    self.remembered[key] = choice_to_text(choice)
                known = next(a for a in alternatives if a.text == choice.chosen)
        if choice is None or known is None:
            return alternatives[0].lower(context)
        self.measured.append(choice)
        return known.lower(context)

    def _search(self, context: LoweringContext, alternatives: Sequence[Alternative]) -> Choice | None:
        assert self.measure is not None
        stop = time.monotonic() + SECONDS[self.effort]
        possible: list[Alternative] = []
        rejected: list[tuple[str, float | None, str]] = []
        for alternative in alternatives:
            try:
                alternative.lower(context.fresh())
                possible.append(alternative)
            except LoweringError as error:
                rejected.append((alternative.text, None, str(error)))
        try:
            with self.progress(context.name, len(possible)) as done:
                results = self.measure(context, possible, stop - time.monotonic(), done)
        except (Stopped, KeyboardInterrupt) as stopped:
            results, self.stopped = results_of(stopped), True
            log.warning("tuning stopped at %s: the best so far is used", context.name)
        measured = [(a.text, r.seconds, r.reason) for a, r in zip(possible, results)]
        timed = [(text, seconds) for text, seconds, _ in measured if seconds is not None]
        for text, seconds, reason in (*measured, *rejected):
            log.info("%s: %s: %s", context.name, text, reason if seconds is None else f"{seconds * 1e6:.2f} us")
        if not timed:
            return None
        close = min(seconds for _, seconds in timed) * SAME
        return Choice(context.name, next(t for t, seconds in timed if seconds <= close), (*measured, *rejected))


def choice_to_text(choice: Choice) -> str:
    """One line of JSON, without the group's name."""
    return json.dumps({"chosen": choice.chosen, "measured": choice.measured})


def choice_from_text(text: str, group: str) -> Choice | None:
    """The inverse of :func:`choice_to_text`; None for anything else."""
    try:
        record = json.loads(text)
        return Choice(group, str(record["chosen"]), times_from(record["measured"]))
    except (ValueError, KeyError, TypeError):
        return None
