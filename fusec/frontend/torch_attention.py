# SPDX-License-Identifier: Apache-2.0
"""Attention that a function writes out, as one call of the library's, so that its gradient needs no probabilities.

AOTAutograd saves what a backward reads: of a written softmax the probabilities, rows × columns of them. The library's
attention saves one number for each row instead. What is recognised here is ``softmax(scale * q @ kᵀ + mask) @ v`` in an
FX graph of PyTorch's calls, by structure: how scores are scaled, masked and cast may be spelled in any way, and masks
count by their values, which are computed here from the nodes that make them: causal ones are taken. A mask that comes
from outside is unknown, and a row of it that hides everything gives NaN where the library gives 0, so such attention
stays as it is written.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

_MATMULS = frozenset({"matmul", "bmm", "einsum"})
_CASTS = frozenset({"to", "type", "type_as", "float", "half", "bfloat16", "_to_copy", "contiguous"})
_SWITCHES = frozenset({"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode"})
_MAKERS = frozenset({"ones", "zeros", "full", "arange", "tensor", "scalar_tensor", "empty"})
_LIKE = frozenset({"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"})
_STEPS = frozenset(
    {
        *("tril", "triu", "invert", "bitwise_not", "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "and", "or"),
        *("logical_and", "logical_or", "bitwise_and", "bitwise_or", "add", "sub", "mul", "div", "neg", "sqrt", "rsqrt"),
        *("unsqueeze", "squeeze", "view", "reshape", "expand", "getitem", "transpose", "t", "permute", "bool", "int"),
        *("long", "where", "masked_fill", "repeat", "expand_as", "abs", "clone", "detach", *_CASTS),
    }
)
"""Calls of which the values of a mask are computed here."""
_MOST = 2**28
"""Bytes of a mask up to which its values are looked at."""
_HIDDEN = -1e9
"""A score that gives a position no weight: its exponential beside any other position's is 0."""


def with_library_attention(module: fx.GraphModule, devices: Sequence[str] = ("cuda",)) -> fx.GraphModule:
    """The graph with written attention as calls of the library's; the same graph where there is none.

    Nodes carry what they gave, as ``example_value`` or ``val``. ``devices``: the kinds of
    device on which attention is looked for.
    """
    found = [each for node in module.graph.nodes if (each := _attention(node, devices)) is not None]
    if not found:
        return module
    module = fx.GraphModule(module, copy.deepcopy(module.graph), type(module).__name__)
    copies = {node.name: node for node in module.graph.nodes}
    for attention in found:
        _replace(module.graph, attention, copies)
    module.recompile()
    return module


# What is recognised


@dataclass
class _Attention:
    """Operands as they are seen with batch and heads first, and the order of the result's axes. ``chain``: the nodes
    between both products."""

    result: fx.Node
    query: _Operand
    key: _Operand
    value: _Operand
    out: tuple[int, ...]
    scale: float
    causal: bool
    chain: set[fx.Node]


@dataclass(frozen=True)
class _Operand:
    node: fx.Node
    order: tuple[int, ...]


@dataclass
class _Chain:
    """What stands between a product and the softmax of it."""

    scale: float = 1.0
    visible: torch.Tensor | None = None
    nodes: set[fx.Node] = field(default_factory=set)

    def seeing(self, visible: torch.Tensor, scores: Any) -> Any:
        """The scores, of which only some positions count."""
        self.visible = visible if self.visible is None else self.visible & visible
        return scores


def _attention(softmax: fx.Node, devices: Sequence[str]) -> _Attention | None:
    """The attention whose probabilities a node computes."""
    scores = _tensor(softmax)
    if _name(softmax) != "softmax" or scores is None or scores.device.type not in devices:
        return None
    if scores.ndim not in (3, 4) or not all(isinstance(n, int) for n in scores.shape):
        return None
    if _argument(softmax, 1, "dim") not in (-1, scores.ndim - 1):
        return None
    chain = _Chain(nodes={softmax})
    first = _down(softmax, chain)
    second = _up(softmax, chain)
    if first is None or second is None or not _is_quiet(first, second, chain):
        return None
    return _fitting(first, second, chain, scores.ndim)


