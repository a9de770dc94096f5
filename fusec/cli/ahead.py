# SPDX-License-Identifier: Apache-2.0
"""``fusec compile`` and ``fusec run``: a function to a file, and a file on arrays."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fusec.build import Tune
from fusec.cli.words import counted
from fusec.errors import FusecError
from fusec.frontend.capture import Library
from fusec.frontend.structures import flatten
from fusec.loading import load
from fusec.os_errors import told
from fusec.runtime.adapters import load_arrays
from fusec.runtime.faults import is_capture_fault
from fusec.specs import named_specs


def compile_to_file(
    name: str,
    specs: Sequence[str],
    output: Path,
    target: str | None,
    c_folder: Path | None,
    *,
    weights: bool = True,
    tune: str | None = None,
    library: str | None = None,
) -> str:
    """Compiles ``module:function`` for specs such as ``x=f32[B:1..64, 768]``, and says what was written.

    FusecError for a name that is none, specs that do not fit its parameters, and what compiling raises.
    """
    import fusec

    function = find_function(name)
    found = named_specs(specs)
    if tune not in (None, "quick", "full"):
        raise FusecError(f"tune={tune!r}; it is 'quick' or 'full'")
    if library not in (None, "torch", "numpy"):
        raise FusecError(f"library={library!r}; it is 'torch' or 'numpy'")
    meant: Library | None = None if library is None else "torch" if library == "torch" else "numpy"
    chosen: Tune = False if tune is None else "quick" if tune == "quick" else "full"
    bound = bound_by_name(name, function, found)
    try:
        compiled = fusec.compile(function, *bound.args, target=target, tune=chosen, library=meant, **bound.kwargs)
    except FusecError:
        raise
    except Exception as error:
        if is_capture_fault(error):
            raise
        raise FusecError(f"{name}: {type(error).__name__}: {error}") from None
    compiled.save(output, weights=weights)
    lines = [f"{output}: {compiled.name}({', '.join(map(str, compiled.specs))}), {output.stat().st_size:,} bytes"]
    lines += [f"{dim} from {low} to {high}" for dim, (low, high) in compiled.ranges.items()]
    if c_folder is not None:
        lines.append(f"C header: {compiled.export_c(c_folder)}")
    return "\n".join(lines)


def bound_by_name(name: str, function: Any, given: Mapping[str, Any]) -> inspect.BoundArguments:
    """The call of a function or module with arguments by name. FusecError where they do not fit its parameters."""
    called = function if inspect.isroutine(function) else getattr(function, "forward", function)
    try:
        signature = inspect.signature(called)
    except ValueError:
        raise FusecError(
            f"{name} is built in and does not tell its parameters; name a function of your own that calls it"
        ) from None
    try:
        return signature.bind(**given)
    except TypeError as error:
        raise FusecError(f"{name}: {error}") from None


def find_function(name: str) -> Any:
    """What ``module:function`` names, or what ``module:factory(2, name='x')`` gives; the folder at hand is looked in
    first. FusecError where there is none."""
    module, colon, whole = name.partition(":")
    path, opened, _ = whole.partition("(")
    if not colon or not module or not path:
        raise FusecError(f"{name!r} is not a function's name; write it as module:function")
    args, kwargs = _literals(whole) if opened else ((), {})
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        if opened and callable(found):
            found = found(*args, **kwargs)
    except (ImportError, AttributeError) as error:
        raise FusecError(f"{name}: {error}") from None
    except Exception as error:  # whatever the module's own code raises
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        if isinstance(error, SyntaxError):
            where = f"{error.filename}:{error.lineno}"
        what = f"{name} can't be made" if opened else f"{module} can't be imported"
        said = error.msg if isinstance(error, SyntaxError) else error
        raise FusecError(f"{what}: {where}: {type(error).__name__}: {said}") from None
    if not callable(found):
        raise FusecError(f"{name} can't be called: it is of type {type(found).__name__}")
    return found


def _literals(call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``factory(2, name='x')``. FusecError where they are no literals: nothing else is evaluated."""
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call) or isinstance(tree.func, ast.Call):
            raise ValueError
        args = tuple(map(ast.literal_eval, tree.args))
        given = [(k.arg, ast.literal_eval(k.value)) for k in tree.keywords]
        kwargs = {name: value for name, value in given if name is not None}
        if len(kwargs) < len(given):  # **
            raise ValueError
    except (SyntaxError, ValueError):
        raise FusecError(f"{call} is no call with literals for arguments; write it as factory(2, name='x')") from None
    return args, kwargs


def run_file(path: Path, inputs: Sequence[Path], output: Path | None, weights: Path | None = None) -> str:
    """Calls a compiled file on arrays from ``.npy`` files, in the order of its arguments; results go to ``.npz``.

    ``weights`` is a safetensors file, for a compiled file that was written without.
    """
    compiled = load(path, weights=weights)
    arrays = load_arrays(compiled.library)
    given = []
    for source in inputs:
        try:
            array = np.load(source, allow_pickle=False)
        except (OSError, EOFError, ValueError, BadZipFile) as error:
            raise FusecError(f"{source} can't be read as an array: {told(error, source)}") from None
        if not isinstance(array, np.ndarray):
            raise FusecError(f"{source} holds several arrays; give a .npy file for each argument")
        given.append(arrays.from_numpy(array, arrays_dtype(array)))
    if len(given) != len(compiled.specs):
        wanted, were = counted(len(compiled.specs), "array"), "was" if len(given) == 1 else "were"
        raise FusecError(f"{compiled.name} takes {wanted}, {len(given)} {were} given")
    args, kwargs = compiled.call_spec.restore(given)
    results, _ = flatten((compiled(*args, **kwargs),), {}, arrays.is_array)
    found = {f"result{k}": np.array(_as_numpy(arrays, result)) for k, result in enumerate(results)}
    if output is not None:
        try:
            np.savez(output, **found)  # type: ignore[arg-type]
        except OSError as error:
            raise FusecError(f"can't write {output}: {told(error, output)}") from None
    return "\n".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in found.items())


def arrays_dtype(array: np.ndarray[Any, Any]) -> Any:
    """The element type of an array. FusecError for one that fusec does not have."""
    from fusec.ir.types import dtype_of

    try:
        return dtype_of(array.dtype)
    except KeyError as error:
        raise FusecError(str(error.args[0])) from None


def _as_numpy(arrays: Any, array: Any) -> np.ndarray[Any, Any]:
    dtype, shape, data = arrays.to_bytes(array)
    found = np.frombuffer(data, dtype.numpy).reshape(shape)
    return found.astype(np.float32) if dtype.name == "bf16" else found
