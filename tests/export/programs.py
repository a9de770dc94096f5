"""Graphs that every viewer's form is tried on: all of op_samples' kinds in a program or two."""

from __future__ import annotations

import numpy as np
import torch

import fusec
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.runtime.program import Program

layer = torch.nn.Linear(64, 32)


def sorted_mlp(x):
    y = torch.nn.functional.gelu(layer(x)).to(torch.bfloat16)
    values, _ = torch.sort(y, -1)
    return torch.softmax(values, -1), y


def complex_numbers(x):
    return np.exp(x * 2j) + 1


def lowered(function, *arguments, target: str = "cpu") -> tuple[Graph, Program]:
    """The graph of kernels as its text gives it, and the program."""
    found = fusec.lower(fusec.trace(function, *arguments), target)
    return parse(found.stages["fuse"]), found.program
