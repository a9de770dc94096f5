# SPDX-License-Identifier: Apache-2.0
"""The C code of functions for NVIDIA GPUs: kernels are cubins, loaded and launched through the CUDA driver.

A launch gives what :mod:`fusec.runtime.launch` gives: its own code where an address is no multiple of 16, parameters,
tensor maps, numbers of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from fusec.c_gpu_text import GPU
from fusec.c_pieces import Code, Piece, Weights, name_of, spell_c, sums
from fusec.codegen.launches import Launched
from fusec.compiled import CompiledFunction
from fusec.ir.index import Expr, Index, Symbol
from fusec.ir.indexing import substitute
from fusec.runtime.host import HostExecutable
from fusec.runtime.launch import DeviceKernel, TensorMap
from fusec.runtime.memory import DEVICE_ALIGNMENT
from fusec.runtime.program import Launch, Pack, Program
from fusec.target.gpu import gpu_target


class GpuPiece(Piece):
    """A variant whose kernels are launched on a stream."""

    alignment = DEVICE_ALIGNMENT
    stream = "stream"
    checks_indices = False

    def prepare(self) -> None:
        """Every kernel, for addresses that are multiples of 16, and for others."""
        executable = self.variant.executable
        if isinstance(executable, HostExecutable):
            raise self.refuse("it takes arrays in host memory to a GPU; compile a PyTorch function for the GPU")
        if gpu_target(self.program.target).backend != "cuda":
            raise self.refuse(f"{self.program.target} is no GPU of the CUDA driver")
        if executable.packed or any(isinstance(step, Pack) for step in self.program.steps):
            raise self.refuse("it packs weights on the GPU")
        module = executable.module
        if not isinstance(module, Launched):
            raise self.refuse("it launches nothing")
        complete = getattr(module, "complete", None)
        module = module if complete is None else complete()
        self.codes: dict[str, list[DeviceKernel]] = {}
        for name in self.kernels:
            both = [module.kernel(name, aligned) for aligned in (True, False)]
            self.codes[name] = list(dict.fromkeys(kernel for kernel in both if kernel is not None))
        self.loaded = [kernel for codes in self.codes.values() for kernel in codes]

    def more_scratch(self) -> Iterator[str]:
        """Memory that kernels need for themselves, each launch its own."""
        self._numbers = {id(step): number for number, step in enumerate(self.program.steps)}
        for number, step in enumerate(self.program.steps):
            if not isinstance(step, Launch):
                continue
            size = max((kernel.scratch for kernel in self.codes[step.kernel]), default=0)
            if size:
                yield f"const int64_t own{number} = scratch_bytes;"
                yield self.rounded_up(str(size))

    def take_scratch(self) -> Iterator[str]:
        """From the GPU, in the stream's order."""
        yield "const fusec_gpu *gpu = &model->gpu;"
        yield "char *scratch = NULL;"
        yield "int entered = 0;"
        yield "status = fusec_enter(gpu, &entered);"
        yield "if (status != FUSEC_OK) return status;"
        yield "status = fusec_take(gpu, &scratch, scratch_bytes, stream);"
        yield "if (status != FUSEC_OK) goto done;"

    def give_scratch(self) -> str:
        """To the GPU, in the stream's order; what failed before is told."""
        return "status = fusec_leave(gpu, scratch, stream, entered, status);"

    def launch(self, step: Launch | Pack, addresses: Sequence[str], sizes: Sequence[Symbol]) -> Iterator[str]:
        """A launch by the driver; none where there are no blocks."""
        codes = self.codes[step.kernel]
        if not codes:
            return
        given = [*addresses, *map(name_of, sizes)]
        values = ", ".join(f"(uint64_t)({value})" for value in given)
        own = (
            f", (uint64_t)(int64_t)(scratch + own{self._numbers[id(step)]})"
            if any(kernel.scratch for kernel in codes)
            else ""
        )
        yield f"{{ uint64_t a[] = {{{values}{own}}}; /* {step.kernel} */"
        if len(codes) > 1:
            bits = " | ".join(f"a[{k}]" for k in range(len(addresses)))
            yield f"  if ((({bits}) & 15) == 0) {{"
            yield from self._one(codes[0], sizes)
            yield "  } else {"
            yield from self._one(codes[1], sizes)
            yield "  } }"
        else:
            yield from self._one(codes[0], sizes)
            yield "}"

    def _one(self, kernel: DeviceKernel, sizes: Sequence[Symbol]) -> Iterator[str]:
        known: dict[Symbol, Index] = dict(zip(kernel.sizes, sizes, strict=True))
        x, y, z = (spell_c(substitute(n, known)) for n in kernel.grid)
        pointers = []
        for k, parameter in enumerate(kernel.parameters):
            match parameter:
                case int():
                    pointers.append(f"&a[{parameter}]")
                case bytes():
                    yield f"    static const unsigned char b{k}[] = {{{', '.join(map(str, parameter))}}};"
                    pointers.append(f"(void *)b{k}")
                case TensorMap():
                    yield from _encode(k, parameter, known)
                    pointers.append(f"m{k}")
                case Expr():
                    yield f"    int64_t e{k} = {_spelled(parameter, known)};"
                    pointers.append(f"&e{k}")
        yield f"    void *p[] = {{{', '.join(pointers) or 'NULL'}}};"
        function = f"model->kernels_{self.number}[{self.loaded.index(kernel)}]"
        launch = f"{x}, {y}, {z}, {kernel.threads}, {kernel.shared}, {int(kernel.overlaps)}"
        yield f"    if (status == FUSEC_OK) status = fusec_launch(gpu, {function}, {launch}, stream, p);"


