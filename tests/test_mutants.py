"""A few of the mutants (all: ``python -m tests.mutants``), and that every mutant still applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mutants.catalogue import MUTANTS, Mutant
from mutants.run import mutated, source_of, survives

pytest.importorskip("torch")
QUICK = ("attention_hides_an_output", "outputs_alike_share_memory", "products_of_other_shapes_join")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant: Mutant) -> None:
    path = source_of(mutant)
    source = path.read_text()
    compile(mutated(mutant, source), path, "exec")
    for moved in (replace(mutant, old="text of another day"), replace(mutant, function="a_function_of_another_day")):
        with pytest.raises(ValueError, match="up to date"):
            mutated(moved, source)
    assert all((Path(__file__).parents[1] / test.split("::")[0]).exists() for test in mutant.tests)


@pytest.mark.parametrize("name", [QUICK[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in QUICK[1:])])
def test_a_mutant_is_noticed(name: str) -> None:
    assert survives(next(mutant for mutant in MUTANTS if mutant.name == name)) == ""
