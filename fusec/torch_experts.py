# SPDX-License-Identifier: Apache-2.0
"""Loops over experts in a recording: rows are sorted by expert, so that autograd makes a backward of a few calls.

``for e in range(E): out.index_add_(0, tok, f(x[tok], w[e]))`` with ``tok`` from ``torch.where(index == e)`` is recorded
as it was run, with all candidates for each expert. The bodies are alike: that of the first, of all rows sorted by
expert, stands for all of them. Products with ``w[e]`` are products of groups, other calls make each row from the same
row, and rows are read from and added to where they were found by permutations (:mod:`fusec.frontend.torch_grouped`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fusec.errors import UnsupportedOpError
from fusec.frontend import torch_grouped as grouped
from fusec.frontend.capture import ChosenRows, Recorded
from fusec.frontend.torch_recording import part_of
from fusec.passes.expert_choices import most_at_once
from fusec.torch_expert_writes import Differs, Node, Write, chains_of_writes, mutates, name_of, rows_of

Parts = tuple[Any, ...]

_PRODUCTS = {"linear": (0, 1, True), "matmul": (0, 1, False), "mm": (0, 1, False), "addmm": (1, 2, False)}
"""Where rows and the matrix are among a product's operands, and whether the matrix is transposed."""

_CASTS = ("to", "_to_copy", "clone", "contiguous", "alias", "detach")


def with_sorted_rows(recorded: Recorded) -> Recorded:
    """The recording without rows that data chooses. UnsupportedOpError where their loops are not understood."""
    chosen = recorded.chosen
    if chosen is None or recorded.unfit:
        return recorded
    module: fx.GraphModule = recorded.module
    try:
        _drop_questions(module.graph)
        for writes in chains_of_writes(module.graph):
            _Loop(module.graph, chosen, writes).rewrite()
        _drop(module.graph)
    except Differs as reason:
        text = f"data chooses rows, a gradient is needed, and experts are not seen to be alike: {reason}"
        raise UnsupportedOpError(text) from None
    names = {node.name for node in module.graph.nodes}
    if any(name not in names for after, asked, _ in recorded.asked for name in (after, asked)):
        raise UnsupportedOpError(
            "the function asks within a loop over chosen rows whether a tensor requires a gradient"
        )
    return replace(recorded, module=fx.GraphModule(torch.nn.Module(), module.graph), chosen=None)


def _drop_questions(graph: fx.Graph) -> None:
    """Drops what asks for no more than a tensor's device or dtype."""
    for node in reversed([*graph.nodes]):
        if isinstance(node.target, OpOverload) and node.target.namespace == "prim" and not node.users:
            graph.erase_node(node)


# One loop


