"""What a function's memory says of its code and defaults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from fusec.frontend import function_fields
from fusec.frontend.environment import record_environment
from fusec.frontend.function_fields import fields_of


def given(x: int, y: Any = 1, *, z: Any = 2) -> int:
    return x


def other(x: int, y: Any = 1, *, z: Any = 2) -> int:
    return -x


def _fields(f: Callable[..., Any]) -> Any:
    assert isinstance(f, FunctionType)
    return fields_of(f)


@pytest.mark.parametrize(
    ("part", "value"),
    [("__code__", other.__code__), ("__defaults__", (7,)), ("__kwdefaults__", {"z": 2}), ("__defaults__", None)],
)
def test_each_part_is_seen(part: str, value: Any) -> None:
    fields, known = _fields(given)
    saved = getattr(given, part)
    assert fields.raw == known
    setattr(given, part, value)
    try:
        assert fields.raw != known
    finally:
        setattr(given, part, saved)
    assert fields.raw == known


def test_calls_specialise_nothing_that_is_compared() -> None:
    fields, known = _fields(given)
    assert sum(given(k) for k in range(100)) == 4950
    given.note = 1  # type: ignore[attr-defined]
    given.__name__ = "given"
    assert fields.raw == known


def test_a_python_that_keeps_them_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_fields, "_START", None)
    with record_environment(other, [1]) as recorder:
        other(1)
    environment = recorder.finish(is_tensor=lambda value: False)
    assert environment.holds()
    saved = other.__code__
    other.__code__ = given.__code__
    try:
        assert not environment.holds()
    finally:
        other.__code__ = saved


HOOKED = """
import sys
import numpy as np
import fusec

@fusec.jit
def f(x):
    return np.maximum(x * 2 + 1, 0)

x = np.zeros(8, np.float32)
f(x)
f(x)
events = []
sys.addaudithook(lambda event, arguments: events.append(event))
f(x)
seen = list(events)
assert "object.__getattr__" not in seen, seen
"""


def test_a_call_raises_no_audit_events_for_the_function() -> None:
    subprocess.run([sys.executable, "-c", HOOKED], check=True, timeout=120)
