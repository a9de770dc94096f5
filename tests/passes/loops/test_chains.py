"""Chains of steps of one spelling: which are found, and where they begin and end."""

from __future__ import annotations

from fusec.ir.parse import parse
from fusec.passes.loops.chains import FEWEST_STEPS, find_chains


def steps(count: int, step: str) -> str:
    """``step`` so many times, of ``%h0``, ``%a`` and ``%b``; ``{n}`` and ``{m}`` are its number and the next one."""
    lines = "\n".join(step.format(n=n, m=n + 1) for n in range(count))
    return f"""graph @g(%h0: f32[4], %a: f32[4], %b: f32[4]) {{
{lines}
  return %h{count}
}}"""


PLAIN = """  %p{n} = mul(%a, %h{n}) : f32[4]
  %h{m} = add(%p{n}, %b) : f32[4]"""

OTHER_WAY = """  %p{n} = mul(%h{n}, %a) : f32[4]
  %h{m} = add(%b, %p{n}) : f32[4]"""

SUBTRACTED = """  %p{n} = mul(%h{n}, %a) : f32[4]
  %h{m} = sub(%p{n}, %b) : f32[4]"""

SUBTRACTED_FROM = """  %p{n} = mul(%h{n}, %a) : f32[4]
  %h{m} = sub(%b, %p{n}) : f32[4]"""


def test_spellings() -> None:
    for step, subtracts in ((PLAIN, False), (OTHER_WAY, False), (SUBTRACTED, True)):
        graph = parse(steps(FEWEST_STEPS, step))
        (chain,) = find_chains(graph)
        assert chain.start is graph.inputs[0]
        assert [v.name for v in chain.results] == [f"h{n + 1}" for n in range(FEWEST_STEPS)]
        assert all(s.factor is graph.inputs[1] and s.term is graph.inputs[2] for s in chain.steps)
        assert chain.subtracts == subtracts


def test_what_is_no_chain() -> None:
    assert not find_chains(parse(steps(FEWEST_STEPS - 1, PLAIN)))
    assert not find_chains(parse(steps(FEWEST_STEPS, SUBTRACTED_FROM)))
    assert not find_chains(parse(steps(FEWEST_STEPS, "  %h{m} = add(%h{n}, %b) : f32[4]")))


def test_a_value_is_of_one_chain() -> None:
    """Each step's product is of both the state and what is multiplied with it."""
    step = """  %p{n} = mul(%h{n}, %h{n}) : f32[4]
  %h{m} = add(%p{n}, %b) : f32[4]"""
    chains = find_chains(parse(steps(FEWEST_STEPS, step)))
    values = [v for chain in chains for v in chain.results]
    assert len(values) == len(set(values)) == FEWEST_STEPS
