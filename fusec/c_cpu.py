# SPDX-License-Identifier: Apache-2.0
"""The C code of functions for CPUs: kernels stand in shared objects, under TVM's calling convention, a plain C one: an
array of tagged 64-bit values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from fusec.c_pieces import ALIGNMENT, Code, Piece, name_of, sums
from fusec.c_text import CPU, TILES
from fusec.compiled import CompiledFunction, Variant
from fusec.errors import ArtifactError
from fusec.ir.index import Symbol
from fusec.runtime.isa import required_features
from fusec.runtime.program import Launch, Pack
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import uses_tiles

_SHARED = b"fusec-so"


class CpuPiece(Piece):
    """A variant whose kernels stand in a shared object, under TVM's calling convention."""

    code: bytes

    def prepare(self) -> None:
        """The shared object."""
        self.code = _shared_object(self.compiled, self.variant)

    def take_scratch(self) -> Iterator[str]:
        """From the heap."""
        yield f"char *scratch = (char *)aligned_alloc({ALIGNMENT}, scratch_bytes + {ALIGNMENT});"
        yield "if (scratch == NULL) return FUSEC_NO_MEMORY;"
        yield "fusec_any result = {0, 0, 0};"
        yield "(void)result;"

    def give_scratch(self) -> str:
        """To the heap."""
        return "free(scratch);"

    def launch(self, step: Launch | Pack, addresses: Sequence[str], sizes: Sequence[Symbol]) -> Iterator[str]:
        """A call of a C function."""
        given = [*addresses, *map(name_of, sizes)]
        values = ", ".join(f"fusec_int({value})" for value in given)
        kernel = f"model->kernels_{self.number}[{self.kernels.index(step.kernel)}]"
        yield f"{{ const fusec_any a[] = {{{values}}}; /* {step.kernel} */"
        yield f"  if ({kernel}(NULL, a, {len(given)}, &result) != 0) status = FUSEC_FAILED; }}"


def _shared_object(compiled: CompiledFunction, variant: Variant) -> bytes:
    data = variant.executable.module.to_bytes()
    if not data.startswith(_SHARED):
        raise ArtifactError(f"{compiled.name} has no shared object: it launches nothing, or no linker is installed")
    return data[len(_SHARED) + 32 :]


class CpuCode(Code):
    """Shared objects, one for each piece."""

    @cached_property
    def pieces(self) -> Sequence[CpuPiece]:
        """One for each variant."""
        variants = enumerate(self.compiled.complete)
        return [CpuPiece(self.compiled, variant, self.name, k, self.weights) for k, variant in variants]

    def common(self) -> Iterator[str]:
        """What opens shared objects, and what asks for AMX where it is used."""
        yield CPU
        if self._uses_tiles:
            yield TILES

    def fields(self) -> str:
        """Each piece's shared object and its kernels."""
        return "".join(
            f"  void *module_{p.number};\n  fusec_kernel kernels_{p.number}[{max(len(p.kernels), 1)}];\n"
            for p in self.pieces
        )

    def files(self) -> dict[str, bytes]:
        """The shared objects, and the weights."""
        return {**{f"{self.name}_{p.number}.so": p.code for p in self.pieces}, **super().files()}

    @property
    def _uses_tiles(self) -> bool:
        return any(uses_tiles(kernel.body) for piece in self.pieces for kernel in piece.program.kernels)

    @property
    def _features(self) -> str:
        """What the CPU must have; of AMX, Linux knows more than the list does."""
        found = required_features(cpu_target(self.pieces[0].program.target))
        return " ".join(feature for feature in found if not feature.startswith("amx"))

    def opening(self) -> str:
        """Checks the machine, loads the files."""
        name, pieces = self.name, self.pieces
        lines = [f'  if (!fusec_has("{self._features}")) return FUSEC_WRONG_CPU;']
        if self._uses_tiles:
            lines.append("  if (!fusec_allow_tiles()) return FUSEC_NO_TILES;")
        asked = "\n".join(lines)
        lines = []
        for p in pieces:
            listed = ", ".join(f'"__tvm_ffi_{kernel}"' for kernel in p.kernels)
            lines += [
                f'  status = fusec_check(folder, "{name}_{p.number}.so", {sums(p.code)});',
                "  if (status != FUSEC_OK) return status;",
                f"  static const char *const names_{p.number}[] = {{{listed}}};",
                f'  model->module_{p.number} = fusec_open(folder, "{name}_{p.number}.so", names_{p.number}, '
                f"{len(p.kernels)}, model->kernels_{p.number});",
                f"  if (model->module_{p.number} == NULL) return FUSEC_NO_FILE;",
            ]
        body = "\n".join(lines)
        closing = "".join(
            f"  if (model->module_{p.number} != NULL) dlclose(model->module_{p.number});\n" for p in pieces
        )
        return (
            f"/* Loads the files beside this header: FUSEC_OK; FUSEC_NO_FILE where one is missing;\n"
            f" * FUSEC_DAMAGED where one is another; FUSEC_WRONG_CPU or FUSEC_NO_TILES where this machine can't run\n"
            f" * them. fusec_strerror says it in words. */\n"
            f"static inline int {name}_open({name}_model *model, const char *folder) {{\n"
            f"  memset(model, 0, sizeof *model);\n{asked}\n"
            f'  int status = fusec_read(folder, "{name}.weights", {sums(self.weights.data)}, &model->weights);\n'
            f"  if (status != FUSEC_OK) return status;\n{body}\n  return FUSEC_OK;\n}}\n\n"
            f"static inline void {name}_close({name}_model *model) {{\n  free(model->weights);\n{closing}"
            f"  memset(model, 0, sizeof *model);\n}}\n"
        )
