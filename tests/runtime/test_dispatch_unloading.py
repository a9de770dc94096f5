"""Programs that nothing calls any more leave nothing behind: machine code, plans, index expressions."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.frontend import torch_fake
from fusec.ir.index import Expr

MAPS = Path("/proc/self/maps")


def compiled(columns: int) -> tuple[Any, Any]:
    """A function that was compiled for one shape, and its module of machine code."""
    function = fusec.jit(lambda x: torch.softmax(x * 2 + 1, -1))
    function(torch.randn(3, columns))
    (plan,) = function.dispatcher.plans
    assert plan.executable is not None
    return function, plan.executable.module


@pytest.mark.skipif(not MAPS.exists(), reason="no list of what is mapped")
def test_machine_code_is_unmapped_with_its_function() -> None:
    compiled(20)
    gc.collect()
    before = len(MAPS.read_text().splitlines())
    kept = []
    for columns in range(21, 29):
        function, module = compiled(columns)
        kept.append(weakref.ref(module))
        del function, module
    gc.collect()
    assert not any(module() for module in kept)
    assert len(MAPS.read_text().splitlines()) <= before + 4


def test_index_expressions_are_forgotten() -> None:
    compiled(30)
    gc.collect()
    before = len(Expr._table)
    for columns in range(31, 36):
        compiled(columns)
    gc.collect()
    assert len(Expr._table) <= before


def test_what_pytorch_knows_of_fake_tensors_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_fake, "MOST_KNOWN", 20)
    for columns in range(40, 52):
        compiled(columns)
    assert len(FakeTensorMode.cache) < 20 + 40
