"""The roofline of a program as SVG (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fusec.errors import FusecError
from fusec.runtime.program import KernelReport
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


def roofline(target: str, reports: Sequence[KernelReport], seconds: Mapping[str, float] | None = None) -> str:
    """An ``svg`` element: each kernel by its operations a byte and its rate, below the machine's roofs.

    The rate is the measured one where ``seconds`` has the kernel's time, else the predicted one. Both axes are
    logarithmic. A ring marks what each kernel could reach by the cost model's limit. Empty where no kernel computes
    anything, or the target is not known here.
    """
    shown = [r for r in reports if r.flops > 0 and r.bytes > 0 and r.predicted > 0]
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
    for name, rate in rates:
        knee = rate / bandwidth
        start = max(plot.low[0], plot.low[1] / bandwidth)
        points = [(start, start * bandwidth), (knee, rate), (plot.high[0], rate)]
        path = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in points)
        lines.append(f'<polyline class="roof" points="{path}"/>')
        lines.append(_text(plot.x(plot.high[0]) - 4, plot.y(rate) - 5, f"{name} {amount(rate)}FLOP/s", "end"))
    lines.append(_text(_LEFT + 6, _TOP + 12, f"memory {amount(bandwidth)}B/s", "start"))
    for report, (x, y, limit) in zip(shown, shown_points, strict=True):
        told = "measured" if report.kernel in known else "predicted"
        hint = f"{report.kernel}: {x:.3g} FLOP/B, {told} {amount(y)}FLOP/s, limit {amount(limit)}FLOP/s"
        lines.append(f'<g class="kernel {escape(report.kind)}"><title>{escape(hint)}</title>')
        if limit:
            lines.append(f'<circle class="limit" cx="{plot.x(x):.1f}" cy="{plot.y(limit):.1f}" r="6"/>')
        lines.append(f'<circle cx="{plot.x(x):.1f}" cy="{plot.y(y):.1f}" r="4.5"/>')
        lines.append(_text(plot.x(x) + 9, plot.y(y) + 4, report.kernel, "start") + "</g>")
    return "\n".join([*lines, "</svg>"])


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
        lines.append(_text(_WIDTH / 2, _HEIGHT - 12, "operations a byte of memory traffic", "middle"))
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
