# SPDX-License-Identifier: Apache-2.0
"""What :func:`fusec.compile` and :func:`fusec.load` return, with all that writes it down."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fusec.compiled import CompiledFunction, Variant
from fusec.options import check_path, check_switch
from fusec.packages import needing_compiler


class Compiled(CompiledFunction):
    """A function compiled ahead of its calls. Safe to call from many threads."""

    def save(self, path: str | PathLike[str], *, weights: bool = True) -> None:
        """Writes the compiled function to a file for :func:`fusec.load`. ArtifactError where it can't be saved.

        Without ``weights`` those that have names (a module's state, arrays in variables and attributes) are left out,
        and given to :func:`fusec.load`.
        """
        check_path("path", path)
        check_switch("weights", weights)
        with needing_compiler("saving"):  # the passes, for the texts
            from fusec.saving import save

            save(self, path, weights=weights)

    def export_c(self, folder: str | PathLike[str]) -> Path:
        """Writes a C header, weights and machine code into a folder; gives the header's path.

        ArtifactError for a function that C can't call, such as one that calls the library.
        """
        from fusec.c_export import export_c

        check_path("folder", folder, of="folder")
        return export_c(self, Path(folder))

    def explain(self, *, measure: bool = False, detail: bool = False) -> str:
        """What was fused into which kernels, and why not more. ``measure``: it is run on random arguments, and each
        kernel's time is told. ``detail``: of each of many kernels.

        ArtifactError where it is to be measured and a named dimension has no range.
        """
        check_switch("measure", measure)
        check_switch("detail", detail)
        with needing_compiler("explain"):
            from fusec.digest import tell_program
            from fusec.measuring import measure_steps

        steps = measure_steps(self) if measure else [None] * len(self._told())
        texts = [
            head + tell_program(variant.executable.program, variant.notes, measured=seconds, detail=detail)
            for (head, variant), seconds in zip(self._told(), steps, strict=True)
        ]
        if not texts:
            return f"{self.name} is not called yet; each set of extents is compiled at its first call\n"
        return "\n".join([*texts, *([str(self.quantization)] if self.quantization is not None else [])])

    def _told(self) -> list[tuple[str, Variant]]:
        """Each program, below the range or the extents that it serves."""
        found = []
        for variant in self._ranged:
            head = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in variant.ranges.items())
            head += f", {variant.upto} in all at most" if variant.upto is not None else ""
            found.append((f"for {head}\n", variant))
        for key, variant in sorted(self._variants.items()) if not self._ranged else ():
            extents = ", ".join(f"{name} = {n}" for name, n in zip(self._names, key, strict=True))
            found.append((f"for {extents}\n" if extents else "", variant))
        return found

    def write_report(self, path: str | PathLike[str], *, measure: bool = False) -> None:
        """Writes one HTML page that needs no network: the graph before and after fusion, what each pass changed, each
        kernel's source beside the user's lines, a roofline plot, and what was not fused and why. With ``measure`` it is
        run on random arguments, and the page has each kernel's time.

        ArtifactError where a named dimension has no range, or the page can't be written.
        """
        with needing_compiler("a report"):  # the passes, for the texts
            from fusec.page.gather import gather_compiled
            from fusec.page.write import write_page

        check_path("path", path)
        check_switch("measure", measure)
        write_page(gather_compiled(self, measure), path)
