# SPDX-License-Identifier: Apache-2.0
"""A function's variants: what is compiled ahead of its calls, for one set of extents or for ranges of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fusec.ahead import Conditions, Piece, Ranges, in_sizes, pieces
from fusec.build import Options, build
from fusec.compiled import Variant, WeightNames, argument_of
from fusec.errors import TargetError
from fusec.frontend.capture import Capture, Library, ReferenceSource, frozen
from fusec.frontend.generalise import Bindings
from fusec.frontend.structures import CallSpec
from fusec.ir.index import symbol
from fusec.ir.types import Dim, dtype_of
from fusec.runtime.executable import Executable
from fusec.specs import TensorSpec, example


@dataclass(frozen=True)
class Variants:
    """Compiles them. ``capture`` runs the function on arguments; ``specs`` are the array leaves of ``call``.

    device: the GPU that all arrays are on, and captures are for; None for a CPU. freeze: weights are copied as they
    are, once for all variants. graph: kernels are replayed as a CUDA graph.
    """

    function: Callable[..., Any]
    capture: Callable[[tuple[Any, ...], dict[str, Any]], Capture]
    library: Library
    call: CallSpec
    specs: list[TensorSpec]
    options: Options
    device: str | None
    freeze: bool
    graph: bool
    _weights: dict[tuple[object, ...], Any] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> list[TensorSpec]:
        """The specs, on the device."""
        return self.specs if self.device is None else [replace(spec, device=self.device) for spec in self.specs]

    def at(self, bindings: Bindings) -> Variant:
        """For these extents of the named dimensions."""
        exact = {name: (n, n) for name, n in bindings.items()}
        capture = self._capture_at(bindings)
        return self._variant(Piece(exact, capture.graph, capture))

    def over(self, ranges: Ranges) -> list[Variant]:
        """For all extents in these ranges. TargetError where the device takes none."""
        if self.library != "torch" and any(spec.device != "cpu" for spec in self.inputs):
            raise TargetError("ranges of extents on GPUs are there for PyTorch alone; give integers, or no ranges")
        found = pieces(self._capture_at, ranges, self._conditions())
        if self.device is not None:
            found = [part for piece in found for part in in_sizes(piece)]
        return [self._variant(piece) for piece in found]

    def _capture_at(self, bindings: Bindings) -> Capture:
        positional, named = self.call.restore([example(spec, bindings, self.library) for spec in self.specs])
        return self.capture(positional, named)

    def _conditions(self) -> Conditions | None:
        """What tells whether the function asks anything of extents beside the samples; None where the library can't."""
        if self.library != "torch":
            return None
        arguments = [(spec.shape, dtype_of(spec.dtype), spec.device) for spec in self.specs]

        def conditions(extents: Bindings, ranges: Ranges) -> None:
            from fusec.frontend.torch_sizes import check_conditions

            check_conditions(self.function, arguments, self.call.restore, extents, ranges)

        return conditions

    def _variant(self, piece: Piece) -> Variant:
        usual = tuple(piece.usual.items()) if piece.upto is not None else self.options.usual
        graph = frozen(piece.graph) if self.freeze else piece.graph
        executable = build(graph, self.library, replace(self.options, usual=usual)).executable
        executable = replace(executable, graph=self.graph)
        made = _variant(piece, executable, self.inputs, self._weights if self.freeze else None)
        return replace(made, names=_weight_names(self.function, piece.capture)) if self.freeze else made


def _variant(
    piece: Piece, executable: Executable, specs: list[TensorSpec], shared: dict[tuple[object, ...], Any] | None
) -> Variant:
    """``shared`` is the memory of frozen weights, None where they are fetched at each call."""
    capture = piece.capture
    if shared is not None:
        changed = {port.mutates for port in executable.program.output_ports}
        fixed = {
            k: source.fetch()
            for k, source in enumerate(capture.sources)
            if isinstance(source, ReferenceSource) and k not in changed
        }
        executable = executable.freeze(fixed, shared)
    arguments = tuple(argument_of(capture.sources[k]) for k in executable.free_inputs)
    dims: dict[str, Dim] = {name: a if a == b else symbol(name, a, b) for name, (a, b) in piece.ranges.items()}
    layouts = tuple((spec.type(dims), spec.laid_out(dims)) for spec in specs)
    text = str(piece.graph if shared is None else frozen(piece.graph))
    return Variant(executable, arguments, layouts, capture.rebuild, text, capture.notes, piece.ranges, upto=piece.upto)


_CONSTANT = re.compile(r"constant\d*")
"""What the frontends call an array that only the function's own code holds."""


def _weight_names(function: Callable[..., Any], capture: Capture) -> WeightNames:
    """What may be left out of a file, by graph input: a module's state, or what has a path in the user's code."""
    sources = [(k, s) for k, s in enumerate(capture.sources) if isinstance(s, ReferenceSource)]
    nn = sys.modules.get("torch.nn")
    owner = getattr(function, "__self__", function)
    if nn is None or not isinstance(owner, nn.Module):
        return WeightNames({k: (s.path,) for k, s in sources if not _CONSTANT.fullmatch(s.path)})
    state = owner.state_dict(keep_vars=True)
    found: dict[int, tuple[str, ...]] = {}
    for k, source in sources:
        tensor = source.fetch()
        names = tuple(name for name, held in state.items() if held is tensor)
        if names:
            found[k] = names
    return WeightNames(found, frozenset(state).difference(*found.values()))
