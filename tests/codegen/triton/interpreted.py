"""Runs the graphs of :mod:`triton_cases` through Triton's interpreter, in a process of its own: chosen at import.

Each line of the standard input is the name of a case. Its answer is a line of JSON: the error against float64 and the
kernels, or what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.runtime.interpreter import TensorHandle

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from attention_cases import ATTENTION
from float8_cases import CASES as FLOAT8
from range_cases import CASES as RANGES
from range_cases import DIMS, FEW_EXTENTS, sizes
from scan_cases import CASES as SCANS
from scan_cases import CUT as CUT_SCANS
from scores_cases import SCORES
from triton_cases import CASES, CUT
from write_cases import CASES as WRITES

import fusec
import fusec.build
from fusec.codegen.triton.build import load_source, module_source
from fusec.ir.index import Index
from fusec.ir.indexing import evaluate
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.runtime.library import CHECK_INDEX
from fusec.runtime.program import Call, Launch, Program
from fusec.runtime.torch_arrays import torch_dtype
from fusec.target.gpu import gpu_target
from fusec.tile.verify import verify

_NUMPY_NAMES = {"rint": "rint", "pow": "power", "fmod": "fmod", "erfc": "", "acos": "arccos", "asin": "arcsin"}


class Libdevice:
    """CUDA's device functions in NumPy, for the interpreter, which has none."""

    def widen(self, x: Any) -> Any:
        """Of memory's bf16."""
        return x.to(tl.float32)

    def to_f8e4m3(self, x: Any) -> Any:
        """As the device's instruction, and the code around it, round."""
        found = x.handle.data.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        return tl.tensor(TensorHandle(found, tl.uint8), tl.block_type(tl.uint8, list(found.shape)))

    def begin(self) -> None:
        """Kernels run one after another here."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, _NUMPY_NAMES.get(name, name))

        def call(*args: Any) -> Any:
            tensors = [a for a in args if isinstance(a, tl.tensor)]
            like = tensors[0]
            data = [a.handle.data if isinstance(a, tl.tensor) else a for a in args]
            result = np.asarray(function(*data), like.handle.data.dtype)
            return tl.tensor(TensorHandle(result, like.handle.dtype), like.type)

        return call


def _patch_interpreter() -> None:
    """Products of bf16, which it keeps as integers, loops over its scalars, which NumPy has stopped to convert, and
    atomics, which go through a block that is broadcast as if it lay in memory.

    And most of its time: each sum of int32 is made a second time in int64 to see whether it fits, which it does at
    these extents, and each call of a function by a kernel wraps the language in one more layer, for good.
    """
    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot
    cast, atomic = interpreter.InterpreterBuilder.cast_impl, interpreter.InterpreterBuilder.create_atomic_rmw

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def cast_impl(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        """To bf16 by rounding, as the device does; the interpreter cuts digits off."""
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return TensorHandle(src.data.astype(ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16)
        return cast(self, src, dst_type)

    def create_dot(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return dot(self, widened(a), widened(b), *rest)

    def create_atomic_rmw(self: Any, op: Any, *blocks: Any) -> TensorHandle:
        *blocks, order, scope = blocks
        laid_out = [TensorHandle(np.ascontiguousarray(b.data), b.dtype) for b in blocks]
        return atomic(self, op, *laid_out, order, scope)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__.startswith("fusec_triton_"):  # it sees the language that the kernel sees
            return self.rewrite()(*args, **kwargs)
        scope = interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        finally:
            scope.restore()

    interpreter._patch_lang_tensor = patch_tensor
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.cast_impl = cast_impl
    interpreter.InterpreterBuilder.create_atomic_rmw = create_atomic_rmw
    interpreter.ReduceOps.generic_reduce = _reduce_by_halves
    interpreter.ScanOps.generic_scan = _scan_by_steps
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.InterpretedFunction.__call__ = call


def _reduce_by_halves(self: Any, operands: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """A reduction by a function of the kernel: all of a block's points at once, where Triton's own goes one by one."""
    (x,) = operands
    part = np.moveaxis(x.handle.data, self.axis, 0)
    while len(part) > 1:  # the extents of a block are powers of two
        first, second = (self.to_tensor(half, x.dtype) for half in np.split(part, 2))
        part = self.combine_fn.fn(first, second).handle.data
    return [self.to_tensor(np.expand_dims(part[0], self.axis) if self.keep_dims else part[0], x.dtype)]


def _scan_by_steps(self: Any, operands: Any) -> list[tl.tensor]:
    """A scan by a function of the kernel: a block's points combined with those 1, 2, 4, ... before them."""
    dtypes = [x.dtype for x in operands]
    found, step = [np.moveaxis(x.handle.data, self.axis, 0) for x in operands], 1

    def tensors(parts: list[Any]) -> list[Any]:
        return [self.to_tensor(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)]

    while step < len(found[0]):
        made = self.combine_fn.fn(*tensors([np.roll(part, step, 0) for part in found]), *tensors(found))
        made = made if isinstance(made, tuple) else (made,)
        found = [np.concatenate([part[:step], new.handle.data[step:]]) for part, new in zip(found, made, strict=True)]
        step *= 2
    return tensors([np.moveaxis(part, 0, self.axis) for part in found])


