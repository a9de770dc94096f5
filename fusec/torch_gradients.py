# SPDX-License-Identifier: Apache-2.0
"""Functions of :func:`fusec.jit` that need gradients: what was recorded of one, forward and backward compiled.

AOTAutograd gives one node of autograd's for the whole function. Two things that eager's many nodes do are made up for
by a hook on it. Where some results take no part in what is differentiated, inputs that only they depend on get no
gradient. Where gradients are differentiated again (``create_graph=True``), they are those of the recording, run anew.
What it can't make up for is an error: the gradient of a result on which another result depends holds its own part
alone, so it can't be kept, and no hook may see it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fusec import config
from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.capture import Recorded
from fusec.frontend.torch_attention import with_library_attention
from fusec.frontend.torch_fake import fake_like, fake_mode
from fusec.frontend.torch_fx import NodeByNode
from fusec.frontend.torch_modes import dispatch_modes
from fusec.torch_autograd import through_aot
from fusec.torch_experts import with_sorted_rows
from fusec.torch_graphs import Chosen, CompiledGraph, Kind

log = config.logger("compile")
Gradients = tuple[torch.Tensor | None, ...]


class GradientFunction:
    """A function of the recorded inputs that gives the function's result, and leads to a compiled backward.

    ``graphs``: the forward and the backward, each compiled at its first call.
    """

    def __init__(self, recorded: Recorded, inputs: Sequence[torch.Tensor], name: str, options: Chosen) -> None:
        """UnsupportedOpError where the recording is unfit, CaptureError where PyTorch makes no backward of it."""
        if recorded.unfit:
            raise UnsupportedOpError(recorded.unfit)
        recorded = with_sorted_rows(recorded)
        own = name.rpartition(".")[2]
        self.name = "".join(c if c.isalnum() else "_" for c in own).strip("_") or "function"
        self.graphs: list[CompiledGraph] = []
        self._options = options
        self._recorded = recorded
        self._rebuild = recorded.rebuild
        self._call = self._first_call
        try:
            with compile_lock, dispatch_modes(), torch._C._DisableAutocast():  # its casts are among the calls
                self._reached, self._inner = _reached(recorded, inputs)
                mode = fake_mode()
                made = _stand_ins(mode, recorded, inputs)
                with torch._guards.tracing(torch._guards.TracingContext(mode)):
                    written = _Calls(_with_library_attention(recorded, inputs))
                    self._run = through_aot(written, made, self._add, options.build, at_once=True)
        except UnsupportedOpError:
            raise
        except Exception as error:
            log.debug("%s: no backward", name, exc_info=error)
            raise CaptureError(f"PyTorch makes no backward of it: {error}") from error

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self._rebuild(self._call(*inputs))

    def _first_call(self, *inputs: torch.Tensor) -> Sequence[Any]:
        made: Sequence[Any] = self._run(*inputs)
        self._call = self._run
        number = _number_of_node(made, inputs)
        if number is not None and not any(inputs[k].requires_grad for k in self._recorded.changed):
            self._call = partial(self._hooked, number)
            self._hook(made, number, inputs)
        return made

    def _hooked(self, number: int, *inputs: torch.Tensor) -> Sequence[Any]:
        made: Sequence[Any] = self._run(*inputs)
        self._hook(made, number, inputs)
        return made

    def _hook(self, made: Sequence[Any], number: int, inputs: Sequence[torch.Tensor]) -> None:
        inner = [weakref.ref(made[k]) for k in self._inner]
        made[number].grad_fn.register_hook(partial(self._backward, _Again(inputs), inner))

    def _backward(
        self, again: _Again, inner: Sequence[weakref.ref[Any]], found: Gradients, given: Gradients
    ) -> Gradients:
        """What autograd hands on in place of the gradients that were found."""
        if inner:
            self._refuse_watched(inner)
        changed, sources = self._recorded.changed, self._recorded.sources
        if len(found) != len(sources) or (self._reached and len(given) != len(changed) + len(self._reached)):
            return found  # PyTorch's node is of other tensors than the recording's
        if torch.is_grad_enabled():
            found = self._differentiable(again, found, given)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            again.release()
        own = given[len(changed) :]
        if not self._reached or all(g is not None for g in own):
            return found
        reached = {k for gradient, inputs in zip(own, self._reached) if gradient is not None for k in inputs}
        return tuple(gradient if k in reached else None for k, gradient in enumerate(found))

    def _refuse_watched(self, inner: Sequence[weakref.ref[Any]]) -> None:
        """RuntimeError where someone looks at the gradient of a result on which another one depends."""
        for reference in inner:
            result = reference()
            if result is not None and (result.retains_grad or result._backward_hooks):
                raise RuntimeError(
                    f"{self.name}: the gradient of a result on which another result depends can't be kept or seen by a "
                    "hook, for both are made in one step; call the function as written (without fusec.jit) where it is"
                )

    def _differentiable(self, again: _Again, found: Gradients, given: Gradients) -> Gradients:
        """The same gradients, as autograd computes them from the recording; those that were found where it can't."""
        inputs = None if self._recorded.random or self._recorded.changed else again.inputs()
        if inputs is None:
            return found
        wanted = [x for x, gradient in zip(inputs, found) if gradient is not None and x.requires_grad]
        with torch._C._DisableAutocast():
            made = self._recorded.module(*inputs)
            led = [(out, gradient) for out, gradient in zip(made, given, strict=True) if gradient is not None]
            outs, gradients = zip(*led)
            anew = iter(torch.autograd.grad(outs, wanted, gradients, create_graph=True, allow_unused=True))
        return tuple(next(anew) if g is not None and x.requires_grad else None for x, g in zip(inputs, found))

    def _add(self, module: fx.GraphModule, kind: Kind) -> Callable[[list[Any]], Any]:
        graph = CompiledGraph(module, kind, f"{self.name}_{kind}", self._options)
        self.graphs.append(graph)
        return partial(_without_autocast, graph)

    def report(self) -> str:
        """What was fused into which kernels, forward and backward."""
        return "\n".join(f"{graph.kind}\n{graph.foreseen()}" for graph in self.graphs)


