# SPDX-License-Identifier: Apache-2.0
"""Kernels as text: deterministic, meant for reading (dumps, ``explain``, golden tests)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from fusec.ir.index import Expr, Index, bounds
from fusec.ir.types import contiguous_strides
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import (
    Alloc,
    Block,
    Choose,
    Dot,
    Grid,
    If,
    Iter,
    Let,
    Loop,
    Map,
    Reduce,
    Scan,
    SoftmaxExp,
    Statement,
    Store,
)
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, Subscript
from fusec.tile.templates import HopperAttention, HopperGemm

_INDENT = "  "

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "and",
    "logical_or": "or",
}


def print_kernel(kernel: Kernel) -> str:
    """The kernel's text, ending without a newline.

    A parameter or scratch buffer is shown with its strides where they are not row-major; an iterator as
    ``name:extent``, or ``name:min(extent, limit)`` where it has a limit.
    """
    inputs = kernel.parameters[: len(kernel.parameters) - kernel.outputs]
    outputs = kernel.parameters[len(inputs) :]
    left = ", ".join(map(print_buffer, inputs))
    right = ", ".join(map(print_buffer, outputs))
    sizes = "".join(f" {s.name} in [{bounds(s)[0]}, {bounds(s)[1]}]" for s in kernel.sizes)
    launch = f" warps={kernel.warps} stages={kernel.stages}" if kernel.warps else ""
    launch += f" registers={kernel.registers}" if kernel.registers else ""
    launch += f" cluster={kernel.cluster}" if kernel.cluster > 1 else ""
    if isinstance(kernel.template, HopperGemm | HopperAttention):
        p = kernel.template.pipeline
        launch += f" cluster={p.cluster_m}x{p.cluster_n} group={p.group}{' ping-pong' if p.ping_pong else ''}"
    lines = [f"kernel @{kernel.name} {kernel.kind}{launch}{sizes} ({left}) -> ({right}) {{"]
    for m in kernel.moves:
        to = f"{print_scalar(m.to)} of {_index(m.extent)}"
        lines.append(f"{_INDENT}{m.buffer} at {m.at} of axis {m.along} goes to {to} along axis {m.axis}")
    lines += _block(kernel.body, 1)
    return "\n".join([*lines, "}"])


def print_buffer(buffer: Buffer) -> str:
    """Name, dtype, shape, and strides (in elements) unless they are row-major."""
    shape = ", ".join(map(str, buffer.shape))
    text = f"{buffer.name}: {buffer.dtype}[{shape}]"
    if buffer.strides != contiguous_strides(buffer.shape):
        text += f" strides({', '.join(map(str, buffer.strides))})"
    return text


def print_scalar(e: ScalarExpr) -> str:
    """A scalar expression; index values and loads carry no dtype, casts and literals do."""
    match e:
        case Const():
            return f"{e.value}" if e.dtype.name in ("f32", "bool", "i64") else f"{e.dtype}({e.value})"
        case IndexValue():
            return _index(e.index)
        case Load():
            return f"{e.buffer.name}[{_subscripts(e.index)}]"
        case Apply(op="cast"):
            return f"{e.dtype}({print_scalar(e.args[0])})"
        case Apply() if e.op in _INFIX:
            return f"({f' {_INFIX[e.op]} '.join(map(print_scalar, e.args))})"
        case Apply():
            return f"{e.op}({', '.join(map(print_scalar, e.args))})"
        case _:
            assert_never(e)


def _block(statements: Block, depth: int) -> list[str]:
    return [line for statement in statements for line in _statement(statement, depth)]


def _statement(statement: Statement, depth: int) -> list[str]:
    pad = _INDENT * depth
    match statement:
        case Grid():
            return _braces(f"grid ({_domain(statement.iters)})", statement.body, depth)
        case Loop():
            step = f", step {statement.step}" if statement.step != 1 else ""
            head = f"for {statement.var} in {_index(statement.start)}..{_index(statement.stop)}{step}"
            if statement.within is not None:
                head += f" within {print_scalar(statement.within[0])}..{print_scalar(statement.within[1])}"
            return _braces(head, statement.body, depth)
        case If():
            lines = _braces(f"if {print_scalar(statement.condition)}", statement.body, depth)
            if statement.orelse:
                lines[-1] = f"{pad}}} else {{"
                lines += [*_block(statement.orelse, depth + 1), f"{pad}}}"]
            return lines
        case Let():
            return [f"{pad}let {statement.var} = {print_scalar(statement.value)}"]
        case Choose():
            among = ", ".join(b.name for b in statement.sources)
            return [f"{pad}choose {statement.buffer.name} = ({among})[{_index(statement.index)}]"]
        case Alloc():
            return [f"{pad}alloc {print_buffer(statement.buffer)}"]
        case Map() | Store():
            word = "map" if isinstance(statement, Map) else "stream" if statement.non_temporal else "store"
            word = f"beside {word}" if isinstance(statement, Store) and statement.beside else word
            word = f"post and {word}" if isinstance(statement, Store) and statement.posts else word
            written = f"{statement.target.name}[{_subscripts(statement.index)}]"
            prefetch = _fetching(statement.prefetch)
            return [f"{pad}{word} {written} = {print_scalar(statement.value)}{_for(statement.domain)}{prefetch}"]
        case Reduce():
            written = f"{statement.target.name}[{_subscripts(statement.index)}]"
            sign = "=" if statement.fresh else "<-"
            value = f"{'loose ' if statement.loose else ''}{statement.op}({print_scalar(statement.value)})"
            branching = " branching" if statement.branches else ""
            word = "await and reduce" if statement.awaits else "reduce"
            return [f"{pad}{word} {written} {sign} {value}{_for(statement.domain)}{branching}"]
        case Scan():
            written = f"{statement.target.name}[{_subscripts(statement.index)}], {print_scalar(statement.carry)}"
            along = f" {'down' if statement.reverse else 'along'} {statement.along}"
            value = f"{statement.op}({', '.join(map(print_scalar, statement.values))})"
            return [f"{pad}scan {written} <- {value}{along}{_for(statement.domain)}"]
        case SoftmaxExp():
            return [pad + _softmax_exp(statement)]
        case Dot():
            return [pad + _dot(statement), *_block(statement.beside, depth + 1)]
        case _:
            assert_never(statement)


def _fetching(prefetch: tuple[Load, ...]) -> str:
    return f" fetching {', '.join(map(print_scalar, prefetch))}" if prefetch else ""


def _softmax_exp(statement: SoftmaxExp) -> str:
    power = f"2 ** (({print_scalar(statement.score)} - {print_scalar(statement.shift)}) * {statement.factor})"
    targets = f"{print_scalar(statement.weights)}, {print_scalar(statement.row_sum)}"
    return f"softmax_exp {targets} <- {power}{_for((statement.keys, statement.queries))}{_fetching(statement.prefetch)}"


def _dot(dot: Dot) -> str:
    r = dot.registers
    sign = "=" if dot.fresh else "+="
    registers = f"registers {r.rows}x{r.columns}" + (f" unroll {r.unroll}" if r.unroll != 1 else "")
    registers += f" in tiles{f', {r.streamed} streamed' if r.streamed else ''}" if r.tiles else ""
    registers += " along" if r.along else ""
    registers += f" prefetch {r.prefetch_bytes}" if r.prefetch_bytes else ""
    tf32 = " tf32" if dot.tf32 else ""
    operands = f"{print_scalar(dot.a)} * {print_scalar(dot.b)}"
    domain = _domain((dot.m, dot.n, dot.k))
    return f"dot {print_scalar(dot.accumulator)} {sign} {operands} for {domain} {registers}{tf32}"


def _braces(head: str, body: Block, depth: int) -> list[str]:
    pad = _INDENT * depth
    return [f"{pad}{head} {{", *_block(body, depth + 1), f"{pad}}}"]


def _for(domain: Sequence[Iter]) -> str:
    return f" for {_domain(domain)}" if domain else ""


def _domain(iters: Iterable[Iter]) -> str:
    return ", ".join(map(_iter, iters))


def _iter(it: Iter) -> str:
    count = f"{it.extent}" if it.limit is None else f"min({it.extent}, {_index(it.limit)})"
    return f"{it.var}:{count}"


def _subscripts(subscripts: Iterable[Subscript]) -> str:
    return ", ".join(_index(i) if isinstance(i, int | Expr) else print_scalar(i) for i in subscripts)


def _index(e: Index) -> str:
    text = str(e)
    return text[1:-1] if _wrapped(text) else text


def _wrapped(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False
