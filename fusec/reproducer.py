# SPDX-License-Identifier: Apache-2.0
"""A graph and its inputs as a folder: IR text and safetensors, no pickle. Nothing in it is executed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fusec.errors import ArtifactError, FusecError, ParseError
from fusec.frontend.capture import ArgumentSource, Capture, IntegerSource, Library
from fusec.frontend.structures import flatten
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.ir.types import dtype_of
from fusec.os_errors import told
from fusec.runtime.adapters import load_arrays
from fusec.runtime.artifact import decode_weights, encode_weights
from fusec.runtime.dispatch import Dispatcher

GRAPH, INPUTS, LIBRARY = "graph.ir", "inputs.safetensors", "library.txt"
_LIBRARIES: dict[str, Library] = {"torch": "torch", "numpy": "numpy", "cupy": "cupy"}


@dataclass(frozen=True)
class Reproducer:
    """A graph as captured, an array for each of its inputs, and the library whose calls are in it."""

    graph: Graph
    inputs: Sequence[np.ndarray[Any, Any]]
    library: Library


def capture_reproducer(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Reproducer:
    """What a call captures: the graph, and copies of the arguments and of the tensors that it reads.

    Raises what capture raises.
    """

    def refuse(capture: Capture) -> NoReturn:
        raise AssertionError("this dispatcher only captures")

    capture = Dispatcher(function, refuse).capture((), dict(arguments))
    arrays = load_arrays(capture.library)
    leaves, _ = flatten((), dict(arguments), arrays.is_array)
    inputs = []
    for source in capture.sources:
        assert not isinstance(source, IntegerSource), "integers are opened in calls of fusec.jit's functions alone"
        array = leaves[source.index] if isinstance(source, ArgumentSource) else source.fetch()
        dtype, shape, data = arrays.to_bytes(array)
        inputs.append(np.frombuffer(data, dtype.numpy).reshape(shape))
    return Reproducer(parse(str(capture.graph)), inputs, capture.library)


def save_reproducer(reproducer: Reproducer, folder: Path) -> None:
    """Writes the folder. ArtifactError for a dtype that safetensors lacks, or where it can't be written."""
    arrays = {
        f"input_{k}": (dtype_of(a.dtype), a.shape, np.ascontiguousarray(a).tobytes())
        for k, a in enumerate(reproducer.inputs)
    }
    data = encode_weights(arrays)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / GRAPH).write_text(f"{reproducer.graph}\n")
        (folder / INPUTS).write_bytes(data)
        (folder / LIBRARY).write_text(f"{reproducer.library}\n")
    except OSError as error:
        raise ArtifactError(f"can't write {folder}: {told(error)}") from None


def load_reproducer(folder: Path) -> Reproducer:
    """Reads the folder. FusecError for one that is not whole."""
    try:
        graph = parse((folder / GRAPH).read_text())
        arrays = decode_weights(memoryview((folder / INPUTS).read_bytes()))
        library = _LIBRARIES[(folder / LIBRARY).read_text().strip()]
        inputs = [arrays[f"input_{k}"][1] for k in range(len(graph.inputs))]
    except ParseError as error:
        raise ArtifactError(f"{folder / GRAPH}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{folder} is not a reproducer: {told(error, folder / 'graph.ir')}") from None
    except KeyError as error:
        raise ArtifactError(f"{folder} is not a whole reproducer: it has no {error}") from None
    for value, array in zip(graph.inputs, inputs, strict=True):
        if any(not isinstance(n, int) for n in value.type.shape):
            raise FusecError(f"{folder}: input {value} has symbolic extents; capture it for fixed ones")
        if array.shape != value.type.static_shape or array.dtype != value.type.dtype.numpy:
            raise ArtifactError(f"{folder}: input {value} is {value.type}, the array is {array.dtype}{array.shape}")
    return Reproducer(graph, inputs, library)
