# SPDX-License-Identifier: Apache-2.0
"""The roofline of a program as SVG (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fusec.digest import Alike
from fusec.errors import FusecError
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target, is_gpu

_WIDTH, _HEIGHT = 720.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 20.0, 20.0, 50.0


def roofs(target: str) -> tuple[float, list[tuple[str, float]]]:
    """Bytes a second of main memory, and the rates of arithmetic by name, operations a second."""
    if is_gpu(target):
        gpu = gpu_target(target)
        return gpu.bandwidth, [("bf16 matmuls", gpu.half_flops), ("f32 arithmetic", gpu.single_flops)]
    cpu = cpu_target(target)
    return cpu.bandwidth, [("f32 arithmetic", cpu.peak_flops())]


def roofline(target: str, groups: Sequence[Alike], seconds: Mapping[str, float] | None = None) -> str:
    """An ``svg`` element: each kernel (one for those that do the same) by its operations a byte and its rate, below the
    machine's roofs.

    The rate is the measured one where ``seconds`` has the kernel's time, else the predicted one. Both axes are
    logarithmic. A ring marks what each kernel could reach by the cost model's limit. Empty where no kernel computes
    anything, or the target is not known here.
    """
    reports = {g.reports[0].kernel: (g.reports[0], g.name) for g in groups}
    shown = [r for r, _ in reports.values() if r.flops > 0 and r.bytes > 0 and r.predicted > 0]
    try:
        bandwidth, rates = roofs(target)
    except (FusecError, ValueError):
        return ""
    if not shown:
        return ""
    known = {kernel: time for kernel, time in (seconds or {}).items() if time > 0}
    rate_of = {r.kernel: r.flops / known.get(r.kernel, r.predicted) for r in shown}
    shown_points = [(r.flops / r.bytes, rate_of[r.kernel], r.flops / r.limit if r.limit else 0.0) for r in shown]
    plot = _Plot(
        [x for x, _, _ in shown_points] + [rate / bandwidth for _, rate in rates],
        [y for _, *ys in shown_points for y in ys if y > 0] + [rate for _, rate in rates],
    )
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="roofline" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">']
    lines += plot.axes()
    labels = _Labels([(plot.x(x), plot.y(y)) for x, *ys in shown_points for y in ys if y > 0])
    for name, rate in rates:
        knee = rate / bandwidth
        start = max(plot.low[0], plot.low[1] / bandwidth)
        points = [(start, start * bandwidth), (knee, rate), (plot.high[0], rate)]
        path = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in points)
        lines.append(f'<polyline class="roof" points="{path}"/>')
        lines.append(labels.at(plot.x(plot.high[0]) - 4, plot.y(rate) - 5, f"{name} {amount(rate)}FLOP/s", "end"))
    lines.append(labels.at(_LEFT + 6, _TOP + 12, f"memory {amount(bandwidth)}B/s", "start"))
    for report, (x, y, limit) in zip(shown, shown_points, strict=True):
        told = "measured" if report.kernel in known else "predicted"
        hint = f"{report.kernel}: {x:.3g} FLOP/B, {told} {amount(y)}FLOP/s, limit {amount(limit)}FLOP/s"
        own = f'class="kernel {escape(report.kind)}" data-kernels="{escape(report.kernel)}"'
        lines.append(f"<g {own}><title>{escape(hint)}</title>")
        if limit:
            lines.append(f'<circle class="limit" cx="{plot.x(x):.1f}" cy="{plot.y(limit):.1f}" r="6"/>')
        lines.append(f'<circle cx="{plot.x(x):.1f}" cy="{plot.y(y):.1f}" r="4.5"/>')
        lines.append(labels.beside(plot.x(x), plot.y(y), reports[report.kernel][1]) + "</g>")
    return "\n".join([*lines, "</svg>"])


class _Labels:
    """Texts that cover neither each other nor the dots, which are at these places."""

    def __init__(self, dots: Sequence[tuple[float, float]]) -> None:
        self._taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in dots]

    def at(self, x: float, y: float, text: str, anchor: str) -> str:
        """A text at its place."""
        self._taken.append(_extent(x, y, text, anchor))
        return _text(x, y, text, anchor)

    def beside(self, x: float, y: float, text: str) -> str:
        """A text beside a dot: where there is room, the nearest place; none where there is no room near it."""
        for step in range(_PLACES):
            down = (step + 1) // 2 * _LINE * (1 if step % 2 else -1)
            for dx, anchor in ((9.0, "start"), (-9.0, "end")):
                left, top, right, bottom = place = _extent(x + dx, y + 4 + down, text, anchor)
                inside = left >= _LEFT and right <= _WIDTH - _RIGHT and top >= _TOP and bottom <= _HEIGHT - _BOTTOM
                if inside and not any(_meet(place, other) for other in self._taken):
                    return self.at(x + dx, y + 4 + down, text, anchor)
        return ""


_LETTER, _LINE, _PLACES = 6.8, 13.0, 13
"""A letter's width and a line's height at the plot's own size, and how many lines a label is looked for a place in."""


def _extent(x: float, y: float, text: str, anchor: str) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text."""
    width = len(text) * _LETTER
    left = x if anchor == "start" else x - width
    return left, y - _LINE + 3, left + width, y + 3


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


class _Plot:
    """From numbers to positions, by powers of ten that hold all of them."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.low = (_floor(min(xs)), _floor(min(ys)))
        self.high = (_floor(max(xs)) * 10, _floor(max(ys)) * 10)

    def x(self, value: float) -> float:
        share = math.log(value / self.low[0]) / math.log(self.high[0] / self.low[0])
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = math.log(value / self.low[1]) / math.log(self.high[1] / self.low[1])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        lines = []
        for value in _powers(self.low[0], self.high[0]):
            x = self.x(value)
            lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:g}" y2="{_HEIGHT - _BOTTOM:g}"/>')
            lines.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle"))
        for value in _powers(self.low[1], self.high[1]):
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(_text(_LEFT - 6, y + 4, amount(value), "end"))
        lines.append(_text(_WIDTH / 2, _HEIGHT - 12, "operations a byte of memory traffic (FLOP/B)", "middle"))
        middle = _HEIGHT / 2 - 15
        rotation = f'transform="rotate(-90 14 {middle:g})" text-anchor="middle"'
        lines.append(f'<text x="14" y="{middle:g}" {rotation}>operations a second (FLOP/s)</text>')
        return lines


def amount(n: float) -> str:
    """A number with a metric prefix: ``1.2 T``."""
    for prefix in ("", "k", "M", "G", "T"):
        if n < 1000:
            return f"{n:.3g} {prefix}"
        n /= 1000
    return f"{n:.3g} P"


def _floor(value: float) -> float:
    return 10.0 ** math.floor(math.log10(value))


def _powers(low: float, high: float) -> list[float]:
    return [low * 10**k for k in range(round(math.log10(high / low)) + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
