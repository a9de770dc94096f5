# SPDX-License-Identifier: Apache-2.0
"""Captures an FX graph of PyTorch's own compilers (Dynamo's, AOTAutograd's) as a graph of fusec.

The graph is run once, node by node, under the same trace that captures a user's function, so there is one table
of calls. Each op keeps the user's file and line, which FX notes on its nodes.
"""

from __future__ import annotations

import copy
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import fx

from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.capture import Capture, Environment, Fallback, run_user
from fusec.frontend.source import is_machinery, is_user_file
from fusec.frontend.torch import flatten
from fusec.frontend.torch_modes import dispatch_modes
from fusec.frontend.torch_names import Namer
from fusec.frontend.torch_references import References
from fusec.frontend.torch_results import Result
from fusec.frontend.torch_trace import Trace, tracing
from fusec.ir.nodes import InputRole, Value
from fusec.location import Location

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class UnfitNodeError(CaptureError):
    """A node of an FX graph that can't be captured; ``node`` is its name."""

    def __init__(self, message: str, node: str, location: Location | None) -> None:
        super().__init__(message, location)
        self.node = node


class _Always(Environment):
    """An FX graph reads nothing besides its inputs and its own attributes."""

    def holds(self) -> bool:
        return True


@dispatch_modes()
def capture_graph(
    module: fx.GraphModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    fallback: Fallback = "eager",
    foreseen: bool = False,
) -> Capture:
    """The graph of an FX module for these arguments: tensors, real or fake, and plain numbers.

    ``foreseen``: the capture is for looking at, and arguments may be tensors of PyTorch's fake mode.
    Placeholders that Dynamo knows to be a module's parameters or buffers become inputs of the role ``parameter``.
    Raises :class:`UnfitNodeError` (a CaptureError) naming the node at which capture ended.
    """
    assert not kwargs, "an FX graph of a compiler takes positional arguments"
    module = _with_whole_attention(module)
    namer = _NodeNamer()
    trace = Trace(_name(module), References(module, {}), fallback, namer)
    trace.takes_fakes = foreseen
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    leaves, spec = flatten(args, {})
    owners = [node for node, value in zip(placeholders, args, strict=True) for _ in flatten((value,), {})[0]]
    made = [_argument(trace, node, leaf, k) for k, (node, leaf) in enumerate(zip(owners, leaves, strict=True))]
    fakes, _ = spec.restore(made)
    with torch.set_grad_enabled(torch.is_grad_enabled()):  # a graph may switch it and leave it so
        result = _run(module, trace, namer, fakes)
    outputs = Result(trace, result)
    graph, sources = outputs.finish()
    return Capture(graph, sources, _Always(), outputs.rebuild, "torch", tuple(trace.notes))


_ATTENTION = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    }
)
"""The library's attention kernels, to which AOTAutograd breaks attention down."""