class _Again:
    """The inputs of one call, for a backward that runs the function again, as long as autograd keeps its graph.

    A tensor that was computed is there only while something else holds it: it may come to depend on this call, by a
    write to it, and neither would be freed then.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._held = [_held(x) for x in inputs]
        self._versions = [x._version for x in inputs]

    def release(self) -> None:
        self._held = []

    def inputs(self) -> list[torch.Tensor] | None:
        """None where one is gone, or was written to since."""
        if len(self._held) != len(self._versions):
            return None
        found = [held() for held in self._held]
        if any(x is None or x._version != version for x, version in zip(found, self._versions, strict=True)):
            return None
        return found


def _held(tensor: torch.Tensor) -> Callable[[], Any]:
    if not tensor.requires_grad:
        tensor = tensor.detach()
        return lambda: tensor
    return (lambda: tensor) if tensor.is_leaf else weakref.ref(tensor)


def _without_autocast(graph: CompiledGraph, args: list[Any]) -> Any:
    if torch._C._is_any_autocast_enabled():
        with torch._C._DisableAutocast():
            return graph.boxed(args)
    return graph.boxed(args)


def _stand_ins(mode: FakeTensorMode, recorded: Recorded, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fake tensors for the inputs. One that is written to is a leaf of autograd's where the real one is."""
    return [_computed(mode, x) if k in recorded.changed else fake_like(mode, x) for k, x in enumerate(inputs)]


