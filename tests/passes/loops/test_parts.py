"""Where results of steps meet: concatenations, and what writes that together fill an array become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusec.frontend.torch import capture
from fusec.ir.graph import Graph
from fusec.passes.loops.parts import find_meetings
from fusec.passes.regions import join_regions


def captured(f: Callable[..., Any]) -> Graph:
    return capture(f, (torch.zeros(4, 3),), {}).graph


def written(x: Any) -> Any:
    out = torch.empty(3, 5)
    for t in (2, 0, 4, 3, 1):
        out[:, t] = x[0] * (t + 2)
    return out


def test_concatenated() -> None:
    (met,) = find_meetings(captured(lambda x: torch.stack([x[n] + 1 for n in range(4)], 1)), 4)
    assert (met.axis, len(met.parts)) == (1, 4)


def test_writes_in_any_order() -> None:
    graph = join_regions(captured(written))
    (met,) = find_meetings(graph, 4)
    producers = graph.producers()
    factors = [producers[producers[v].operands[0]].operands[1] for v in met.parts]
    assert [producers[v].attributes.value for v in factors] == [2, 3, 4, 5, 6]  # type: ignore[attr-defined]
    assert met.axis == 1


def test_what_does_not_meet() -> None:
    def partly(x: Any) -> Any:
        out = torch.zeros(6, 3)
        for t in range(4):
            out[t] = x[t]
        return out

    def two_at_a_time(x: Any) -> Any:
        return torch.cat([x[:2], x[2:], x[:2], x[1:3]])

    assert not list(find_meetings(join_regions(captured(partly)), 4))
    assert not list(find_meetings(captured(two_at_a_time), 4))
    assert not list(find_meetings(captured(lambda x: torch.stack([x[0], x[1]])), 4))
