# SPDX-License-Identifier: Apache-2.0
"""The library's calls of a traced run as a graph of PyTorch's own, of which autograd can make a backward.

A capture runs below autograd, so its own graph has no derivatives. The recording keeps each call whole, with the
gradient mode under which it was made. Run under autograd it gives what the function gives, gradients included; what
would not show in it (a custom backward, a hook) makes it unfit, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from keyword import iskeyword
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fusec.frontend.capture import Rebuild, Recorded, ReferenceSource, Source
from fusec.frontend.torch_fake import map_tensors, tensors_in, value_name
from fusec.frontend.torch_networks import stays_whole
from fusec.frontend.torch_noted_rows import NotedRows
from fusec.frontend.torch_stand_in import GRADED
from fusec.frontend.torch_tensors import Fake, holding

_FRESH = frozenset({"lift_fresh", "lift", "lift_fresh_copy"})
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd")


class Recording:
    """The calls of one run. ``unfit`` says why they make no function that autograd could run; empty where they do."""

    def __init__(self) -> None:
        self.unfit = ""
        self._graph = fx.Graph()
        self._sources: list[Source] = []
        self._random: list[fx.Node] = []
        self._nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._numbers: dict[int, int] = {}
        self._given: set[int] = set()
        self._detached: set[int] = set()
        self._last: fx.Node | None = None
        self._graded = True
        self._needs: dict[fx.Node, bool] = {}
        self._asked: list[tuple[str, str, bool]] = []
        self._saving = _saving_hooks()
        self.rows: NotedRows | None = None
        """What is noted of rows that data chooses."""

    def refuse(self, reason: str) -> None:
        """Notes why the calls are not all that the function is to autograd; the first reason is kept."""
        self.unfit = self.unfit or reason

    @contextmanager
    def running(self) -> Iterator[None]:
        """While entered, the function runs: what it asks of gradients is answered as autograd would."""
        token = GRADED.set(self._requires_grad)
        try:
            with _noting_functions(self):
                yield
        finally:
            GRADED.reset(token)
            self._switch(torch.is_grad_enabled())
            if not self._graded:
                self.refuse("the function turns gradients off and leaves them so")

    def input(self, fake: torch.Tensor, real: torch.Tensor, source: Source, name: str) -> None:
        """A tensor that comes from outside."""
        if real.is_inference():
            self.refuse("a tensor of inference mode is among those that it reads")
        self._numbers[id(fake)] = len(self._sources)
        self._given |= {id(t) for t in (fake, fake._base, real, real._base) if t is not None}
        self._hold(fake, self._placeholder(source, name), real.requires_grad)

    def _placeholder(self, source: Source, name: str) -> fx.Node:
        with self._graph.inserting_after(self._last):
            node = self._last = self._graph.placeholder(f"{value_name(name).replace('.', '_')}_{len(self._sources)}")
        self._sources.append(source)
        return node

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, fake: Fake) -> None:
        """A call as it was made, and what it gave. ``fake``: what stands for a tensor."""
        self.refuse(self._why_unfit(func))
        if self.unfit:
            return
        self._switch(torch.is_grad_enabled())
        name = func.overloadpacket.__name__
        if name in _FRESH and id(args[0]) not in self._nodes:
            constant = self._placeholder(ReferenceSource("constant", holding(args[0])), "constant")
            node = self._graph.call_function(torch.ops.aten.clone.default, (constant,))
            self._note(node, result, False)
            return
        taken = [fake(t) for t in tensors_in((list(args), list(kwargs.values())))]
        self._refuse_leaves(taken)
        if self.unfit:
            return
        if name == "requires_grad_":
            self._requires(taken[0], args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
            return
        needs = self._graded and name != "detach" and any(self._needs[self._nodes[id(t)][1]] for t in taken)
        if needs and (name == "lstm" or stays_whole(func, args, kwargs, lambda tensor: tensor.device.type == "cpu")):
            # AOTAutograd takes for an LSTM oneDNN's layer, told that it does not train, which then has no backward
            self.refuse("an LSTM, or a recurrent network of many steps, is differentiated by the library alone")
            return
        listed = map_tensors(lambda t: self._nodes[id(fake(t))][1], tuple(args))
        named = {key: map_tensors(lambda t: self._nodes[id(fake(t))][1], value) for key, value in kwargs.items()}
        node = self._graph.call_function(func, listed, named)
        if torch.Tag.nondeterministic_seeded in func.tags or "dropout" in name:
            self._random.append(node)
        self._note(node, result, needs)
        if name == "detach":
            self._detached.add(id(result))

    def _refuse_leaves(self, tensors: Sequence[torch.Tensor]) -> None:
        """That no tensor besides the inputs and views of them was told to require a gradient, which is no call."""
        own = [
            t for t in tensors if id(t) in self._detached or id(t if t._base is None else t._base) not in self._given
        ]
        if any(map(requires_grad, own)):
            self.refuse("the function makes a tensor that requires a gradient, as torch.utils.checkpoint does")

    def _switch(self, graded: bool) -> None:
        if graded != self._graded:
            self._graph.call_function(torch._C._set_grad_enabled, (graded,))
            self._graded = graded

    def _note(self, node: fx.Node, result: Any, needs: bool) -> None:
        if isinstance(result, torch.Tensor):
            self._hold(result, node, needs and (result.is_floating_point() or result.is_complex()))
        elif isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if tensors_in(part):
                    self._note(self._graph.call_function(part_of, (node, number)), part, needs)

    def _hold(self, tensor: torch.Tensor, node: fx.Node, needs: bool) -> None:
        known = self._nodes.get(id(tensor))
        self._needs[node] = needs or (known is not None and self._needs[known[1]])
        self._nodes[id(tensor)] = tensor, node
        if self.rows is not None:
            self.rows.note(tensor, node, self._nodes)

    # What the function asks

    def _requires_grad(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that the function made requires a gradient. The answer is checked once there is autograd."""
        known = self._nodes.get(id(tensor))
        if known is None:
            return False
        node = known[1]
        self._asked.append((next(iter(reversed(self._graph.nodes))).name, node.name, self._needs[node]))
        return self._needs[node]

    def _requires(self, tensor: torch.Tensor, wanted: bool) -> None:
        if self._requires_grad(tensor) != wanted:
            self.refuse("the function itself makes a tensor require a gradient, or no longer do so")

    def _why_unfit(self, func: OpOverload) -> str:
        if func.namespace in _COLLECTIVES:
            return "the function calls a collective"
        if torch.is_inference_mode_enabled():
            return "the function enters inference mode"
        if iskeyword(func._overloadname):
            return f"PyTorch's graphs can't spell {func}"
        if _saving_hooks() != self._saving:
            return "the function saves tensors for the backward with hooks of its own"
        return ""

    # The end

    def finish(self, leaves: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]) -> Callable[[Rebuild], Recorded]:
        """The recording of a function that gives these tensors, and writes to these inputs; ``rebuild`` makes the
        function's result of the tensors. Nothing of the run is kept."""
        distinct = {id(leaf): leaf for leaf in leaves}
        slots = [list(distinct).index(id(leaf)) for leaf in leaves]
        missing = any(key not in self._nodes for key in distinct)
        if missing:
            self.refuse("a result comes from a call that is not recorded")
        self._refuse_leaves(list(distinct.values()))
        graded = {key: key in self._nodes and self._needs[self._nodes[key][1]] for key in distinct}
        if any(requires_grad(leaf) and not graded[key] for key, leaf in distinct.items()):
            self.refuse("it gives a view of an input that requires a gradient, made while gradients are off")
        self._graph.output(() if missing else tuple(self._nodes[key][1] for key in distinct))
        if not all(map(_is_read, self._random)):
            self.refuse("it draws random numbers of which nothing comes")
        numbers = tuple(self._numbers[id(tensor)] for tensor in changed)
        plain = {k for k, key in enumerate(distinct) if not graded[key] and key not in self._numbers}
        self._nodes.clear()
        module = fx.GraphModule(torch.nn.Module(), self._graph)
        chosen = self.rows.finish() if self.rows is not None else None
        sources, asked, is_random = tuple(self._sources), tuple(self._asked), bool(self._random)

        def recorded(rebuild: Rebuild) -> Recorded:
            def rebuilt(outputs: Sequence[Any]) -> Any:
                return rebuild([_plain(outputs[slot]) if slot in plain else outputs[slot] for slot in slots])

            return Recorded(module, sources, rebuilt, numbers, is_random, asked, self.unfit, chosen)

        return recorded


