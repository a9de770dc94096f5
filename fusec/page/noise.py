# SPDX-License-Identifier: Apache-2.0
"""The table of a calibrated model's layers: signal over noise, those that hurt most first."""

from __future__ import annotations

from fusec.calibrated import COLUMNS, LayerReport, QuantizationReport
from fusec.page.text import escaped

_NUMBERS = COLUMNS[1:4]
_WIDEST = 60.0
"""Decibels that fill a bar."""


def noise_table(report: QuantizationReport) -> list[str]:
    """The table, a bar for each layer's signal over noise."""
    numbers = "".join(f"<th class=number>{name}</th>" for name in _NUMBERS)
    head = f"<tr><th>layer</th>{numbers}<th></th><th></th></tr>"
    rows = "".join(_row(layer, report.scheme) for layer in report.worst_first())
    caption = f"{escaped(report.head)}. The layers that hurt most stand first."
    return ["<h2>Noise by layer</h2>", f'<table class="kernels noise"><caption>{caption}</caption>{head}{rows}</table>']


def _row(layer: LayerReport, scheme: str) -> str:
    name, *numbers, done = map(escaped, layer.cells(scheme))
    cells = "".join(f"<td class=number>{text}</td>" for text in numbers)
    style = ' class="row kept"' if layer.kept or layer.reason else ' class="row"'
    return f"<tr{style}><td>{name}</td>{cells}<td>{_bar(layer)}</td><td>{done}</td></tr>"


def _bar(layer: LayerReport) -> str:
    if layer.reason:
        return ""
    percent = 100 * min(max(layer.decibels, 0.0), _WIDEST) / _WIDEST
    return f'<meter min="0" max="100" low="33" high="50" optimum="100" value="{percent:.0f}"></meter>'
