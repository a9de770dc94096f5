"""Runs ``extern`` ops: library calls that a graph keeps as they are.

An extern names its function (``aten.sort.stable``, ``numpy.sort``) and carries its arguments as text. The text is
read by a small evaluator of literals, never by ``eval``, so a graph from a file can't run code of its own here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fusec.errors import FusecError, UnsupportedOpError
from fusec.ir.attributes import ExternAttributes
from fusec.ir.types import TensorType

_OPERAND = re.compile(r"\$(\d+)")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")

CHECK_INDEX = "fusec.check_index"
"""The target of a call that gives back its operand, an integer array, or raises IndexError: ``(index, low, high)``."""

_FEW = 64
"""Elements of an index up to which Python compares them."""

Prepared = Callable[[Sequence[Any]], list[Any]]


@lru_cache(maxsize=4096)
def prepare(attributes: ExternAttributes) -> Prepared:
    """A function from operands to results for one extern. UnsupportedOpError when its target does not exist."""
    function, kind = _resolve(attributes.target)
    args, kwargs = parse_arguments(attributes.arguments)
    if attributes.target == CHECK_INDEX:
        return _index_check(attributes.types[0], *args[1:])
    count = len(attributes.types)

    def call(operands: Sequence[Any]) -> list[Any]:
        result = function(*_fill(args, operands), **_fill(kwargs, operands))
        results = _results(result, kind)
        if len(results) != count:
            raise FusecError(f"{attributes.target} gave {len(results)} results, {count} were captured")
        return results

    return call


def run_extern(attributes: ExternAttributes, operands: Sequence[Any]) -> list[Any]:
    """The results of the library call, as the library gives them (strides too), for torch tensors or arrays."""
    return prepare(attributes)(operands)


class Operand:
    """Stands for operand ``index`` in parsed arguments."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operand) and other.index == self.index

    def __hash__(self) -> int:
        return hash(self.index)

    def __repr__(self) -> str:
        return f"${self.index}"