def _fitting(first: fx.Node, second: fx.Node, chain: _Chain, rank: int) -> _Attention | None:
    left, right = _scores_matmul(first, rank), _values_matmul(second, rank)
    if left is None or right is None:
        return None
    query, key = left
    value, out = right
    shapes = [[_tensor(o.node).shape[k] for k in o.order] for o in (query, key, value)]  # type: ignore[union-attr]
    batch = {tuple(s[:-2]) for s in shapes}
    widths = {s[-1] for s in shapes}
    (rows, columns), result = (shapes[0][-2], shapes[1][-2]), _tensor(second)
    given = {_tensor(o.node).dtype for o in (query, key, value)}  # type: ignore[union-attr]
    if len(batch) > 1 or len(widths) > 1 or result is None or len(given) > 1:
        return None
    if given != {result.dtype} or result.dtype not in (torch.float16, torch.bfloat16):
        return None  # the library's kernels are of these types
    width = widths.pop()
    if width % 8 or width > 256 or rows < 1 or columns < 2:
        return None  # of one position alone the gradient is 0, which the library's is but nearly
    causal = chain.visible is not None
    if chain.visible is not None and not _is_causal(chain.visible, rows, columns):
        return None
    return _Attention(second, query, key, value, out, chain.scale, causal, chain.nodes)


def _is_causal(visible: torch.Tensor, rows: int, columns: int) -> bool:
    if visible.ndim < 2 or visible.shape[-2:] != (rows, columns) or rows != columns:
        return False
    wanted = torch.ones(rows, columns, dtype=torch.bool).tril()
    return all(torch.equal(each, wanted) for each in visible.reshape(-1, rows, columns))


def _down(softmax: fx.Node, chain: _Chain) -> fx.Node | None:
    """From a softmax to the product that makes its scores."""
    reader, node = softmax, softmax.args[0] if softmax.args else softmax.kwargs.get("input")
    while isinstance(node, fx.Node):
        changed = [user for user in node.users if _is_statement_on(node, user) and user < reader]
        if len(node.users) != len(changed) + 1:
            return None
        for write in sorted(changed, reverse=True):
            chain.nodes.add(write)
            if _step(write, _name(write), chain) is not node:
                return None
        chain.nodes.add(node)
        name = _name(node)
        if name in _MATMULS:
            return node
        reader, node = node, _step(node, name, chain)
    return None


def _is_statement_on(node: fx.Node, user: fx.Node) -> bool:
    """Whether a call writes to a node's tensor, and its result is not read, but the tensor."""
    return _writes(user) and not user.users and bool(user.args) and user.args[0] is node


def _step(node: fx.Node, name: str, chain: _Chain) -> Any:
    """What a step on scores was taken from, its scale or mask noted; None for any other call."""
    args, kwargs = node.args, node.kwargs
    if name in _CASTS:
        return args[0] if _is_float(node) else None
    if name in ("mul", "div") and len(args) == 2 and not kwargs:
        return _scaled(args, name, chain)
    if name == "masked_fill" and len(args) == 3 and _hides(args[2], chain):
        hidden = _values(args[1])
        return None if hidden is None else chain.seeing(~hidden.bool(), args[0])
    if name == "where" and len(args) == 3 and not kwargs:
        seen = _values(args[0])
        if seen is None:
            return None
        if _hides(args[2], chain):
            return chain.seeing(seen.bool(), args[1])
        return chain.seeing(~seen.bool(), args[2]) if _hides(args[1], chain) else None
    if name == "add" and len(args) == 2 and not kwargs:
        for scores, other in (args, args[::-1]):
            values = _values(other)
            if values is not None and values.is_floating_point():
                hidden = values * min(chain.scale, 1) <= _HIDDEN
                if bool((hidden | (values == 0)).all()):
                    return chain.seeing(~hidden, scores)
    return None


def _scaled(args: Sequence[Any], name: str, chain: _Chain) -> Any:
    for scores, other in (args, args[::-1]) if name == "mul" else (args,):
        number = _number(other)
        if number is not None and number > 0 and math.isfinite(number):
            chain.scale = chain.scale * number if name == "mul" else chain.scale / number
            return scores
    return None


def _up(softmax: fx.Node, chain: _Chain) -> fx.Node | None:
    """From a softmax to the product that reads its probabilities."""
    node = softmax
    while len(node.users) == 1:
        reader = next(iter(node.users))
        name = _name(reader)
        if name in _MATMULS:
            return reader
        chain.nodes.add(reader)
        if name not in _CASTS and not (name == "dropout" and _drops_nothing(reader)):
            return None
        if not reader.args or reader.args[0] is not node or not _is_float(reader):
            return None
        node = reader
    return None