def _with_whole_attention(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with attention in one call where only its first result, the attention itself, is read."""
    found = [node for node in module.graph.nodes if _is_attention_alone(node)]
    if not found:
        return module
    module = fx.GraphModule(module, copy.deepcopy(module.graph), type(module).__name__)
    for node in [node for node in module.graph.nodes if _is_attention_alone(node)]:
        named = {**node.kwargs, **dict(zip(_argument_names(node), node.args))}
        mask = named.get("attn_mask") if "attn_mask" in named else named.get("attn_bias")
        operands = (named["query"], named["key"], named["value"], mask)
        rest = (named.get("dropout_p", 0.0), named.get("is_causal", False))
        with module.graph.inserting_before(node):
            whole = module.graph.call_function(
                torch.ops.aten.scaled_dot_product_attention.default,
                (*operands, *rest),
                {"scale": named.get("scale")},
            )
        whole.meta.update(node.meta)
        for reader in list(node.users):
            reader.replace_all_uses_with(whole)
            module.graph.erase_node(reader)
        module.graph.erase_node(node)
    module.recompile()
    return module


def _is_attention_alone(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket.__name__ not in _ATTENTION:
        return False
    firsts = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    return firsts and bool(node.users)


def _argument_names(node: fx.Node) -> list[str]:
    assert isinstance(node.target, torch._ops.OpOverload)
    return [argument.name for argument in node.target._schema.arguments]


def _run(module: fx.GraphModule, trace: Trace, namer: _NodeNamer, fakes: Sequence[Any]) -> Any:
    interpreter = _Nodes(module, namer)
    with tracing(trace):
        try:
            return run_user(interpreter.run, fakes, {"enable_io_processing": False})
        except Exception as error:
            node = namer.node
            if node is None:
                raise
            raise UnfitNodeError(f"{node.name}: {error}", node.name, namer.location) from error


def _argument(trace: Trace, node: fx.Node, value: torch.Tensor, index: int) -> torch.Tensor:
    try:
        return trace.argument(value, index, node.name, _role(node, value))
    except UnsupportedOpError as error:
        reader = next(iter(node.users), node)
        raise UnfitNodeError(f"{reader.name}: {error}", reader.name, node_location(reader)) from error


def _name(module: fx.GraphModule) -> str:
    name = str(module.meta.get("fusec_name", "")) or type(module).__name__
    return name if name.isidentifier() else "graph"


def _role(node: fx.Node, value: torch.Tensor) -> InputRole:
    """A module's own tensors keep their memory from call to call, so what is packed from them is kept."""
    static = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {}) or node.meta.get("fusec_static", False)
    return "parameter" if static or isinstance(value, torch.nn.Parameter) else "argument"


class NodeByNode(fx.Interpreter):
    """An interpreter that keeps all results, and takes no lock of the process: PyTorch's counts its progress in tqdm,
    whose lock is shared with forked children, and stays taken where one ends in it."""

    def run(self, *args: Any, **_: Any) -> Any:
        assert isinstance(self.module, fx.GraphModule), "it has a graph"
        self.env, self.args_iter = {}, iter(args)
        for node in self.module.graph.nodes:
            self.env[node] = self.run_node(node)
            if node.op == "output":
                return self.env[node]
        return None


class _Nodes(NodeByNode):
    """Runs a graph and tells the namer which node is at hand."""

    def __init__(self, module: fx.GraphModule, namer: _NodeNamer) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False
        self._namer = namer

    @contextmanager
    def _set_current_node(self, node: fx.Node) -> Iterator[None]:
        yield  # FX would note it for the whole process, where another thread may make a backward

    def run_node(self, n: fx.Node) -> Any:
        self._namer.at(n)
        return super().run_node(n)


class _NodeNamer(Namer):
    """Names and locations from FX nodes instead of the stack."""

    def __init__(self) -> None:
        super().__init__()
        self.node: fx.Node | None = None
        self.location: Location | None = None
        self._named: list[Value] = []

    def at(self, node: fx.Node) -> None:
        self.node, self.location, self._named = node, node_location(node), []

    def enter(self, start: FrameType) -> Location | None:
        return self.location

    def give(self, values: list[Value]) -> None:
        """A node that makes several calls gives its name to the results of the last."""
        if self.node is None:
            return
        for value in self._named:
            self.wanted.pop(value, None)
        self._named = [value for value in values if value not in self.wanted]
        self.wanted.update(dict.fromkeys(self._named, self.node.name))


def node_location(node: fx.Node) -> Location | None:
    """The user's line that a node comes from: the innermost frame of user code that FX noted."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    return _innermost(trace) if trace else None


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> Location | None:
    frames = [(file, int(line)) for file, line in _FRAME.findall(trace) if os.path.isabs(file)]
    users = [frame for frame in frames if is_user_file(frame[0])]
    others = [frame for frame in frames if not is_machinery(frame[0])]
    for found in (users, others):
        if found:
            return Location(*found[-1])
    return None