def parse_arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments in an extern's text, operands as :class:`Operand`.

    FusecError for text that is more than literals, operands, and the names of dtypes, devices and layouts.
    """
    pieces = _STRING.split(text)
    strings = _STRING.findall(text)
    named = [_OPERAND.sub(r"_operand(\1)", piece) for piece in pieces]
    source = "".join(p + s for p, s in zip(named, [*strings, ""], strict=True))
    try:
        value = _read(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, TypeError) as error:
        raise FusecError(f"extern arguments {text!r} can't be read: {error}") from None
    if not (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict)
    ):
        raise FusecError(f"extern arguments {text!r} must be a tuple and a dict")
    return value


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Tuple(parts):
            return tuple(_read(part) for part in parts)
        case ast.List(parts):
            return [_read(part) for part in parts]
        case ast.Dict(keys, values):
            return {_read(k): _read(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.UnaryOp(ast.USub(), operand):
            return -_read(operand)
        case ast.Attribute(ast.Name("torch"), name):
            return _torch_name(name)
        case ast.Call(function, args, []):
            return _read_call(function, [_read(a) for a in args])
    raise ValueError(f"{ast.unparse(node)} is not a literal")


def _read_call(function: ast.expr, args: list[Any]) -> Any:
    match function:
        case ast.Name("_operand"):
            return Operand(int(args[0]))
        case ast.Name("slice"):
            return slice(*args)
        case ast.Name("float"):
            return float(args[0])
        case ast.Name("complex"):
            return complex(*args)
        case ast.Attribute(ast.Name("torch"), "device"):
            import torch

            return torch.device(args[0])
        case ast.Attribute(ast.Name("numpy"), "dtype"):
            return np.dtype(str(args[0]))
        case ast.Attribute(ast.Name("numpy"), name):
            return np.dtype(name).type(args[0])
    raise ValueError(f"{ast.unparse(function)} may not be called")


def _torch_name(name: str) -> Any:
    import torch

    value = getattr(torch, name, None)
    if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        raise ValueError(f"torch.{name} is not a dtype, layout or memory format")
    return value


def _resolve(target: str) -> tuple[Callable[..., Any], str]:
    if target == CHECK_INDEX:
        return _check_index, "torch"
    namespace, *path = target.split(".")
    if namespace == "numpy":
        return _resolve_numpy(target, path), namespace
    if len(path) == 2:
        import torch

        packet = getattr(getattr(torch.ops, namespace), path[0], None)
        overload = getattr(packet, path[1], None)
        if overload is not None:
            return _without_grad(overload), "torch"
    raise UnsupportedOpError(f"there is no library function {target!r} in this installation")


def _index_check(type: TensorType, low: int, high: int) -> Prepared:
    """The check of an index of this type, with as little code as can be: most of its time is waiting for its own code,
    which products of large matrices have driven from the caches."""
    few = type.device == "cpu" and isinstance(type.count, int) and type.count <= _FEW

    def call(operands: Sequence[Any]) -> list[Any]:
        (index,) = operands
        if not few:
            _check_index(index, low, high)
            return [index]
        for n in _numbers(index.tolist()):
            if not low <= n <= high:
                _check_index(index, low, high)
        return [index]

    return call


def _check_index(index: Any, low: int, high: int) -> Any:
    """IndexError, as the libraries raise it, where an element is not in ``[low, high]``.

    On a GPU nothing waits for the answer, so there the kernels of the library don't say either.
    """
    array = index
    if not isinstance(index, np.ndarray):
        if getattr(index, "is_cuda", True):
            return index
        array = index.detach().numpy()
    if array.size:
        least, most = int(array.min()), int(array.max())
        if least < low or most > high:
            wrong = least if least < low else most
            raise IndexError(f"index {wrong} is out of bounds for an axis of size {high + 1}")
    return index


def _numbers(listed: Any) -> list[int]:
    """What ``tolist()`` gave, flat."""
    return [n for part in listed for n in _numbers(part)] if isinstance(listed, list) else [listed]


def _without_grad(overload: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return overload(*args, **kwargs)

    return call


def _resolve_numpy(target: str, path: list[str]) -> Callable[..., Any]:
    """A public function of NumPy, or a ufunc's method such as ``numpy.add.reduce``; nothing that reads files."""
    found: Any = np
    for name in path:
        found = None if name.startswith("_") else getattr(found, name, None)
    owner = getattr(found, "__module__", None) or "numpy"
    if not callable(found) or _is_forbidden(path) or not str(owner).startswith("numpy"):
        raise UnsupportedOpError(f"there is no library function {target!r} in this installation")
    return found  # type: ignore[no-any-return]


_NOT_ARRAY_FUNCTIONS = frozenset(
    {
        *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt", "fromfile", "fromregex"),
        *("memmap", "DataSource", "testing", "ctypeslib", "f2py", "show_config", "info", "rec"),
    }
)


def _is_forbidden(path: list[str]) -> bool:
    return path[0] in _NOT_ARRAY_FUNCTIONS or (path[0] == "lib" and path[1:2] != ["stride_tricks"])


def _fill(value: Any, operands: Sequence[Any]) -> Any:
    if isinstance(value, Operand):
        return operands[value.index]
    if type(value) in (tuple, list):
        return type(value)(_fill(part, operands) for part in value)
    if isinstance(value, dict):
        return {key: _fill(part, operands) for key, part in value.items()}
    return value


def _results(result: Any, kind: str) -> list[Any]:
    """The tensors in a result, in order; None is a gradient that was not asked for."""
    if result is None:
        return []
    if isinstance(result, tuple | list):
        return [r for part in result for r in _results(part, kind)]
    is_host = kind == "numpy" and not hasattr(result, "__cuda_array_interface__")
    return [np.asarray(result)] if is_host else [result]