class GradientsOff:
    """What stands for a recording of a call under ``torch.no_grad()``, whose results require no gradient."""

    def __init__(self) -> None:
        self.turned_on = False
        self._kept: list[torch.Tensor] = []

    def input(self, fake: torch.Tensor, real: torch.Tensor, source: Source, name: str) -> None:
        pass

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, fake: Fake) -> None:
        """Notes where the function turns gradients on, and what it computes from an input requires one."""
        if not torch.is_grad_enabled():
            return
        taken = [fake(t) for t in tensors_in((list(args), list(kwargs.values())))]
        if _is_kept_by_autocast(func, args, taken):
            self._kept.append(fake(result))
        else:
            self.turned_on |= any(requires_grad(t) or self._is_kept(t) for t in taken)

    def returned(self, result: Any) -> None:
        """Notes a result that requires a gradient because PyTorch made it so for its cache."""
        self.turned_on |= any(map(self._is_kept, tensors_in([result])))

    def _is_kept(self, tensor: torch.Tensor) -> bool:
        return any(tensor is kept for kept in self._kept)


def _is_kept_by_autocast(func: OpOverload, args: Sequence[Any], taken: Sequence[torch.Tensor]) -> bool:
    """Whether a call under gradients may be autocast's own: it casts weights so for its cache, whatever the mode.

    While it casts, autocast is off.
    """
    if func is not torch.ops.aten.to.dtype or not torch.is_autocast_cache_enabled() or not taken:
        return False
    device = taken[0].device.type
    if torch.is_autocast_enabled(device) or not requires_grad(taken[0]):
        return False
    return len(args) > 1 and args[1] is torch.get_autocast_dtype(device)


