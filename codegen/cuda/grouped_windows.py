# SPDX-License-Identifier: Apache-2.0
"""Convolutions in groups of few channels: a plan for ``windows.cuh`` with the kernel's own epilogue in it."""

from __future__ import annotations

from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.passes.families.gemm.schedule.windows import WindowsProblem, shared_bytes
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Store
from fusec.tile.templates import GroupedConvolution

_MOST_THREADS = 512
"""Of an SM: each has 128 registers, which hold a channel's weights and sums."""
_OWN_NAMES = """Plan Type n y x k row column values staged output eight image weight finish send kImages kHeight kWidth
kImageStep kRowStep kPixelStep kOutHeight kOutWidth kSizeY kSizeX kStrideY kStrideX kDilationY kDilationX kLowY kLowX
kGroups kDepth kColumns kRows kWide kTogether kDown kWarps kStaged grouped_windows depthwise_windows"""


def emit_grouped_windows(kernel: Kernel, template: GroupedConvolution, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++ for a target. LoweringError for operands and results at positions that are loaded."""
    return _Emitter(kernel, template, target).emit()


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, template: GroupedConvolution, target: GpuTarget) -> None:
        self.template, self.target = template, target
        t = template
        accumulators = {t.total.buffer: "values[0][{}]"}
        super().__init__(kernel, _OWN_NAMES.split(), t.row, t.column, t.stores, accumulators)
        self.symbols[t.depth.var] = "k"

    def emit(self) -> KernelSource:
        t, kernel = self.template, self.kernel
        leaving = [self.leaves_in_eights(s) for s in self.stores]
        self._constants(sum(leaving))
        self.members()
        self._image()
        self._weight()
        self._finish(leaving)
        self._send([s for s, leaves in zip(self.stores, leaving, strict=True) if leaves])
        threads = 32 * kernel.warps
        rows, wide = t.windows.axes
        n = t.windows.groups, t.windows.channels, t.columns
        parts = t.windows.groups * t.windows.channels // t.tile.channels
        blocks = -(-rows.count // t.tile.rows) * -(-wide.count // t.tile.wide) * parts * t.windows.batch
        problem = WindowsProblem(t.windows.batch, rows, wide, *n, 0, 0)
        shared = shared_bytes(problem, t.tile)
        body = "depthwise_windows" if t.windows.channels == 1 else "grouped_windows"
        together = min(_MOST_THREADS // threads, max(1, self.target.shared_memory // shared))
        return KernelSource(
            kernel.name,
            self.text("windows.cuh", body, threads, together=together),
            tuple(x.dtype.name for x in kernel.parameters),
            (blocks, 1, 1),
            threads,
            shared,
            aligned=True,
            overlaps=self.target.overlaps,
        )

    def _constants(self, staged: int) -> None:
        line, t, windows = self.writer.line, self.template, self.template.windows
        rows, wide = windows.axes
        line(f"using Type = {memory_type(t.image.dtype)};")
        line(f"static constexpr int kImages = {windows.batch}, kHeight = {rows.extent}, kWidth = {wide.extent};")
        steps = f"kImageStep = {windows.batch_step}, kRowStep = {rows.step}, kPixelStep = {wide.step}"
        line(f"static constexpr int {steps};")
        line(f"static constexpr int kOutHeight = {rows.count}, kOutWidth = {wide.count};")
        for axis, name in ((rows, "Y"), (wide, "X")):
            numbers = {"Size": axis.size, "Stride": axis.stride, "Dilation": axis.dilation, "Low": axis.low}
            line(f"static constexpr int {', '.join(f'k{k}{name} = {v}' for k, v in numbers.items())};")
        groups = f"kGroups = {windows.groups}, kDepth = {windows.channels}, kColumns = {t.columns}"
        line(f"static constexpr int {groups};")
        tile = f"kRows = {t.tile.rows}, kWide = {t.tile.wide}, kTogether = {t.tile.channels}, kDown = {t.tile.down}"
        line(f"static constexpr int {tile};")
        line(f"static constexpr int kWarps = {self.kernel.warps}, kStaged = {staged};")
        line()

    def _image(self) -> None:
        name = self.buffers[self.template.windows.memory.buffer]
        self.writer.line()
        with self.writer.block("const Type* image(int n, int y, int x) const"):
            self.writer.line(f"return {name} + (n * kImageStep + y * kRowStep + x * kPixelStep);")

    def _weight(self) -> None:
        """An element of the right operand, read or computed."""
        self.writer.line()
        with self.writer.block("Type weight(int k, int column) const"):
            self.operand(self.template.weight, self.template.image.dtype, self.index)

    def _finish(self, leaving: list[bool]) -> None:
        head = f"int row, int column, const float (&values)[1][2], u32 (&staged)[{max(sum(leaving), 1)}]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self.results(leaving)

    def _send(self, stores: list[Store]) -> None:
        self.writer.line()
        with self.writer.block("void send(int output, int row, int column, const Vec<u32, 4>& eight) const"):
            self.send_eights(stores)
