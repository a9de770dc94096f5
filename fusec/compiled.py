# SPDX-License-Identifier: Apache-2.0
"""What :func:`fusec.compile` and :func:`fusec.load` return: a function compiled ahead of its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fusec.calibrated import QuantizationReport
from fusec.errors import ArtifactError, SignatureError
from fusec.frontend.capture import ArgumentSource, Library, Rebuild
from fusec.frontend.structures import CallSpec, flatten
from fusec.ir.types import Dim, TensorType, contiguous_strides
from fusec.parameters import Parameters
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Layout
from fusec.runtime.entry import MISS, variant_entry
from fusec.runtime.executable import Executable
from fusec.specs import TensorSpec

Fetch = Callable[[], Any]

ENTRIES = 4
"""Calls told apart by their arrays' layouts for which there is code that tests for them at once."""


@dataclass(frozen=True)
class WeightNames:
    """What a function's weights are called. ``of``: by graph input, the names that one goes by, the best first.
    ``others``: names in its module's state that the graph does not read.
    """

    of: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Variant:
    """One set of extents, or ranges of them, compiled.

    ranges: the least and largest extent of each named dimension. upto: the largest product of them, None for any.
    arguments: for each free input of the executable, the number of the argument leaf, or the function that fetches it.
    layouts: type and strides of each leaf. rebuild: makes the user's result from the outputs.
    """

    executable: Executable
    arguments: tuple[int | Fetch, ...]
    layouts: tuple[tuple[TensorType, tuple[Dim, ...]], ...]
    rebuild: Rebuild
    graph_text: str
    notes: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    names: WeightNames = field(default_factory=WeightNames)
    upto: int | None = None

    def serves(self, bindings: Mapping[str, int]) -> bool:
        if self.upto is not None and prod(bindings[name] for name in self.ranges) > self.upto:
            return False
        return all(low <= bindings[name] <= high for name, (low, high) in self.ranges.items())


