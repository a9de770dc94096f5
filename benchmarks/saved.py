"""The table of a machine without a compiler: cases are compiled on another one, and measured from its files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

import fusec
from benchmarks.harness import Peer
from benchmarks.report import FUSEC, KernelTime, Row
from benchmarks.session import Case, Session
from fusec.target.rates import Rates


def file_of(folder: Path, work: str) -> Path:
    """Where a case is kept, by its line's name."""
    return folder / (re.sub(r"[^A-Za-z0-9]+", "_", work.replace("×", "x")).strip("_") + ".fusec")


@dataclass
class Saving(Session):
    """Compiles each case for ``target``, without its weights, and measures nothing."""

    folder: Path = Path()
    target: str = "cpu"

    def time(self, case: Case) -> Row:
        path = file_of(self.folder, case.work)
        has_weights = isinstance(case.function, nn.Module)
        fusec.compile(case.function, *case.args, target=self.target).save(path, weights=not has_weights)
        return Row(case.work, "bytes", {FUSEC: float(path.stat().st_size)}, [])


@dataclass
class Loading(Session):
    """Measures what :class:`Saving` wrote, with the weights and arguments of this run."""

    folder: Path = Path()

    def time(self, case: Case) -> Row:
        weights = case.function.state_dict() if isinstance(case.function, nn.Module) else None
        loaded = fusec.load(file_of(self.folder, case.work), weights=weights)
        return super().time(replace(case, peers={**case.peers, FUSEC: Peer(loaded, case.args)}))

    def rates(self) -> None:
        """None: nothing is predicted."""

    def kernels(self, case: Case, earlier: Rates | None, calls: int) -> tuple[list[KernelTime], float]:
        """None: a loaded function runs its kernels as one."""
        return [], 0.0
