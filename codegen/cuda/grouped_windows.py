# SPDX-License-Identifier: Apache-2.0
"""Convolutions in groups of few channels: a plan for ``windows.cuh`` with the kernel's own epilogue in it."""

from __future__ import annotations

from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.scalars import Scalars, bare, stored
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import is_widened, memory_type
from fusec.errors import LoweringError
from fusec.ir.stepping import step_of
from fusec.passes.families.gemm.schedule.windows import WindowsProblem, shared_bytes
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Store
from fusec.tile.scalar import Load, offset_of
from fusec.tile.templates import GroupedConvolution

_EIGHT = 8
"""Neighbours of a row that leave together."""
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
        leaving = [self._leaves_in_eights(s) for s in self.stores]
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
        shared, body = (
            shared_bytes(problem, t.tile),
            "depthwise_windows" if t.windows.channels == 1 else "grouped_windows",
        )
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
        value, dtype = self.template.weight, self.template.image.dtype
        self.writer.line()
        with self.writer.block("Type weight(int k, int column) const"), self.names.scope():
            scalars = Scalars(
                self.style, self.names, lambda x: self._read(x, scalars), self.index, self.writer.line, [value]
            )
            if isinstance(value, Load) and value.dtype is dtype:
                self.writer.line(f"return {self._element(value, scalars)};")
            else:
                self.writer.line(f"return {bare(stored(scalars.value(value), value.dtype, dtype))};")

    def _read(self, load: Load, scalars: Scalars) -> str:
        text = self._element(load, scalars)
        return f"float({text})" if is_widened(load.dtype) else text

    def _element(self, load: Load, scalars: Scalars) -> str:
        if load.buffer.space != "parameter":
            raise LoweringError(f"tile {load.buffer} in a matmul's operand")
        flat = offset_of(load.buffer, load.index)
        where = bare(self.index(flat)) if flat is not None else scalars.gathered(load)
        return f"{self.buffers[load.buffer]}[{where}]"

    def _leaves_in_eights(self, s: Store) -> bool:
        """Whether eight neighbouring columns of 16-bit results are 16 bytes at a multiple of that."""
        if s.target.dtype.bits != 16 or not s.target.dtype.is_float:
            return False
        flat = offset_of(s.target, s.index)
        step = step_of(flat, self.n.var, _EIGHT) if flat is not None else None
        return step is not None and step.along == 1 and step.multiple % _EIGHT == 0

    def _finish(self, leaving: list[bool]) -> None:
        head = f"int row, int column, const float (&values)[1][2], u32 (&staged)[{max(sum(leaving), 1)}]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self.results(leaving)

    def _send(self, stores: list[Store]) -> None:
        self.writer.line()
        with self.writer.block("void send(int output, int row, int column, const Vec<u32, 4>& eight) const"):
            for number, s in enumerate(stores):
                flat = offset_of(s.target, s.index)
                assert flat is not None
                where = self.address(self.buffers[s.target], self.index(flat))
                self.writer.line(f"if (output == {number}) store(reinterpret_cast<u32*>({where}), eight);")
