"""Checks a pass: text before, text after, and the same results for both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from textwrap import dedent
from typing import Any

import numpy as np
import numpy.typing as npt
from oracle import assert_close_to_oracle

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import TensorType
from fusec.ir.verify import verify
from fusec.passes.rewrite import Rule, rewrite
from fusec.runtime.program import Declined

Pass = Callable[..., Graph]
Array = npt.NDArray[Any]

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 88.5, -104.0)


def applying(*rules: Rule) -> Pass:
    """The pass that these rules alone make."""
    return partial(rewrite, rules=rules)


def becomes(transform: Pass, before: str, after: str, *, special: bool = True, rounds: bool = False) -> Graph:
    """AssertionError unless the pass makes ``after`` of ``before``, and both compute the same. Returns the graph."""
    graph = computes_the_same(transform, before, special=special, rounds=rounds)
    assert str(graph) == str(parse(dedent(after)))
    return graph


def computes_the_same(transform: Pass, before: str, *, special: bool = True, rounds: bool = False) -> Graph:
    """AssertionError unless the pass keeps what ``before`` computes: NaN and infinities too, with ``special``.

    A pass that ``rounds`` computes constants in their own dtype, which float64 arithmetic would not.
    """
    old = parse(dedent(before))
    new = transform(old)
    verify(new, "the pass")
    assert new.inputs == old.inputs
    assert tuple(v.type for v in new.outputs) == tuple(v.type for v in old.outputs)
    for k in range(2 if special else 1):
        rng = np.random.default_rng(k)
        inputs = [random_array(v.type, rng, special=k == 1) for v in old.inputs]
        with np.errstate(all="ignore"):
            assert_close_to_oracle(interpret(new, inputs), old, interpret(old, inputs), inputs=inputs)
            if not rounds:
                same_in_float64(old, new, inputs)
    return new


def same_in_float64(old: Graph, new: Graph, inputs: list[Array]) -> None:
    """AssertionError unless exact arithmetic could not tell the graphs apart."""
    for a, b in zip(interpret(old, inputs, float64=True), interpret(new, inputs, float64=True), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)


def random_array(type_: TensorType, rng: np.random.Generator, *, special: bool) -> Array:
    """Values of about one; with ``special`` nearly a third of the floats are zeros, infinities, NaN or large."""
    shape, dtype = type_.static_shape, type_.dtype
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "uint" else -5, 6, shape).astype(dtype.numpy)
    values = np.asarray(rng.standard_normal(shape))
    if special:
        values = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), values)
    return values.astype(dtype.numpy)


def unchanged(transform: Pass, before: str) -> list[str]:
    """AssertionError unless the pass leaves ``before`` alone; the reasons that it logs, if it takes a ``log``."""
    log: list[Declined] = []
    graph = parse(dedent(before))
    logs = "log" in signature(transform).parameters
    result = transform(graph, log=log.append) if logs else transform(graph)
    assert str(result) == str(graph)
    return [f"{d.rule}: {d.reason}" for d in log]
