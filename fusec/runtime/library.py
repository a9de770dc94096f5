# SPDX-License-Identifier: Apache-2.0
"""Runs ``extern`` ops: library calls that a graph keeps as they are.

An extern names its function (``aten.sort.stable``, ``numpy.sort``) and carries its arguments as text. The text is
read by a small evaluator of literals, never by ``eval``, and what it read goes into the code of the call as objects: a
graph from a file can't run code of its own here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from fusec.errors import FusecError, UnsupportedOpError
from fusec.ir.attributes import ExternAttributes
from fusec.ir.library_calls import CONVOLUTION
from fusec.ir.types import Dim, TensorType
from fusec.runtime.code import Scope, make_function, spell_tuple
from fusec.runtime.convolutions import bind_convolution

_OPERAND = re.compile(r"\$(\d+)")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")

CHECK_INDEX = "fusec.check_index"
"""The target of a call that gives back its operand, an integer array, or raises IndexError: ``(index, low, high)``."""

_FEW = 64
"""Elements of an index up to which Python compares them."""

Prepared = Callable[..., Sequence[Any]]


class ResultsDifferError(FusecError):
    """A library call gave other results than PyTorch's stand-ins for tensors, by which it was captured."""


@lru_cache(maxsize=4096)
def prepare(attributes: ExternAttributes) -> Prepared:
    """A function from operands to results for one extern. UnsupportedOpError when its target does not exist.

    It is written as code, as a call in the user's own is: interpreting arguments takes longer than small calls do.
    """
    if attributes.target == CONVOLUTION:
        return bind_convolution(attributes.arguments)
    if attributes.orders:
        return _in_memory_order(attributes)
    function, kind = _resolve(attributes.target)
    args, kwargs = parse_arguments(attributes.arguments)
    if attributes.target == CHECK_INDEX:
        return _index_check(attributes.types[0], *args[1:])
    count = len(attributes.types)
    shapes = [t.shape for t in attributes.types]
    fixed = all(t.is_static for t in attributes.types)

    positions = attributes.positions

    def results(result: Any) -> list[Any]:
        found = _results([result[k] for k in positions] if positions else result, kind)
        if len(found) != count:
            raise ResultsDifferError(f"{attributes.target} gave {len(found)} results, {count} were captured")
        if fixed and count == 1 and found[0].shape != shapes[0]:  # of several some may be read by nothing
            given = str(list(found[0].shape))
            raise ResultsDifferError(f"{attributes.target} gave {given}, {attributes.types[0]} were captured")
        return found

    if kind == "torch" and args and not kwargs:
        function = _bound(attributes.target, len(args)) or function
    scope = Scope()
    given = [*(_spelled(value, scope) for value in args), *(f"{k}={_spelled(v, scope)}" for k, v in kwargs.items())]
    call = f"{scope.bind(function, 'function')}({', '.join(given)})"
    lines = [f"result = {call}"]
    if kind == "torch":
        lines = _without_grad(call, scope, shapes[0] if count == 1 and fixed else None)
    return make_function("call", ["*operands"], [*lines, f"return {scope.bind(results, 'results')}(result)"], scope)


def _in_memory_order(attributes: ExternAttributes) -> Prepared:
    """PyTorch's call, its results shown with their axes in the order of memory."""
    orders = [attributes.order_of(k) for k in range(len(attributes.types))]
    types = tuple(
        t.with_shape(tuple(t.shape[order.index(axis)] for axis in range(t.rank)))
        for t, order in zip(attributes.types, orders)
    )
    run = prepare(replace(attributes, types=types, orders=()))

    def moved(result: Any, order: tuple[int, ...], type: TensorType) -> Any:
        if result.dim() != len(order):
            raise ResultsDifferError(f"{attributes.target} gave {list(result.shape)}, {type} were captured")
        return result.permute(order)

    def call(*operands: Any) -> list[Any]:
        return [moved(result, order, type) for result, order, type in zip(run(*operands), orders, types)]

    return call


def run_extern(attributes: ExternAttributes, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of the library call, as the library gives them (strides too), for torch tensors or arrays."""
    return prepare(attributes)(*operands)


def _spelled(value: Any, scope: Scope) -> str:
    """An argument as an expression: operands by position, literals as they are."""
    if isinstance(value, Operand):
        return f"operands[{value.index}]"
    if type(value) is tuple:
        return f"({''.join(f'{_spelled(part, scope)}, ' for part in value)})"
    if type(value) is list:
        return f"[{', '.join(_spelled(part, scope) for part in value)}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{_spelled(k, scope)}: {_spelled(v, scope)}' for k, v in value.items())}}}"
    return repr(value) if type(value) in (int, bool, type(None)) else scope.bind(value, "value")


def _without_grad(call: str, scope: Scope, alone: tuple[Dim, ...] | None) -> list[str]:
    """A call of PyTorch's that notes nothing for gradients; ``alone``: it gives one tensor, of this shape."""
    import torch

    lines = [
        f"if {scope.bind(torch.is_grad_enabled, 'is_grad_enabled')}():",
        f"    with {scope.bind(torch.no_grad, 'no_grad')}(): result = {call}",
        f"else: result = {call}",
    ]
    if alone is None:
        return lines
    is_it = f"type(result) is {scope.bind(torch.Tensor, 'Tensor')} and result.shape == {spell_tuple(alone)}"
    return [*lines, f"if {is_it}: return (result,)"]


def _bound(target: str, given: int) -> Callable[..., Any] | None:
    """PyTorch's binding of an operation of one signature, which starts in half the time; None where there is none.

    given: how many arguments are. Where no ``reduction`` is, a binding gives "none", and the operation "mean".
    """
    import torch

    namespace, name, overload = target.split(".")
    if namespace != "aten":
        return None
    packet = getattr(torch.ops.aten, name)
    if [each for each in packet.overloads() if "out" not in each] != [overload]:
        return None
    if any(a.name == "reduction" for a in getattr(packet, overload)._schema.arguments[given:]):
        return None
    namespaces: tuple[Any, ...] = (torch._C._VariableFunctions, torch._C._nn)
    found: Callable[..., Any] | None = next((getattr(p, name) for p in namespaces if hasattr(p, name)), None)
    return found


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
            return overload, "torch"
    raise UnsupportedOpError(f"there is no library function {target!r} in this installation")


def _index_check(type: TensorType, low: int, high: int) -> Prepared:
    """The check of an index of this type, with as little code as can be: most of its time is waiting for its own code,
    which matmuls of large matrices have driven from the caches."""
    few = type.device == "cpu" and isinstance(type.count, int) and 0 < type.count <= _FEW
    inner = range(type.rank - 1)

    def call(index: Any) -> Sequence[Any]:
        if few:
            numbers = index.tolist() if type.rank else [index.item()]
            for _ in inner:
                numbers = list(chain.from_iterable(numbers))
            if min(numbers) >= low and max(numbers) <= high:
                return (index,)
        return (_check_index(index, low, high),)

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


def _results(result: Any, kind: str) -> list[Any]:
    """The tensors in a result, in order; None is a gradient that was not asked for."""
    if result is None:
        return []
    if isinstance(result, tuple | list):
        return [r for part in result for r in _results(part, kind)]
    is_host = kind == "numpy" and not hasattr(result, "__cuda_array_interface__")
    return [np.asarray(result)] if is_host else [result]
