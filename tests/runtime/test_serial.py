"""Programs as data: what earlier versions left out is read as what it stood for."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import fusec
from fusec.runtime.program import Call, Program
from fusec.runtime.serial import program_from_json, program_to_json


def calls(program: Program) -> list[Call]:
    return [step for step in program.steps if isinstance(step, Call)]


def test_a_call_of_which_only_operands_layouts_were_said() -> None:
    """Before results could lie in another order."""
    x = torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last)
    program = fusec.lower(fusec.trace(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)).program
    (call,) = calls(program)
    assert call.attributes.strided
    assert call.attributes.orders
    data = program_to_json(program)
    assert calls(program_from_json(data)) == [call]
    (record,) = (step[1] for step in data["steps"] if step[0] == "call")
    del record[5:]
    (read,) = calls(program_from_json(data))
    assert read.attributes.strided == call.attributes.strided
    assert not read.attributes.orders