def _is_read(node: fx.Node) -> bool:
    """Whether a result depends on a node."""
    seen, waiting = {node}, [node]
    while waiting:
        at = waiting.pop()
        if at.op == "output":
            return True
        waiting += [user for user in at.users if user not in seen]
        seen.update(at.users)
    return False


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A result that requires no gradient: PyTorch's graphs have it require one where it is made of a view of a leaf,
    without gradients."""
    return tensor.detach() if tensor.requires_grad else tensor


def part_of(parts: Sequence[Any], number: int) -> Any:
    """One of several results of a call."""
    return parts[number]


def requires_grad(tensor: torch.Tensor) -> bool:
    """What PyTorch itself notes on a fake tensor."""
    return bool(torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]


def mark_views(func: OpOverload, taken: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
    """Notes on views that were made while gradients are off that they require one, as what they show does.

    Autograd notes it on the results of single operations. Functions that are made of such reach a trace whole.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not made or not has_kernel(func._name, "CompositeImplicitAutograd") or has_kernel(func._name, "ADInplaceOrView"):
        return
    shown = {t.untyped_storage()._cdata for t in taken if requires_grad(t)}
    for tensor in made if shown else ():
        is_given = any(tensor is t for t in taken)
        if not is_given and tensor.is_floating_point() and tensor.untyped_storage()._cdata in shown:
            torch.Tensor.requires_grad_(tensor)


def _saving_hooks() -> Any:
    """What tensors that autograd saves are given to; None where nothing is."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


# Backwards of the function's own

_lock = threading.Lock()
_noting = 0
_applied: Any = None
_RECORDING: ContextVar[Recording | None] = ContextVar("_RECORDING", default=None)


@contextmanager
def _noting_functions(recording: Recording) -> Iterator[None]:
    """Runs a body in which a ``torch.autograd.Function`` is noted where it is applied: some make no call at all."""
    global _noting, _applied
    function: Any = torch.autograd.Function
    with _lock:
        if not _noting:
            _applied = function.__dict__["apply"]
            function.apply = classmethod(_apply)
        _noting += 1
    token = _RECORDING.set(recording)
    try:
        yield
    finally:
        _RECORDING.reset(token)
        with _lock:
            _noting -= 1
            if not _noting:
                function.apply, _applied = _applied, None


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    recording = _RECORDING.get()
    if recording is not None:
        recording.refuse(f"the function has a backward of its own ({function.__name__})")
    with _lock:
        applied = _applied
    if applied is None:  # the last recording ended meanwhile
        return function.apply(*args, **kwargs)
    return applied.__get__(None, function)(*args, **kwargs)