def _is_quiet(first: fx.Node, second: fx.Node, chain: _Chain) -> bool:
    """Whether nothing between two nodes writes to a tensor or switches how calls are made."""
    node = first.next
    while node is not second:
        if node.op == "root":
            return False
        if node not in chain.nodes and (_writes(node) or _name(node) in _SWITCHES):
            return False
        node = node.next
    return True


# Products


def _scores_matmul(node: fx.Node, rank: int) -> tuple[_Operand, _Operand] | None:
    """Query and key of ``q @ kᵀ`` with the axis of features last."""
    plain = tuple(range(rank))
    if _name(node) != "einsum":
        a, b = _operands(node)
        if a is None or b is None:
            return None
        return _Operand(a, plain), _Operand(b, (*plain[:-2], rank - 1, rank - 2))
    parts = _equation(node)
    if parts is None or len(parts[2]) != rank:
        return None
    (a, ta), (b, tb), out = parts
    if out[-2] in tb:
        a, ta, b, tb = b, tb, a, ta
    shared = [c for c in ta if c in tb and c not in out]
    if len(shared) != 1 or {*out[:-1], *shared} != {*ta} or {*out[:-2], out[-1], *shared} != {*tb}:
        return None
    wanted = [*out[:-1], *shared], [*out[:-2], out[-1], *shared]
    return _Operand(a, tuple(map(ta.index, wanted[0]))), _Operand(b, tuple(map(tb.index, wanted[1])))


def _values_matmul(node: fx.Node, rank: int) -> tuple[_Operand, tuple[int, ...]] | None:
    """The value of ``p @ v``, and the order of the product's axes in the result."""
    plain = tuple(range(rank))
    if _name(node) != "einsum":
        a, b = _operands(node)
        if a is None or b is None or not _comes_from_softmax(a):
            return None
        return _Operand(b, plain), plain
    parts = _equation(node)
    if parts is None or len(parts[2]) != rank:
        return None
    (a, ta), (b, tb), out = parts
    if not _comes_from_softmax(a):
        a, ta, b, tb = b, tb, a, ta
    if len(ta) != rank or not _comes_from_softmax(a):
        return None
    batch, row, column = ta[:-2], ta[-2], ta[-1]
    last = [c for c in tb if c not in ta]
    if len(last) != 1 or row in tb or {*batch, column, *last} != {*tb} or {*batch, row, *last} != {*out}:
        return None
    own = [*batch, row, *last]
    return _Operand(b, tuple(map(tb.index, [*batch, column, *last]))), tuple(map(own.index, out))


def _comes_from_softmax(node: fx.Node) -> bool:
    while _name(node) in _CASTS | {"dropout"} and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return _name(node) == "softmax"