class CompiledFunction:
    """A function for given shapes and dtypes. Call it like the function; safe to call from many threads.

    Named dimensions that have ranges take the extents in them. Others take any extent: each new set of extents is
    compiled at its first call.
    """

    def __init__(
        self,
        name: str,
        library: Library,
        specs: Sequence[TensorSpec],
        call: CallSpec,
        variants: Mapping[tuple[int, ...], Variant],
        specialise: Callable[[Mapping[str, int]], Variant] | None = None,
        ranged: Sequence[Variant] = (),
        parameters: Parameters | None = None,
        quantization: QuantizationReport | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.quantization = quantization
        self.library = library
        self.specs = tuple(specs)
        self.call_spec = call
        self._arrays = load_arrays(library)
        self._names = tuple(sorted(frozenset().union(*(spec.names for spec in specs))))
        self._variants = dict(variants)
        self._ranged = tuple(ranged)
        self._specialise = specialise
        self._lock = threading.Lock()
        self._entries: tuple[Callable[..., Any], ...] = ()
        self._latest: tuple[Layout, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result. SignatureError for arguments that do not fit what was compiled."""
        for entry in self._entries:
            result = entry(args, kwargs)
            if result is not MISS:
                return result
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call like none of the latest; the second of its kind in a row gets an entry of its own."""
        leaves, spec = flatten(args, kwargs, self._arrays.is_array)
        if spec != self.call_spec and self.parameters is not None:
            arranged = self.parameters.arranged(args, kwargs, self.call_spec)
            if arranged is not None and arranged != (args, kwargs):
                leaves, spec = flatten(*arranged, self._arrays.is_array)
        if spec != self.call_spec:
            raise SignatureError(
                f"{self.name} was compiled for the arguments {_describe(self.call_spec)}, these are {_describe(spec)}"
            )
        layouts, variant = self._variant(leaves)
        variant.executable.require_here()
        inputs = [leaves[a] if isinstance(a, int) else a() for a in variant.arguments]
        self._check_writeable(variant, inputs)
        result = variant.rebuild(variant.executable(*inputs))
        if layouts == self._latest:
            made = variant_entry(variant.executable, variant.arguments, variant.rebuild, spec, leaves)
            self._entries = (made, *self._entries[: ENTRIES - 1])
        self._latest = layouts
        return result

    def _check_writeable(self, variant: Variant, inputs: Sequence[Any]) -> None:
        """ValueError, as NumPy's, where the function changes an array that is read-only."""
        if self.library != "numpy":
            return
        given = dict(zip(variant.executable.free_inputs, inputs, strict=True))
        for port in variant.executable.program.output_ports:
            if port.mutates in given and not given[port.mutates].flags.writeable:
                raise ValueError(f"{self.name}: assignment destination is read-only")

    def _variant(self, leaves: Sequence[Any]) -> tuple[tuple[Layout, ...], Variant]:
        """The layouts of the arrays, and what serves them. SignatureError where nothing does."""
        found: list[Layout] = []
        for number, leaf in enumerate(leaves):
            try:
                found.append(self._arrays.layout(leaf))
            except (TypeError, KeyError) as error:
                raise SignatureError(f"{self.name}: array {number} can't be used: {error}") from None
        bindings: dict[str, int] = {}
        for number, (layout, spec) in enumerate(zip(found, self.specs, strict=True)):
            spec.bind(layout.type, f"{self.name}: array {number}", bindings)
        variant = self.specialised(bindings)
        for number, (layout, spec) in enumerate(zip(found, self.specs, strict=True)):
            if spec.strides is None and layout.strides == contiguous_strides(layout.type.static_shape):
                continue
            strides = spec.laid_out(bindings)
            moves = zip(layout.type.static_shape, layout.strides, strides, strict=True)
            if any(have != want for extent, have, want in moves if extent > 1) and layout.type.size:
                raise SignatureError(
                    f"{self.name}: array {number} has strides {layout.strides}, compiled were {strides}; "
                    "make it contiguous, or compile for these strides"
                )
        return tuple(found), variant

    def specialised(self, bindings: Mapping[str, int]) -> Variant:
        """The variant for these extents; compiled now if it is new."""
        key = tuple(bindings[name] for name in self._names)
        variant = self._variants.get(key)
        if variant is None and self._ranged:
            variant = next((v for v in self._ranged if v.serves(bindings)), None)
            if variant is None:
                raise SignatureError(f"{self.name}: {self._outside(bindings)}")
            self._variants[key] = variant
        if variant is None:
            if self._specialise is None:
                raise SignatureError(f"{self.name} was not compiled for {dict(bindings)}")
            with self._lock:
                variant = self._variants.get(key)
                if variant is None:
                    variant = self._variants[key] = self._specialise(bindings)
        return variant

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest extent that each named dimension with a range takes."""
        return {
            name: (min(v.ranges[name][0] for v in self._ranged), max(v.ranges[name][1] for v in self._ranged))
            for name in self._names
            if self._ranged
        }

    @property
    def ranged(self) -> tuple[Variant, ...]:
        """What was compiled for ranges; each serves its part of them."""
        return self._ranged

    def _outside(self, bindings: Mapping[str, int]) -> str:
        """Which extents are out of range; what was compiled for, and what came."""
        found = [
            f"{name} is {bindings[name]}, compiled was {name} from {low} to {high}"
            for name, (low, high) in self.ranges.items()
            if not low <= bindings[name] <= high
        ]
        return "; ".join(found)

    @property
    def variants(self) -> Mapping[tuple[int, ...], Variant]:
        """What has been compiled, by the extents of the named dimensions in the order of their names."""
        return dict(self._variants)

    @property
    def only(self) -> Variant:
        """The one variant. ArtifactError where dimensions are named and so there may be more."""
        (variant,) = self.complete
        return variant

    @property
    def complete(self) -> tuple[Variant, ...]:
        """What serves every call that fits. ArtifactError where a dimension has a name and no range."""
        if self._ranged:
            return self._ranged
        if self._names:
            names = ", ".join(self._names)
            raise ArtifactError(
                f"{self.name} has named dimensions ({names}) without a range, and can't be saved for every extent: "
                f"compile it with dims={{{self._names[0]!r}: (1, 64)}} or '{self._names[0]}:1..64', or give integers"
            )
        return (self.specialised({}),)

    def __repr__(self) -> str:
        return f"<fusec compiled {self.name}({', '.join(map(str, self.specs))})>"


def argument_of(source: Any) -> int | Fetch:
    """Where a graph's input comes from at a call."""
    if isinstance(source, ArgumentSource):
        return source.index
    fetch: Fetch = source.fetch
    return fetch


def _describe(spec: CallSpec) -> str:
    parts = [_describe_part(part) for part in spec.args]
    parts += [f"{name}={_describe_part(part)}" for name, part in spec.kwargs]
    return f"({', '.join(parts)})"


def _describe_part(part: Any) -> str:
    if hasattr(part, "parts"):
        return f"{part.kind.__name__}({', '.join(map(_describe_part, part.parts))})"
    if not hasattr(part, "value"):
        return "array"
    kind = type(part.value)
    if hasattr(part.value, "shape") and hasattr(part.value, "dtype"):  # another library's
        return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return f"{part.value!r:.80}".replace("\n", " ")