def _computed(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    fake = fake_like(mode, real)
    if real.is_leaf:
        return fake
    flat = fake.as_strided((fake.untyped_storage().nbytes() // fake.element_size(),), (1,), 0)
    with torch.enable_grad():
        return flat.clone().as_strided(fake.shape, fake.stride(), fake.storage_offset())


def _number_of_node(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> int | None:
    """Where a result is that the function's node gave. None where some have other nodes: views of what it made.

    Inputs and views of them are results without a part of the node.
    """
    given = {id(_root(x)) for x in inputs}
    own = [k for k, x in enumerate(results) if x.grad_fn is not None and id(_root(x)) not in given]
    nodes = {id(results[k].grad_fn) for k in own}
    return own[0] if len(nodes) == 1 and hasattr(results[own[0]].grad_fn, "_forward_cls") else None


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


# What autograd knows of the recording


def _reached(recorded: Recorded, inputs: Sequence[torch.Tensor]) -> tuple[list[set[int]], list[int]]:
    """Of each result the numbers of the inputs that its gradient leads to, and the results on which others depend;
    empty where there is one result.

    UnsupportedOpError where a tensor requires a gradient and the function was told otherwise, or the reverse. Raises
    what autograd raises for a write.
    """
    (output,) = (node for node in recorded.module.graph.nodes if node.op == "output")
    if not recorded.asked and not recorded.changed and len(output.args[0]) < 2:
        return [], []
    mode = fake_mode()
    fakes = _stand_ins(mode, recorded, inputs)
    answers = _Answers(recorded)
    with mode, torch.enable_grad():
        results = answers.run(*fakes)
    if answers.wrong:
        raise UnsupportedOpError(f"the function asks whether {answers.wrong} requires a gradient")
    numbers = {id(x): k for k, x in enumerate(fakes)}
    behind = [_nodes_behind(x.grad_fn) for x in results]
    leaves = [{id(node.variable) for node in nodes if hasattr(node, "variable")} for nodes in behind]
    reached = [{numbers[key] for key in keys if key in numbers} for keys in leaves]
    inner = [
        k
        for k, x in enumerate(results)
        if x.grad_fn is not None
        and not any(x is fake or x._base is fake for fake in fakes)
        and any(x.grad_fn in nodes for y, nodes in zip(results, behind) if y.grad_fn is not x.grad_fn)
    ]
    return reached, inner


def _nodes_behind(node: Any) -> set[Any]:
    """The nodes that a gradient is led through, to leaves."""
    seen, ahead = set[Any](), [node]
    while ahead:
        at = ahead.pop()
        if at is None or at in seen:
            continue
        seen.add(at)
        ahead += [following for following, _ in at.next_functions]
    return seen


class _Calls(torch.nn.Module):
    """A recording as a module that runs its own code: graphs PyTorch interprets (see :class:`NodeByNode`)."""

    def __init__(self, recorded: fx.GraphModule) -> None:
        super().__init__()
        self._run = recorded.forward

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._run(*inputs)


def _with_library_attention(recorded: Recorded, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The recorded calls with attention that is written out as the library's."""
    given: fx.GraphModule = recorded.module
    if not any("softmax" in node.name for node in given.graph.nodes):
        return given
    module = fx.GraphModule(torch.nn.Module(), copy.deepcopy(given.graph))
    mode = fake_mode()
    made = _stand_ins(mode, recorded, inputs)
    with mode, torch.enable_grad():
        _Examples(module, garbage_collect_values=False).run(*made)
    return with_library_attention(module)


class _Examples(NodeByNode):
    """Runs a recording, and notes on each node what it gave."""

    def run_node(self, n: fx.Node) -> Any:
        result = n.meta["example_value"] = super().run_node(n)
        return result


class _Answers(NodeByNode):
    """Runs a recording under autograd, and compares what the function was told."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded.module, garbage_collect_values=False)
        self.wrong = ""
        self._asked: dict[str, list[tuple[str, bool]]] = {}
        for after, name, answer in recorded.asked:
            self._asked.setdefault(after, []).append((name, answer))

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        known = {node.name: value for node, value in self.env.items()} if n.name in self._asked else {}
        for name, answer in self._asked.get(n.name, ()):
            value = result if name == n.name else known[name]
            if isinstance(value, FakeTensor) and value.requires_grad != answer:
                self.wrong = name
        return result
