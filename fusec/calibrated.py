# SPDX-License-Identifier: Apache-2.0
"""What calibration found out about a model's layers, and kept with it: the noise that fewer bits cost, by layer."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

from fusec.errors import ArtifactError
from fusec.packages import needing_compiler

Json = Any

ATTRIBUTE = "quantization"
"""The attribute of a module that has its report."""


@dataclass(frozen=True)
class LayerReport:
    """One layer: the range of its input that eight bits stand for, and its results' signal over noise in dB.

    kept: it is computed as it was, because it hurts most. reason: why it can't be in fewer bits; empty where it can.
    """

    name: str
    weights: int
    low: float
    high: float
    decibels: float
    kept: bool
    reason: str = ""

    def cells(self, scheme: str) -> tuple[str, str, str, str, str]:
        """Name, weights, the input's range, noise, and what was done, as text."""
        done = self.reason or ("kept in float" if self.kept else scheme)
        noise = "-" if self.reason else f"{self.decibels:.1f} dB"
        return self.name, f"{self.weights:,}", f"{self.low:.3g} to {self.high:.3g}", noise, done


@dataclass(frozen=True)
class QuantizationReport:
    """What :func:`fusec.quantize` did. ``decibels``: signal over noise of the model's own results, on the same data."""

    scheme: str
    method: str
    layers: tuple[LayerReport, ...]
    decibels: float

    @property
    def head(self) -> str:
        """One line on the whole model."""
        return f"{self.scheme} by {self.method}: {self.decibels:.1f} dB of the model's results"

    def __str__(self) -> str:
        with needing_compiler("a table of layers"):
            from rich import box
            from rich.table import Table

            from fusec.report import render

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("layer", "") else "right")
        for layer in self.layers:
            table.add_row(*layer.cells(self.scheme))
        return f"{self.head}\n{render(table)}"

    def worst_first(self) -> list[LayerReport]:
        """The layers with the least signal over noise first; those that stayed for a reason of their own last."""
        return sorted(self.layers, key=lambda layer: (bool(layer.reason), layer.decibels))

    def to_json(self) -> Json:
        """Plain values; numbers that may be infinite as text."""
        layers = [{**asdict(x), **{k: str(getattr(x, k)) for k in _REAL}} for x in self.layers]
        return {"scheme": self.scheme, "method": self.method, "layers": layers, "decibels": str(self.decibels)}

    @staticmethod
    def from_json(data: Json) -> QuantizationReport | None:
        """ArtifactError for what is no report."""
        if data is None:
            return None
        try:
            layers = tuple(
                LayerReport(
                    name=str(x["name"]),
                    weights=int(x["weights"]),
                    low=float(x["low"]),
                    high=float(x["high"]),
                    decibels=float(x["decibels"]),
                    kept=bool(x["kept"]),
                    reason=str(x["reason"]),
                )
                for x in data["layers"]
            )
            return QuantizationReport(str(data["scheme"]), str(data["method"]), layers, float(data["decibels"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"the record of the calibration is damaged: {error!s:.200}") from None


_REAL = ("low", "high", "decibels")
COLUMNS = ("layer", "weights", "range of its input", "signal over noise", "")
"""The heads of the cells of a layer."""


def calibration_of(function: Any) -> QuantizationReport | None:
    """The report of a module, or of the one among its children that was calibrated; None where there is no such one."""
    owner = getattr(function, "__self__", function)
    nn = sys.modules.get("torch.nn")
    if nn is None or not isinstance(owner, nn.Module):
        return None
    reports = (vars(module).get(ATTRIBUTE) for module in owner.modules())
    found = [report for report in reports if isinstance(report, QuantizationReport)]
    return found[0] if len(found) == 1 else None