def _operands(node: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """Both operands of a product of matrices of one rank; None where it is another call."""
    a, b = node.args if len(node.args) == 2 and not node.kwargs else (None, None)
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None, None
    left, right = _tensor(a), _tensor(b)
    if left is None or right is None or left.ndim != right.ndim:
        return None, None
    return a, b


def _equation(node: fx.Node) -> tuple[tuple[fx.Node, str], tuple[fx.Node, str], str] | None:
    text, operands = node.args[0], list(node.args[1:])
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = [*operands[0]]
    if not isinstance(text, str) or len(operands) != 2 or node.kwargs:
        return None
    a, b = operands[0], operands[1]
    ins, arrow, out = text.replace(" ", "").partition("->")
    letters = ins.split(",")
    if not arrow or "." in text or len(letters) != 2 or not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None
    if any(len(set(part)) < len(part) for part in (*letters, out)):
        return None
    return (a, letters[0]), (b, letters[1]), out


# Values that are known


def _hides(value: Any, chain: _Chain) -> bool:
    """Whether a position that is filled with a value has no weight, whatever it is multiplied with later."""
    number = _number(value)
    return number is not None and number * min(chain.scale, 1) <= _HIDDEN


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    tensor = _tensor(value) if isinstance(value, fx.Node) else None
    if tensor is None or tensor.numel() != 1:
        return None
    values = _values(value)
    return None if values is None else float(values)


def _values(node: Any) -> torch.Tensor | None:
    """The values of a tensor that is made from nothing outside the graph; None where that can't be known."""
    shape = _tensor(node) if isinstance(node, fx.Node) else None
    if shape is None or not all(isinstance(n, int) for n in shape.shape) or shape.numel() * shape.itemsize > _MOST:
        return None
    needed: dict[fx.Node, None] = {}
    if not _gather(node, needed):
        return None
    known: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for each in sorted(needed):
            known[each] = _computed(each, known)
    result = known[node]
    return result if isinstance(result, torch.Tensor) else None


def _gather(node: fx.Node, needed: dict[fx.Node, None]) -> bool:
    """Notes the nodes that compute a tensor; False where one of them can't be known or is written to by others."""
    name = _name(node)
    if node in needed:
        return True
    if node.op not in ("call_function", "call_method") or name not in _MAKERS | _LIKE | _STEPS or name == "empty":
        return False
    needed[node] = None
    sources = () if name in _LIKE else node.all_input_nodes
    if not all(_gather(source, needed) for source in sources):
        return False
    return not any(_writes(user) and user is not node and user.args and user.args[0] is node for user in node.users)


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """A node's call on the CPU."""

    def given(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, fx.Node):
            return value
        if value in known:
            return known[value]
        like = _tensor(value)  # only its shape and dtype count
        return value if like is None else torch.empty((), dtype=like.dtype).expand(tuple(like.shape))

    args, kwargs = map_aggregate(node.args, given), map_aggregate(dict(node.kwargs), given)
    assert isinstance(args, tuple)
    assert isinstance(kwargs, dict)
    if isinstance(kwargs.get("device"), str):
        kwargs["device"] = "cpu"
    args = tuple("cpu" if isinstance(a, str) and a.startswith("cuda") else a for a in args)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


# Nodes


_OPERATORS = {"truediv": "div", "itruediv": "div", "imul": "mul", "iadd": "add", "and_": "and", "or_": "or"}
_IN_PLACE = frozenset({"imul", "iadd", "isub", "itruediv", "iand", "ior", "ixor", "ipow", "setitem"})


def _name(node: fx.Node) -> str:
    """A call by its name alone: as function, method, operator or ATen overload, in place or not."""
    if node.op == "call_method":
        return str(node.target).rstrip("_")
    if node.op != "call_function":
        return ""
    target = getattr(node.target, "overloadpacket", node.target)
    name = str(getattr(target, "__name__", target))
    return _OPERATORS.get(name, name.rstrip("_"))


def _writes(node: fx.Node) -> bool:
    """Whether a call writes to its first operand, or to one that is named ``out``."""
    target = getattr(node.target, "overloadpacket", node.target)
    name = str(target) if isinstance(target, str) else str(getattr(target, "__name__", target))
    if name in _IN_PLACE and getattr(operator, name, None) is target:
        return True
    is_in_place = name.endswith("_") and not name.endswith("__") and target not in (operator.and_, operator.or_)
    return is_in_place or "out" in node.kwargs or node.kwargs.get("inplace") is True


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value", node.meta.get("val")) if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_float(node: fx.Node) -> bool:
    value = _tensor(node)
    return value is not None and value.is_floating_point()


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _drops_nothing(node: fx.Node) -> bool:
    """Whether a dropout drops nothing."""
    rate, training = _argument(node, 1, "p"), _argument(node, 2, "training")
    return training is False or rate == 0


# The rewriting


def _replace(graph: fx.Graph, a: _Attention, nodes: dict[str, fx.Node]) -> None:
    rank, result = len(a.out), nodes[a.result.name]

    def call(function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(function, args, kwargs)
        made.meta |= {key: result.meta[key] for key in ("stack_trace", "nn_module_stack") if key in result.meta}
        return made

    def seen(operand: _Operand) -> fx.Node:
        node = nodes[operand.node.name]
        if operand.order != tuple(range(rank)):
            node = call(torch.permute, node, operand.order)
        return node if rank == 4 else call(torch.unsqueeze, node, 1)

    with graph.inserting_before(result):
        operands = [seen(o) for o in (a.query, a.key, a.value)]
        made = call(torch.nn.functional.scaled_dot_product_attention, *operands, is_causal=a.causal, scale=a.scale)
        made = made if rank == 4 else call(torch.squeeze, made, 1)
        made = made if a.out == tuple(range(rank)) else call(torch.permute, made, a.out)
    result.replace_all_uses_with(made)
    for node in (result, *sorted((nodes[n.name] for n in a.chain), reverse=True)):
        graph.erase_node(node)
