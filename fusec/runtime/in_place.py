# SPDX-License-Identifier: Apache-2.0
"""Library calls that write a few positions of an input which the program changes: there, not in a copy of all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusec.ir.types import contiguous_strides
from fusec.runtime.program import Call, Program, root_of

_WRITERS = frozenset(
    f"aten.{name}"
    for name in (
        *("index_put.default", "index_copy.default", "index_add.default", "index_fill.int_Scalar"),
        *("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"),
    )
)
"""Functions of PyTorch that give their first argument with some elements written; with _ they write them there."""


def calls_in_place(program: Program) -> Mapping[tuple[int, ...], Call]:
    """By results, the calls whose results are an input's new contents, as calls that write into the input itself.

    So where neither the input nor what earlier calls made of it is needed once the next call has written.
    """
    steps = enumerate(program.steps)
    writers = {step.results[0]: k for k, step in steps if isinstance(step, Call) and _writes(step)}
    found: dict[tuple[int, ...], Call] = {}
    for output, port in zip(program.outputs, program.output_ports, strict=True):
        if port.mutates is not None:
            found |= _calls_between(program, writers, program.inputs[port.mutates], output)
    return found


def _writes(step: Call) -> bool:
    """Whether a call gives its first operand with some elements written, and needs it for nothing else."""
    text = step.attributes.arguments
    return step.attributes.target in _WRITERS and text.startswith("($0,") and text.count("$0") == 1


def _calls_between(
    program: Program, writers: Mapping[int, int], target: int, output: int
) -> dict[tuple[int, ...], Call]:
    """The calls that make an output from an input, written in place; none where one can't be."""
    slot = program.slots[target]
    if slot.strides != contiguous_strides(slot.type.shape) or _leaves(program, output) > 1:
        return {}
    calls: dict[tuple[int, ...], Call] = {}
    value = output
    while value != target:
        number = writers.get(value)
        step = program.steps[number] if number is not None else None
        if number is None or not isinstance(step, Call):
            return {}
        value = step.arguments[0]
        read = [*step.arguments[1:], *(a for later in program.steps[number + 1 :] for a in later.arguments)]
        if _leaves(program, value) or any(root_of(program, a)[0] == value for a in read):
            return {}
        name, overload = step.attributes.target.rsplit(".", 1)
        calls[step.results] = replace(step, attributes=replace(step.attributes, target=f"{name}_.{overload}"))
    return calls


def _leaves(program: Program, slot: int) -> int:
    """How many outputs lie in a slot's memory."""
    return sum(root_of(program, output)[0] == slot for output in program.outputs)