class _Loop:
    """The experts of one loop, as one body of all rows."""

    def __init__(self, graph: fx.Graph, chosen: ChosenRows, writes: Sequence[Write]) -> None:
        self.graph, self.writes = graph, writes
        self.sets = [w.number for w in writes]
        self.count = len(writes)
        conditions = [chosen.conditions[number] for number in self.sets]
        shapes = {shape for _, shape in conditions}
        self.shape = conditions[0][1]
        if len(shapes) > 1 or len(set(self.sets)) < self.count:
            raise Differs("sets of rows of several kinds")
        masks = chosen.masks
        one = self.count == 1
        self.repeats = 1 if one else most_at_once(replace(masks, outputs=tuple(masks.outputs[k] for k in self.sets)))
        if not self.repeats or (self.repeats > 1 and len(self.shape) > 1):
            raise Differs("which experts a row has is not one array's numbers")
        self.axes = len(self.shape)
        if self.repeats > 1:
            self.shape = (*self.shape, self.repeats)
        by_name = {node.name: node for node in graph.nodes}
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.conditions = [by_name[name] for name, _ in conditions]
        self.shared: dict[Node, None] = dict.fromkeys(self.conditions)
        self.lifted: dict[Parts, Any] = {}
        self.replaced: set[Node] = set()
        self.order: Any = None

    def rewrite(self) -> None:
        """Puts one write of all rows in the place of the last."""
        last = self.writes[-1]
        for write, following in zip(self.writes, self.writes[1:]):
            users = {user for user in write.node.users if rows_of(user) is None}
            if users - {following.node}:
                raise Differs(f"{write.node.name} is read within the loop")
        with self.graph.inserting_before(last.node):
            self.order = self._call(grouped.rows_in_order, *self.conditions, repeats=self.repeats)
            rows = self.lift(tuple(w.rows for w in self.writes))
            total = self._call(grouped.summed_rows, rows, self.order, self.count, self.shape, last.coordinate)
            made = self._call(torch.ops.aten.add_.Tensor, self.writes[0].target, total)
            made.meta.update(last.node.meta)
        self._check_memory()
        last.node.replace_all_uses_with(made)
        for write in reversed(self.writes):
            for user in [*write.node.users]:
                if rows_of(user) is not None and not user.users:
                    self.graph.erase_node(user)
        for place, write in enumerate(self.writes):
            target = self.writes[0].target
            for user in [*write.node.users]:  # reads of rows to which others are added: nothing needs them any more
                user.replace_input_with(write.node, target)
            if place:
                self.writes[place].node.replace_input_with(self.writes[place - 1].node, target)
        for write in reversed(self.writes):
            self.graph.erase_node(write.node)

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        return self.graph.call_function(target, args, kwargs)

    def _check_memory(self) -> None:
        """Nothing that the bodies share is written to while the loop runs, and gradients are on or off throughout."""
        last = self.places[self.writes[-1].node]
        first = min((self.places[node] for node in self.replaced), default=last)
        own = {w.node for w in self.writes} | self.replaced
        written = set()
        graded: dict[Node, bool] = {}
        on = True
        for node, place in self.places.items():
            if node.target is torch._C._set_grad_enabled:
                on = bool(node.args[0])
            graded[node] = on
            is_within = first <= place <= last and rows_of(node) is None
            if is_within and mutates(node) and (node not in own or node is self.writes[-1].node):
                written.add(node.args[0].meta.get("memory"))
        for node in self.shared:
            if node.meta.get("memory") in written or "memory" not in node.meta:
                raise Differs(f"{node.name} is written to within the loop")
        if any(graded[node] != graded[self.writes[-1].node] for node in self.replaced):
            raise Differs("gradients are switched within the loop")

    # Values

    def lift(self, parts: Parts) -> Any:
        """The value of all rows, sorted, of parts of one expert each; what is no row is the same for all of them."""
        first = parts[0]
        if isinstance(first, tuple | list):
            if any(type(p) is not type(first) or len(p) != len(first) for p in parts):
                raise Differs("other arguments")
            return type(first)(self.lift(each) for each in zip(*parts, strict=True))
        if not isinstance(first, fx.Node):
            if any(isinstance(p, fx.Node) or p != first or type(p) is not type(first) for p in parts):
                raise Differs(f"{first} is another for each expert")
            return first
        if not all(isinstance(p, fx.Node) for p in parts):
            raise Differs("other arguments")
        if parts not in self.lifted:
            self.lifted[parts] = self._lifted(parts)
        return self.lifted[parts]

    def _lifted(self, parts: tuple[Node, ...]) -> Node:
        first = parts[0]
        if first.target is part_of and "rows" in first.meta:
            return self._call(part_of, self._made(tuple(p.args[0] for p in parts)), first.args[1])
        if rows_of(first) is None:
            if not self._same(parts):
                raise Differs(f"{first.name} is another for each expert")
            return first
        for part, number in zip(parts, self.sets, strict=True):
            if part.meta["rows"] != (number, *first.meta["rows"][1:]):
                raise Differs(f"{part.name} has rows of another expert")
        return self._made(parts)

    def _same(self, parts: Parts) -> bool:
        """Whether parts without rows are equal: one node, or calls alike of what is equal."""
        first = parts[0]
        if all(p is first for p in parts):
            if isinstance(first, fx.Node):
                self._share(first)
            return True
        if isinstance(first, tuple | list):
            alike = all(type(p) is type(first) and len(p) == len(first) for p in parts)
            return alike and all(self._same(each) for each in zip(*parts, strict=True))
        if not isinstance(first, fx.Node):
            return all(not isinstance(p, fx.Node) and type(p) is type(first) and p == first for p in parts)
        if any(
            not isinstance(p, fx.Node) or p.target is not first.target or p.kwargs.keys() != first.kwargs.keys()
            for p in parts
        ):
            return False
        is_plain = isinstance(first.target, OpOverload) and torch.Tag.nondeterministic_seeded not in first.target.tags
        if not (is_plain or first.target is part_of) or mutates(first) or rows_of(first) is not None:
            return False
        args, named = tuple(p.args for p in parts), [tuple(p.kwargs[k] for p in parts) for k in first.kwargs]
        self.shared.update(dict.fromkeys(p for p in parts if "memory" in p.meta))
        return self._same(args) and all(map(self._same, named))

    def _share(self, node: Node) -> None:
        """Notes that all experts read a node; of several results, that they read what these are made of."""
        for each in (node,) if "memory" in node.meta else node.all_input_nodes:
            self.shared[each] = None

    def _made(self, parts: tuple[Node, ...]) -> Node:
        """A call on all rows."""
        first, name = parts[0], name_of(parts[0])
        if any(p.target is not first.target or p.meta.get("shape") != first.meta.get("shape") for p in parts):
            raise Differs(f"{first.name} and what the others have in its place")
        if not isinstance(first.target, OpOverload) or (
            rows_of(first) is not None and first.meta["rows"][2] is not None
        ):
            raise Differs(f"{first.name}, a position")
        self.replaced.update(parts)
        if name in ("index", "index_select"):
            return self._gathered(parts)
        if name in _PRODUCTS:
            return self._product(parts, *_PRODUCTS[name])
        target: Any = first.target
        if mutates(first):
            target = self._functional(parts)
        listed = [self._operand(first, each) for each in _columns(parts)]
        if any(p.kwargs.keys() != first.kwargs.keys() for p in parts):
            raise Differs("other arguments")
        named = {key: self._operand(first, tuple(p.kwargs[key] for p in parts)) for key in first.kwargs}
        return self._call(target, *listed, **named)

    def _functional(self, parts: tuple[Node, ...]) -> Any:
        """An in-place call's other form, where nobody else sees what it writes to."""
        for part in parts:
            changed = part.args[0]
            made = changed.target if isinstance(changed, fx.Node) else None
            is_view = isinstance(made, OpOverload) and made.is_view
            if not isinstance(changed, fx.Node) or rows_of(changed) is None or is_view or [*changed.users] != [part]:
                raise Differs(f"{part.name} writes in place")
        target = parts[0].target
        assert isinstance(target, OpOverload)
        other = getattr(getattr(torch.ops.aten, name_of(parts[0])[:-1], None), target._overloadname, None)
        if other is None:
            raise Differs(f"{parts[0].name} writes in place")
        return other

    def _operand(self, made: Node, parts: Parts) -> Any:
        """An operand of a call whose result is ``made``: of rows, shared, or one for each expert."""
        first = parts[0]
        if isinstance(first, tuple | list) and any(isinstance(p, fx.Node) for p in first):
            return self.lift(parts)
        if not isinstance(first, fx.Node) or rows_of(first) is not None or self._same(parts):
            return self.lift(parts)
        shape, rows = made.meta.get("shape"), rows_of(made)
        own = first.meta.get("shape")
        if shape is None or rows is None or rows[1] or own is None or any(p.meta.get("shape") != own for p in parts):
            raise Differs(f"{first.name} is another for each expert")
        table = self._table(parts)
        if len(own) == len(shape) and own[0] == 1:
            table, own = self._call(torch.ops.aten.squeeze.dim, table, 1), own[1:]
        if len(own) >= len(shape):
            raise Differs(f"{first.name} is another for each expert")
        return self._call(grouped.of_groups, table, self.order, len(shape))

    def _gathered(self, parts: tuple[Node, ...]) -> Node:
        """``x[positions]`` of an ``x`` that all experts share."""
        first = parts[0]
        x = self.lift(tuple(p.args[0] for p in parts))
        if name_of(first) == "index_select":
            axis, indices = first.args[1] % len(x.meta["shape"]), [(p.args[2],) for p in parts]
        else:
            indices = [tuple(i for i in p.args[1] if i is not None) for p in parts]
            used = [k for k, i in enumerate(first.args[1]) if i is not None]
            axis = used[0]
            if used != [*range(axis, axis + len(used))]:
                raise Differs(f"{first.name} reads axes apart")
        found = {self._coordinates(each, number) for each, number in zip(indices, self.sets, strict=True)}
        if len(found) > 1:
            raise Differs(f"{first.name} reads by other positions")
        (coordinates,) = found
        shape = x.meta["shape"]
        if len(set(coordinates)) < len(coordinates) or any(
            shape[axis + k] < self.shape[c] for k, c in enumerate(coordinates)
        ):
            raise Differs(f"{first.name} reads by one position twice")
        return self._call(grouped.sorted_rows, x, self.order, self.count, self.shape, axis, coordinates)

    def _coordinates(self, indices: Sequence[Any], number: int) -> tuple[int, ...]:
        """Which axes of the condition the indices of a read are positions along; a mask is all of them."""
        if len(indices) == 1 and rows_of(indices[0]) is None:
            return tuple(range(self.axes))
        found = [rows_of(index) for index in indices]
        known = tuple(rows[2] for rows in found if rows is not None and rows[0] == number and rows[2] is not None)
        if len(known) < len(indices):
            raise Differs("a read by more than positions")
        return known

    # Products

    def _product(self, parts: tuple[Node, ...], at: int, matrix: int, transposed: bool) -> Node:
        """Rows times a matrix for each expert, and a bias."""
        first = parts[0]
        right = tuple(p.args[matrix] for p in parts)
        rows = self.lift(tuple(p.args[at] for p in parts))
        bias = tuple(p.args[0] if at else [*p.args, None][2] for p in parts)
        if any(p.kwargs for p in parts) or len({b is None for b in bias}) > 1:
            raise Differs(f"{first.name} has other arguments")
        if all(w is right[0] for w in right) and self.count > 1:
            if first.meta["rows"][1] == 0 and len(first.meta["shape"]) == 2:
                made = self._call(
                    torch.ops.aten.linear.default if transposed else torch.ops.aten.matmul.default,
                    *(rows, self.lift(right)),
                )
                return self._biased(first, made, bias, at)
            raise Differs(f"{first.name} has other arguments")
        shapes = {w.meta.get("shape") for w in right}
        if len(first.meta["shape"]) != 2 or first.meta["rows"][1] or len(shapes) > 1 or len(shapes.pop() or ()) != 2:
            raise Differs(f"{first.name} is no product of rows with a matrix")
        array = self._array(right)
        matrices = [array] if array is not None else [self.lift((w,) * self.count) for w in right]
        made = self._call(grouped.products, rows, self._end(), transposed, *matrices)
        return self._biased(first, made, bias, at)

    def _biased(self, first: Node, made: Node, bias: Parts, at: int) -> Node:
        if bias[0] is None:
            return made
        return self._call(torch.ops.aten.add.Tensor, made, self._operand(first, bias))

    def _end(self) -> Node:
        return self._call(part_of, self.order, 2)

    def _table(self, parts: tuple[Node, ...]) -> Node:
        """What each expert has one of, as one array."""
        found = self._array(parts)
        if found is not None:
            return found
        for part in parts:
            self.shared[part] = None
        return self._call(torch.ops.aten.stack.default, list(parts), 0)

    def _array(self, parts: tuple[Node, ...]) -> Node | None:
        """The array whose elements along its first axis parts are, one after another; None where there is none."""
        first, name = parts[0], name_of(parts[0])
        if any(p.target is not first.target for p in parts) or rows_of(first) is not None or not first.args:
            return None
        sources = tuple(p.args[0].args[0] if _is_unbound(p) else p.args[0] for p in parts)
        numbers = [number for number in self._numbers(parts) if number is not None]
        if len(numbers) == self.count:
            source = sources[0]
            if any(s is not source for s in sources) or "shape" not in source.meta:
                return None
            if numbers != [*range(numbers[0], numbers[0] + self.count)]:
                return None
            self.shared[source] = None
            cut = self._call(torch.ops.aten.narrow.default, source, 0, numbers[0], self.count)
            own = first.meta["shape"]
            return cut if len(own) < len(source.meta["shape"]) else self._call(torch.ops.aten.unsqueeze.default, cut, 1)
        if not all(isinstance(s, fx.Node) for s in sources):
            return None
        rest = [p.args[1:] for p in parts]
        if any(r != rest[0] for r in rest) or any(p.kwargs != first.kwargs for p in parts):
            return None
        return self._viewed(first, name, sources)

    def _viewed(self, first: Node, name: str, sources: tuple[Node, ...]) -> Node | None:
        """The array of what a view, or a cast, of each part of an array shows."""
        rank, rest = len(sources[0].meta.get("shape", ())), first.args[1:]
        if first.target is part_of:
            return None
        known = name in ("t", "numpy_T", "transpose", "squeeze", "unsqueeze", "view", "reshape", "permute")
        if not known and name not in _CASTS:
            return None
        array = self._array(sources)
        if array is None:
            return None
        aten = torch.ops.aten
        if name in _CASTS:
            return self._call(first.target, array, *rest, **first.kwargs)
        if name in ("t", "numpy_T"):
            return self._call(aten.transpose.int, array, 1, 2) if rank == 2 else None
        if name == "transpose":
            a, b = (d % rank + 1 for d in rest)
            return self._call(aten.transpose.int, array, a, b)
        if name == "permute":
            return self._call(aten.permute.default, array, [0, *(d % rank + 1 for d in rest[0])])
        return self._call(aten.reshape.default, array, [self.count, *first.meta["shape"]])

    def _numbers(self, parts: tuple[Node, ...]) -> Iterator[int | None]:
        """Which element of an array's first axis each part is."""
        for part in parts:
            if name_of(part) == "select" and part.args[1] == 0:
                yield int(part.args[2])
            elif name_of(part) == "index" and len(part.args[1]) == 1:
                yield _known(part.args[1][0])
            elif _is_unbound(part):
                yield int(part.args[1])
            else:
                yield None