def inputs_of(graph: Any, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for value in graph.inputs:
        kind, shape = value.type.dtype, value.type.static_shape
        if kind.is_float or kind.kind == "float8":
            made.append(rng.standard_normal(shape).astype(kind.numpy))
        elif kind.name == "bool":
            made.append(rng.random(shape) > 0.3)
        else:
            made.append(rng.integers(0, 5, shape).astype(kind.numpy))
    return made


def to_torch(array: np.ndarray[Any, Any], dtype: Any, strides: tuple[int, ...]) -> torch.Tensor:
    if dtype.kind == "float8":
        source = torch.from_numpy(array.view(np.uint8)).view(torch_dtype(dtype))
    else:
        source = torch.from_numpy(array.astype(np.float64) if dtype.is_float else array).to(torch_dtype(dtype))
    if not array.size:
        return source
    memory = torch.empty_strided(array.shape, strides, dtype=source.dtype)
    return memory.copy_(source)


def _of_bytes(t: torch.Tensor) -> torch.Tensor:
    """A tensor as kernels take it: numbers of 8 bits as these bits."""
    return t.view(torch.uint8) if t.is_floating_point() and t.itemsize == 1 else t


def run(program: Program, arrays: list[torch.Tensor], **extents: int) -> list[torch.Tensor]:
    gpu = gpu_target(program.target)
    namespace = load_source(module_source(program.kernels, gpu), interpreted=Libdevice())
    tensors: dict[int, torch.Tensor] = {slot: arrays[k] for k, slot in enumerate(program.inputs)}

    def numbers(*dims: Index) -> list[int]:
        return [evaluate(n, extents) for n in dims]

    def tensor(slot: int) -> torch.Tensor:
        if slot not in tensors:
            record = program.slots[slot]
            shape, strides = numbers(*record.type.shape), numbers(*record.strides)
            if record.kind == "view":
                base = tensor(record.source)
                offset = base.storage_offset() + evaluate(record.offset, extents)
                tensors[slot] = base.as_strided(shape, strides, offset)
            elif record.kind == "constant":
                tensors[slot] = torch.full(shape, record.value, dtype=torch_dtype(record.type.dtype))
            else:
                tensors[slot] = torch.empty_strided(shape, strides, dtype=torch_dtype(record.type.dtype))
                tensors[slot].fill_(float("nan") if record.type.dtype.is_float else 77 % 2)
        return tensors[slot]

    for step in program.steps:
        if isinstance(step, Call) and step.attributes.target == CHECK_INDEX:
            continue
        if isinstance(step, Call):
            raise AssertionError(f"a library call: {step.attributes.target} {step.attributes.reason}")
        assert isinstance(step, Launch)
        taken = next(k.sizes for k in program.kernels if k.name == step.kernel)
        namespace.launch(step.kernel, [_of_bytes(tensor(slot)) for slot in step.arguments], numbers(*taken))
    return [tensor(slot) for slot in program.outputs]


@dataclass
class With(GpuSelector):
    """Lowers with one schedule, or ``whole``: with the best of each group's own, never in pieces."""

    schedule: GpuSchedule | None = None
    whole: bool = False

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if self.whole:
            return lower_with(context, self.candidates(context)[0])
        return super().lower(context) if self.schedule is None else lower_with(context, self.schedule)


def error_of(text: str, schedule: GpuSchedule | None = None, *, beside_eager: bool = False) -> tuple[float, str]:
    """The largest error relative to 1 and the value; ``beside_eager``: of groups whole, in units of the largest error
    in the graph's own dtypes."""
    graph = parse(text)
    card = gpu_target("cuda:sm_90")
    selector = With(card, calls=False, schedule=schedule, whole=beside_eager)
    program = lower(graph, "cuda:sm_90", check=True, selector=selector).program
    for kernel in program.kernels:
        verify(kernel)
    given = inputs_of(graph)
    strides = [program.slots[slot].strides for slot in program.inputs]
    tensors = [to_torch(a, v.type.dtype, s) for a, v, s in zip(given, graph.inputs, strides, strict=True)]
    found = run(program, tensors)
    worst = 0.0
    eager = interpret(graph, given)
    for output, wanted, own in zip(found, interpret(graph, given, float64=True), eager, strict=True):
        got = output.double().numpy() if output.dtype.is_floating_point else output.numpy().astype(np.float64)
        assert got.shape == wanted.shape, (got.shape, wanted.shape)
        wanted = np.asarray(wanted, np.float64)
        assert (np.isnan(got) == np.isnan(wanted)).all(), "NaN where there is none, or the reverse"
        if beside_eager:
            worst = max(worst, float(np.abs(got - wanted).max() / np.abs(own.astype(np.float64) - wanted).max()))
            continue
        worst = max(worst, float(np.nanmax(np.abs(got - wanted) / (1 + np.abs(wanted)), initial=0.0)))
    return worst, "+".join(r.kind for r in program.reports)


def ranged_error(name: str) -> tuple[float, str]:
    """The worst error of one function's programs for ranges, over their extents, and their kernels."""
    torch.manual_seed(0)
    f, shapes = RANGES[name]
    specs = [fusec.TensorSpec(shape, "bfloat16") for shape in shapes]
    made = fusec.compile(f, *specs, dims=DIMS, target="cuda:sm_90", cache=False)
    worst, kinds = 0.0, set()
    for b, s in FEW_EXTENTS:
        given = [torch.randn(shape).to(torch.bfloat16) for shape in sizes(shapes, b, s)]
        program = made.specialised(
            {name: n for name, n in (("B", b), ("S", s)) if name in made.ranges}
        ).executable.program
        kinds.add("+".join(k.kind for k in program.kernels))
        (found,) = run(program, given, B=b, S=s)
        wanted = f(*(t.double() for t in given))
        assert found.shape == wanted.shape, (found.shape, wanted.shape)
        worst = max(worst, float(((found.double() - wanted).abs() / (1 + wanted.abs())).max()))
    return worst, " ".join(sorted(kinds))


TEXTS = CASES | WRITES | SCANS | FLOAT8 | {name: case.text() for name, case in {**ATTENTION, **SCORES}.items()}
WITH_SCHEDULE = CUT | CUT_SCANS


def result_of(name: str) -> tuple[float, str] | str:
    """The error and the kernels of a case, or what went wrong."""
    try:
        if name.endswith(", ranges"):
            return ranged_error(name.removesuffix(", ranges"))
        if name in TEXTS:
            return error_of(TEXTS[name], beside_eager=name in SCORES)
        return error_of(*WITH_SCHEDULE[name])
    except Exception:
        return traceback.format_exc(limit=-6)


if __name__ == "__main__":
    _patch_interpreter()
    fusec.build.compile_module = lambda program: None
    answers, sys.stdout = sys.stdout, sys.stderr  # what else prints is no answer
    for line in sys.stdin:
        print(json.dumps(result_of(line.rstrip("\n"))), file=answers, flush=True)
