"""What every workload shares: the machine, the budget, and the way from timed peers to a row of the table."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness import Budget, Peer, Times, measure
from benchmarks.kernels import kernel_times, rates_now, refuse_eager
from benchmarks.machine import Machine
from benchmarks.report import FUSEC, Check, KernelTime, Row
from fusec.target.rates import Rates

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Faster:
    """At least ``factor`` times as fast as the fastest of these peers."""

    factor: float
    than: tuple[str, ...]

    def check(self, medians: Mapping[str, float]) -> Check:
        present = [name for name in self.than if name in medians]
        best = min(medians[name] for name in present)
        text = f"{self.factor:g}× {' / '.join(present)}"
        return Check(text, best / medians[FUSEC], self.factor)


@dataclass(frozen=True)
class Within:
    """At most this many units a call."""

    most: float
    unit: str

    def check(self, value: float) -> Check:
        return Check(f"≤ {self.most:g} {self.unit}", value, self.most, at_most=True)


@dataclass(frozen=True)
class Case:
    """One timed line of the table.

    peers: by name, fusec among them. targets: against their medians. function, args: what fusec was given, as
    written. exact: its result in float64. checked: peers whose error is shown, the code as written first.
    flops, nbytes: the least that the work needs. multiplies: the type of its matmuls. unit: of the table,
    scale: units a second.
    """

    work: str
    peers: Mapping[str, Peer]
    targets: Sequence[Faster | Within]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    exact: Callable[[], Array] | None = None
    checked: tuple[str, ...] = ("eager", FUSEC)
    flops: float = 0.0
    nbytes: float = 0.0
    multiplies: str = "f32"
    unit: str = "ms"
    scale: float = 1e3
    notes: tuple[str, ...] = ()


@dataclass
class Session:
    """One run of the benchmarks."""

    machine: Machine
    budget: Budget
    quick: bool
    log: Callable[[str], None]
    threads: int = 2
    failures: list[str] = field(default_factory=list)
    only: tuple[str, ...] = ()
    """Parts of the names of the rows that are measured; none: all of them."""

    def wants(self, work: str) -> bool:
        return not self.only or any(part in work for part in self.only)

    def time(self, case: Case) -> Row:
        """Measures a case: all peers in turn, then their errors, then fusec's kernels one by one."""
        earlier = self.rates()
        times = measure(case.peers, self.budget)
        refuse_eager(case.peers[FUSEC].f)
        errors = _errors(case) if case.exact is not None else {}
        medians = times.medians()
        kernels, predicted = self.kernels(case, earlier, times.calls[FUSEC])
        limit = self.machine.limit(case.flops, case.nbytes, case.multiplies)
        checks = [
            target.check(medians) if isinstance(target, Faster) else target.check(medians[FUSEC] * case.scale)
            for target in case.targets
        ]
        return Row(
            work=case.work,
            unit=case.unit,
            values={name: seconds * case.scale for name, seconds in medians.items()},
            checks=checks,
            of_limit=limit / medians[FUSEC] if limit else None,
            predicted=predicted * case.scale if kernels else None,
            errors=errors,
            spread=times.spread(FUSEC),
            rounds=times.count,
            noisy=times.noisy,
            kernels=kernels,
            notes=(*case.notes, *_rounds_note(times)),
            first=times.first,
        )

    def time_all(self, cases: Iterable[Callable[[], Case]]) -> Iterator[Row]:
        """Makes and measures case by case. One that fails is noted, and the others go on."""
        for make in cases:
            try:
                yield self.time(make())
            except Exception:
                self.failures.append(traceback.format_exc())

    def rates(self) -> Rates | None:
        """What the machine does now, for the model."""
        return rates_now()

    def kernels(self, case: Case, earlier: Rates | None, calls: int) -> tuple[list[KernelTime], float]:
        """fusec's kernels for a case, one by one, and the predicted seconds of a call, so many of them in a turn."""
        assert earlier is not None
        return kernel_times(case.function, case.args, earlier, 3 if self.quick else 9, len(case.peers) - 1, calls)


def _rounds_note(times: Times) -> list[str]:
    if times.noisy:
        return [f"other processes ran throughout; all {times.count} rounds are counted"]
    return []


def as_array(value: Any) -> Array:
    """A result of any library as a NumPy array; of several, the first."""
    if isinstance(value, tuple | list):
        return as_array(value[0])
    if hasattr(value, "detach"):
        value = value.detach()
        return np.asarray(value.float() if value.itemsize == 2 else value)
    return np.asarray(value)


def _errors(case: Case) -> dict[str, float]:
    """Greatest absolute error of each checked peer against float64."""
    assert case.exact is not None
    exact = case.exact()
    found = {}
    for name in case.checked:
        peer = case.peers[name]
        result = as_array(peer.f(*peer.args))
        if result.shape != exact.shape:
            raise ValueError(f"{case.work}: {name} gives {result.shape}, not {exact.shape}")
        found[name] = float(np.abs(result.astype(np.float64) - exact).max())
    return found