def _encode(number: int, t: TensorMap, known: Mapping[Symbol, Index]) -> Iterator[str]:
    """Lines that make a parameter of tensor maps. ``known``: the kernel's sizes as the function names them."""
    arrays: dict[str, tuple[str, Sequence[Index]]] = {
        "sizes": ("uint64_t", t.sizes),
        "strides": ("uint64_t", t.strides),
        "box": ("uint32_t", t.box),
        "steps": ("uint32_t", t.steps if t.low else (1,) * len(t.sizes)),
        **({"low": ("int", t.low), "high": ("int", t.high)} if t.low else {}),
    }
    yield f"    fusec_map m{number}[{t.count}];"
    for name, (kind, values) in arrays.items():
        constant = "static const" if all(isinstance(n, int) for n in values) else "const"
        spelled = ", ".join(str(n) if isinstance(n, int) else f"({kind})({_spelled(n, known)})" for n in values)
        yield f"    {constant} {kind} {name}{number}[] = {{{spelled or '0'}}};"
    windows = f"low{number}, high{number}" if t.low else "NULL, NULL"
    yield f"    for (int i = 0; i < {t.count} && status == FUSEC_OK; i++)"
    yield (
        f"      status = fusec_encode(gpu, &m{number}[i], {t.element}, {len(t.sizes)}, a[{t.argument}] + "
        f"(uint64_t)i * {t.apart}, sizes{number}, strides{number}, box{number}, steps{number}, {windows}, "
        f"{t.swizzle}, {t.promotion}, {t.fill});"
    )


def _spelled(n: Index, known: Mapping[Symbol, Index]) -> str:
    return spell_c(substitute(n, known))


class GpuCode(Code):
    """Cubins, in one file."""

    def __init__(self, compiled: CompiledFunction, name: str) -> None:
        super().__init__(compiled, name)
        self._cubins = Weights()

    @cached_property
    def pieces(self) -> Sequence[GpuPiece]:
        """One for each variant."""
        variants = enumerate(self.compiled.complete)
        return [GpuPiece(self.compiled, variant, self.name, k, self.weights) for k, variant in variants]

    @cached_property
    def _offsets(self) -> list[list[int]]:
        """Where each kernel's code is in the file, by piece."""
        return [[self._cubins.add(kernel.code) for kernel in piece.loaded] for piece in self.pieces]

    def common(self) -> Iterator[str]:
        """What calls the driver."""
        yield GPU

    def fields(self) -> str:
        """The driver, and each piece's kernels and their modules."""
        lines = ["  fusec_gpu gpu;"]
        for piece in self.pieces:
            room = max(len(piece.loaded), 1)
            lines.append(f"  void *modules_{piece.number}[{room}], *kernels_{piece.number}[{room}];")
        return "".join(f"{line}\n" for line in lines)

    def files(self) -> dict[str, bytes]:
        """The cubins, and the weights."""
        assert self._offsets
        return {f"{self.name}.cubins": self._cubins.data, **super().files()}

    def opening(self) -> str:
        """Finds the GPU, checks and loads the files."""
        name, arch = self.name, gpu_target(self._program.target).arch
        tables, loads, unloads = [], [], []
        for piece, offsets in zip(self.pieces, self._offsets, strict=True):
            k, count = piece.number, len(offsets)
            unloads.append(f"  fusec_unload(&model->gpu, model->modules_{k}, {count});")
            if not count:
                continue
            records = (
                f'{{{offset}, {kernel.shared}, "{kernel.name}"}}'
                for kernel, offset in zip(piece.loaded, offsets, strict=True)
            )
            tables.append(f"  static const fusec_code code_{k}[] = {{{', '.join(records)}}};")
            loads.append(
                f"  if (status == FUSEC_OK) status = fusec_load(&model->gpu, cubins, code_{k}, {count}, "
                f"model->modules_{k}, model->kernels_{k});"
            )
        lines = [
            "  memset(model, 0, sizeof *model);",
            *tables,
            "  char *cubins = NULL, *weights = NULL;",
            f'  int status = fusec_read(folder, "{name}.cubins", {sums(self._cubins.data)}, &cubins);',
            f'  if (status == FUSEC_OK) status = fusec_read(folder, "{name}.weights", {sums(self.weights.data)}, '
            "&weights);",
            f"  if (status == FUSEC_OK) status = fusec_find(&model->gpu, {arch});",
            *loads,
            f"  if (status == FUSEC_OK) status = fusec_send(&model->gpu, weights, {len(self.weights.data)}, "
            "&model->weights);",
            "  free(cubins);",
            "  free(weights);",
            f"  if (status != FUSEC_OK) {name}_close(model);",
            "  return status;",
        ]
        closing = ["  fusec_drop(&model->gpu, model->weights);", *unloads, "  fusec_lose(&model->gpu);"]
        return (
            f"static inline void {name}_close({name}_model *model) {{\n" + "\n".join(closing) + "\n"
            f"  memset(model, 0, sizeof *model);\n}}\n\n"
            "/* Loads the files beside this header onto the GPU whose context the thread has, the first where it has\n"
            " * none: FUSEC_OK; FUSEC_NO_FILE where one is missing; FUSEC_DAMAGED where one is another; FUSEC_NO_GPU\n"
            " * or FUSEC_WRONG_GPU where this machine can't run them. fusec_strerror says it in words,\n"
            " * fusec_gpu_error what the driver said. */\n"
            f"static inline int {name}_open({name}_model *model, const char *folder) {{\n" + "\n".join(lines) + "\n}\n"
        )

    @property
    def _program(self) -> Program:
        return self.pieces[0].program