def _is_unbound(node: Node) -> bool:
    """Whether a node is an element of an array's first axis, of all of them."""
    return node.target is part_of and name_of(node.args[0]) == "unbind" and [*node.args[0].args, 0][1] == 0


def _columns(parts: tuple[Node, ...]) -> list[Parts]:
    """The arguments of calls, place by place."""
    if len({len(p.args) for p in parts}) > 1:
        raise Differs("other arguments")
    return [*zip(*(p.args for p in parts), strict=True)]


def _known(index: Any) -> int | None:
    """The one number that an index is filled with."""
    while isinstance(index, fx.Node) and name_of(index) in (
        "select",
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "item",
    ):
        index = index.args[0]
    if isinstance(index, fx.Node) and name_of(index) == "full" and len(index.meta.get("shape", (0, 0))) <= 1:
        value = index.args[1]
        return int(value) if isinstance(value, int) else None
    return None


def _drop(graph: fx.Graph) -> None:
    """Drops what no result needs any more of what was computed of chosen rows."""
    for node in reversed([*graph.nodes]):
        if node.op != "call_function" or node.users:
            continue
        of_rows = "rows" in node.meta or name_of(node) in ("where", "nonzero", "nonzero_numpy")
        if of_rows or (isinstance(node.target, OpOverload) and not mutates(node)) or node.target is part_of:
            graph.erase_node(node)
    left = next((node for node in graph.nodes if "rows" in node.meta), None)
    if left is not None:
        raise Differs(f"{left.name} is read")
